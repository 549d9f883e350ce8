"""The interface of a file format, used by the reader and the writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from refocal._check import Input
from refocal.predictions.checks import Columns
from refocal.predictions.errors import Place
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
    """An open file: its header, and blocks of rows that are not checked yet."""

    input: Input
    class_names: tuple[str, ...] | None
    rows: int | None
    size: FileSize
    place: Place
    blocks: Iterator[Columns]


class Format(Protocol):
    """A module that reads and writes one file format."""

    def open_reader(self, path: Path, *, whole: bool) -> AbstractContextManager[OpenFile]:
        """Open a file; `whole` allows a single block if that saves a copy."""

    def open_writer(
        self, file: BinaryIO, path: Path, first: Predictions
    ) -> AbstractContextManager[Callable[[Predictions], None]]:
        """Return a function that writes one block; all blocks are like `first`. On exit the file is complete."""


def block_rows(classes: int) -> int:
    """Return the number of rows in a block of BLOCK_SCORES scores."""
    return max(1, BLOCK_SCORES // max(1, classes))
