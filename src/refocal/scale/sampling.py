"""Random parts of a data set of many files: the same rows for the same seed, whichever engine reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from refocal import _check
from refocal.report.measure import TestData
from refocal.scale.parts import Block, FileSource, RowReader, describe_no_rows

if TYPE_CHECKING:
    from refocal.scale.engines import Engine

SAMPLE = 100_000  # rows, for statistics that need rows in memory
_SCORES = 20_000_000  # of a sample: with many classes it has fewer rows
_LEAST_ROWS, _LEAST_SCORES = 1000, 1_000_000  # a sample that any machine can hold


@dataclass(frozen=True)
class Share:
    """A random part of the rows: each row has a number in [0, 1), and the part has those from `low` to `high`.

    The numbers depend on the seed, on the place of a file among the files, and on the place of a row in its file. So
    they do not depend on blocks, engines or workers, and parts that do not overlap have no row in common.

    Attributes:
        seed: The seed.
        places: The place of each file.
        low: The smallest number.
        high: The first number above.
    """

    seed: int
    places: Mapping[Path, int]
    low: float = 0.0
    high: float = 1.0

    @classmethod
    def of(cls, files: Sequence[Path], *, seed: int) -> Share:
        """Return the part that has all rows."""
        return cls(_check.seed(seed, "seed"), {path: place for place, path in enumerate(files)})

    def cut(self, low: float, high: float) -> Share:
        """Return a part of this part, from one fraction of it to another."""
        width = self.high - self.low
        return replace(self, low=self.low + low * width, high=self.low + high * width)

    def start(self, path: Path) -> Callable[[int], np.ndarray]:
        """Begin a file; the result says of so many next rows which belong to the part."""
        numbers = np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, self.places[path]])))

        def choose(rows: int) -> np.ndarray:
            drawn = numbers.random(rows)
            return (drawn >= self.low) & (drawn < self.high)

        return choose


def choose_sample_size(classes: int, *, most_rows: int = SAMPLE) -> int:
    """Choose the number of rows of a sample, between what any machine can hold and a limit."""
    least = max(20, min(_LEAST_ROWS, _LEAST_SCORES // classes))
    return max(least, min(most_rows, _SCORES // classes))


def count_rows(engine: Engine, files: Sequence[Path], rows: RowReader) -> int:
    """Count the rows of a data set; raises if there are none."""
    found = engine.fold(FileSource.of(files, rows.read), _count, add, what="counting")
    if found is None:
        raise ValueError(describe_no_rows(files, rows))
    return found


def draw_sample(engine: Engine, files: Sequence[Path], rows: RowReader, *, size: int, of: int, seed: int) -> TestData:
    """Read about `size` rows, chosen at random, of the `of` rows that there are; all of them if there are no more."""
    share = rows.share or Share.of(files, seed=seed)
    some = rows if of <= size else replace(rows, share=share.cut(0.0, size / of))
    found = engine.fold(FileSource.of(files, some.read), _keep, add, what="sampling")
    if found is None:
        raise ValueError(describe_no_rows(files, rows))
    weights = [block.sample_weight for block in found if block.sample_weight is not None]
    scores, labels = (np.concatenate(parts) for parts in zip(*(block[:2] for block in found), strict=True))
    return TestData(scores, labels, np.concatenate(weights) if weights else None)


def _count(block: Block) -> int:
    return len(block.labels)


def _keep(block: Block) -> list[Block]:
    return [block]
