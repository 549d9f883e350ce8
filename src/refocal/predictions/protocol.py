"""The interface of a file format, used by the reader and the writer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from refocal._check import Input
from refocal.predictions.checks import Columns
from refocal.predictions.classes import Classes
from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.errors import Place
from refocal.predictions.labels import RawLabels
from refocal.predictions.predictions import Predictions

# Scores per block: 4 MB of float32, small compared with any model, but large enough to amortize the cost of a block.
BLOCK_SCORES = 1 << 20


class FileSize(NamedTuple):
    """The unpacked size of a file, according to its header; for a csv file, an estimate."""

    rows: int
    columns: int  # of scores

    @property
    def scores(self) -> int:
        """Number of scores."""
        return self.rows * self.columns


@dataclass(frozen=True)
class OpenFile:
    """An open file: its header, and blocks of rows that are not checked yet.

    Attributes:
        input: Whether scores are logits or probs.
        classes: How labels are read, and the names of the classes.
        rows: Number of rows; None if the header does not say.
        size: The unpacked size.
        place: The file, for error messages.
        blocks: The rows.
        guesses: What was guessed about columns, in words.
    """

    input: Input
    classes: Classes
    rows: int | None
    size: FileSize
    place: Place
    blocks: Iterator[Columns]
    guesses: tuple[str, ...] = ()


class Request(NamedTuple):
    """What to read from a file.

    Attributes:
        choice: The columns that the caller names.
        scan: Reads the labels of the file, or of the data set that it is part of.
        whole: Whether a single block is allowed if that saves a copy.
        carry: Whether to keep all columns beside the scores, or which ones, if the format has columns.
        labels: Whether to read the labels. Carried labels are kept in any case.
    """

    choice: ColumnChoice
    scan: Callable[[], Iterator[RawLabels]]
    whole: bool = False
    carry: bool | Collection[str] = False
    labels: bool = True


class Format(Protocol):
    """A module that reads and writes one file format."""

    def open_reader(self, path: Path, request: Request) -> AbstractContextManager[OpenFile]:
        """Open a file."""

    def read_labels(self, path: Path, choice: ColumnChoice) -> Iterator[RawLabels]:
        """Read only the labels; nothing if there are none."""

    def open_writer(
        self, file: BinaryIO, path: Path, first: Predictions
    ) -> AbstractContextManager[Callable[[Predictions], None]]:
        """Return a function that writes one block; all blocks are like `first`. On exit the file is complete."""


def block_rows(classes: int) -> int:
    """Return the number of rows in a block of BLOCK_SCORES scores."""
    return max(1, BLOCK_SCORES // max(1, classes))
