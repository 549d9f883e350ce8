"""A random sample of rows that arrive in batches, of bounded size, which processes can merge."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_SLACK = 1.25  # how many times the limit may be held until rows are dropped, so that few copies are made


class Rows(NamedTuple):
    """Rows of scores with their labels, and the random number of each that decides whether it is kept."""

    scores: np.ndarray  # (N, K) float32
    labels: np.ndarray  # (N,) int64
    numbers: np.ndarray  # (N,) float64

    def take(self, chosen: np.ndarray) -> Rows:
        """Return the rows of a mask."""
        return Rows(*(values[chosen] for values in self))


class RowSample:
    """Keep at most `limit` of the rows that are added; each row has the same chance.

    Each row draws a number, and the rows with the smallest numbers are kept. So the first rows of a sorted data set are
    not preferred, and samples of several processes merge by the same rule. Rows stay in the order in which they came.

    Args:
        limit: The largest number of rows to keep.
        seed: Seed of the numbers; several processes need different ones.

    Example:
        >>> sample = RowSample(2, seed=[0])
        >>> for first in range(0, 6, 3):
        ...     sample.add(np.ones((3, 4), dtype=np.float32), np.arange(first, first + 3))
        >>> sample.collect().scores.shape
        (2, 4)
    """

    def __init__(self, limit: int, *, seed: list[int]) -> None:
        self.limit = limit
        self._generator = np.random.default_rng(seed)
        self._parts: list[Rows] = []
        self._held = 0
        self._bound = np.inf  # rows with larger numbers are out

    def add(self, scores: np.ndarray, labels: np.ndarray) -> None:
        """Add rows: scores (n, K) and labels (n,)."""
        rows = Rows(scores, labels, self._generator.random(len(labels)))
        if self._bound < np.inf:
            rows = rows.take(rows.numbers <= self._bound)
        if self._parts and scores.shape[1] != self._parts[0].scores.shape[1]:
            msg = f"all batches must have {self._parts[0].scores.shape[1]} classes, got {scores.shape[1]}"
            raise ValueError(msg)
        self._parts.append(rows)
        self._held += len(rows.labels)
        if self._held > _SLACK * self.limit:
            self._parts = [self.collect()]
            self._held = self.limit
            self._bound = float(self._parts[0].numbers.max())

    def collect(self) -> Rows:
        """Return the rows that are kept; (0, 0) scores if none was added."""
        if not self._parts:
            return Rows(np.empty((0, 0), np.float32), np.empty(0, np.int64), np.empty(0))
        rows = Rows(*(np.concatenate(values) for values in zip(*self._parts, strict=True)))
        return rows.take(choose(rows.numbers, rows.numbers, limit=self.limit))


def choose(numbers: np.ndarray, all_numbers: np.ndarray, *, limit: int) -> np.ndarray:
    """Return a mask of the numbers (n,) that are among the `limit` smallest of all (N,)."""
    if len(all_numbers) <= limit:
        return np.ones(len(numbers), dtype=bool)
    return np.asarray(numbers <= np.partition(all_numbers, limit - 1)[limit - 1])
