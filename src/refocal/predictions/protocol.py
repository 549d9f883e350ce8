"""What every format gives to the reader, and takes from the writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from refocal.predictions.checks import Columns
from refocal.predictions.errors import Place
from refocal.predictions.predictions import Predictions

# Scores of a block: 4 MB of float32, small beside any model's memory, large beside the overhead of a block.
BLOCK_SCORES = 1 << 20


class Size(NamedTuple):
    """How much a file holds once it is unpacked, by its header; of a csv file, about as much."""

    rows: int
    columns: int  # of scores

    @property
    def scores(self) -> int:
        """The number of scores."""
        return self.rows * self.columns


@dataclass(frozen=True)
class Source:
    """An open file: what its header says, and its rows, not yet checked."""

    input: str
    class_names: tuple[str, ...] | None
    rows: int | None
    size: Size
    place: Place
    blocks: Iterator[Columns]


class Format(Protocol):
    """A module that reads and writes one format."""

    def source(self, path: Path, *, whole: bool) -> AbstractContextManager[Source]:
        """Open a file; `whole` allows for one block where that saves a copy."""

    def sink(
        self, file: BinaryIO, path: Path, first: Predictions
    ) -> AbstractContextManager[Callable[[Predictions], None]]:
        """A function that takes block after block of the form of `first`; the file is complete on leaving."""


def block_rows(classes: int) -> int:
    """Rows of a block of BLOCK_SCORES scores."""
    return max(1, BLOCK_SCORES // max(1, classes))
