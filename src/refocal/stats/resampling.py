"""Resampling of calibration gaps: the noise in a calibration error, and the hits of a perfectly calibrated model.

A calibration error is a norm of sums D over samples, with D_b the sum of the residuals in bin b. Noise makes the norm
too large on average, so neither the error nor the percentiles of its bootstrap are centered at the truth. This module
draws the sums of a calibrated model and bootstrap sums. `inverted_tests` turns them into limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy

from refocal.stats.binning import width_index
from refocal.stats.inverted_tests import NormFunction
from refocal.stats.simulated_sums import ColumnSums

HitFunction = Callable[[int, np.random.Generator], np.ndarray]  # (resamples, generator) -> hits
SparseMatrix = Any  # a SciPy sparse array, which has no public type

_LEVELS = 1 << 11  # of confidence; the bootstrap treats samples of one level as equal
_CHUNK_ELEMENTS = 1 << 21
_TOSSES = 1 << 18  # drawn labels at a time, each with its place and weight: they fit into a core's cache
_MANY_CELLS = 100_000
_SQUARE_PARTS = 8  # parts of a matrix; each is copied for its product with the whole


def _poisson_table() -> np.ndarray:
    """65,536 counts whose shares are those of a Poisson distribution of mean 1, with mean 1 exactly."""
    shares = 65_536 / (math.e * np.array([math.factorial(count) for count in range(10)], dtype=np.float64))
    lengths = np.rint(shares).astype(np.intp)
    lengths[1] += 65_536 - lengths @ np.arange(10)  # 0 adds nothing to the mean, so it fills the rest
    lengths[0] = 65_536 - lengths[1:].sum()
    return np.repeat(np.arange(10.0), lengths)


_POISSON_TABLE = _poisson_table()


class Cells(NamedTuple):
    """Groups of interchangeable samples: their number, and the mean of their weights and values."""

    copies: np.ndarray  # (C,)
    weight: np.ndarray  # (C,)
    confidence: np.ndarray  # (C,)
    correct: np.ndarray  # (C,)
    bin: np.ndarray  # (C,)


class Gaps(NamedTuple):
    """Residual sums over columns; the error is a norm of them."""

    columns: ColumnSums
    draw_hits: HitFunction  # the weights of the hits of a calibrated model, (resamples, M); weights add up to 1
    norm: NormFunction  # (..., M) -> (...)
    residuals: SparseMatrix = None  # (N, M) weighted residuals of each row, or None
    weight: np.ndarray = np.zeros(0)  # (N,)
    depends: bool = False  # whether columns depend on each other in a way that `draw_hits` does not know
    groups: int = 1  # equally long groups of columns, each with all claims
    blocks: np.ndarray | None = None  # (M,) groups of neighboring columns whose gaps are taken to be equal
    pools: np.ndarray | None = None  # (M,) columns whose gaps are likely to be alike; None for all columns
    mass_share: float = 1.0  # see `SumSimulator`
    row_losses: NormFunction | None = None  # true gaps (M,) -> losses (M,) whose mean over the rows is the error
    power: int = 1  # the error is the norm to this power
    most: float = 1.0  # the largest possible error


def group_cells(confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None, index: np.ndarray) -> Cells:
    """Group samples by bin, outcome and level of confidence; with weights, each sample is its own cell."""
    wide = confidence.astype(np.float64)
    if weights is not None or len(wide) <= _LEVELS:
        scale = np.ones(len(wide)) if weights is None else weights
        return Cells(np.ones(len(wide)), scale, wide, correct.astype(np.float64), index)
    key = (index.astype(np.int64) * _LEVELS + width_index(confidence, bins=_LEVELS)) * 2 + correct
    count = np.bincount(key)
    total = np.bincount(key, weights=wide)
    used = np.flatnonzero(count)
    copies = count[used].astype(np.float64)
    return Cells(copies, np.ones(len(used)), total[used] / copies, (used % 2).astype(np.float64), used // (2 * _LEVELS))


def residual_matrix(rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> SparseMatrix:
    """A sparse matrix of residuals."""
    return scipy.sparse.csr_array((values, (rows, columns)), shape=shape)


class ResidualColumns:
    """A sparse matrix of residuals, built a few columns at a time.

    It takes only the memory of the matrix, 12 bytes per residual; SciPy's constructor from rows, columns and values
    takes four times as much. The columns are the bins of the classes: a sample has at most one residual per class.
    """

    def __init__(self, rows: int, classes: int) -> None:
        # The operating system provides pages of these arrays only when they are written to.
        self._values = np.empty(rows * classes)
        self._rows = np.empty(rows * classes, dtype=np.int32)
        self._ends = [np.zeros(1, dtype=np.int64)]
        self._shape = (rows, 0)

    def add(self, rows: np.ndarray, column: np.ndarray, values: np.ndarray, *, size: int) -> None:
        """Append `size` columns with these residuals."""
        order = np.argsort(column, kind="stable")
        start = int(self._ends[-1][-1])
        self._rows[start : start + len(rows)] = rows[order]
        self._values[start : start + len(rows)] = values[order]
        self._ends.append(start + np.cumsum(np.bincount(column, minlength=size)))
        self._shape = (self._shape[0], self._shape[1] + size)

    def matrix(self) -> SparseMatrix:
        """The matrix, (rows, columns)."""
        ends = np.concatenate(self._ends)
        used = int(ends[-1])
        return scipy.sparse.csc_array((self._values[:used], self._rows[:used], ends), shape=self._shape)


def bootstrap_sums(
    several: list[SparseMatrix], weight: np.ndarray, *, resamples: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Bootstrap means of weighted residuals, (resamples, M) each, with the same resamples for all `several`.

    In a resample each row occurs Poisson(1) times (Hanley, MacGibbon 2006). Sums over very many rows are Gaussian and
    are drawn directly.

    Args:
        several: Residuals times weights of each row, (N, M) each.
        weight: (N,).
        resamples: Number of resamples.
        rng: Generator.
    """
    if len(weight) > _MANY_CELLS and _effective(np.ones(len(weight)), weight) > _MANY_CELLS:
        return _gaussian_sums(several, weight, resamples=resamples, rng=rng)
    parts: list[list[np.ndarray]] = [[] for _ in several]
    for counts in draw_counts(weight, resamples=resamples, rng=rng):
        total = (counts @ weight)[:, None]
        for part, residuals in zip(parts, several, strict=True):
            part.append((residuals.T @ counts.T).T / total)
    return [np.concatenate(part) for part in parts]


def _gaussian_sums(
    several: list[SparseMatrix], weight: np.ndarray, *, resamples: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Gaussian sums with the covariance of resampled means: the sum of (r - c w)(r - c w)^T, c the observed mean."""
    total = float(weight.sum())
    # This matrix may be the largest object in memory, so it is not copied.
    residuals = several[0] if len(several) == 1 else scipy.sparse.hstack(several, format="csr")
    center = residuals.sum(axis=0) / total
    width = -(-residuals.shape[1] // _SQUARE_PARTS)
    parts = (residuals[:, start : start + width] for start in range(0, residuals.shape[1], width))
    squares = np.concatenate([(residuals.T @ part).toarray() for part in parts], axis=1)
    shift = np.outer(residuals.T @ weight, center)
    covariance = (squares - shift - shift.T + float(weight @ weight) * np.outer(center, center)) / total**2
    gaussian = rng.multivariate_normal(center, covariance, size=resamples, method="eigh")
    return np.split(gaussian, np.cumsum([each.shape[1] for each in several])[:-1], axis=1)


def resample_counts(weight: np.ndarray, *, resamples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """How often each sample occurs, one resample after another."""
    for counts in draw_counts(weight, resamples=resamples, rng=rng):
        yield from counts


def calibrated_hits(cells: Cells, *, resamples: int, bins: int, rng: np.random.Generator) -> np.ndarray:
    """Simulated weighted hits per bin if every confidence were right, (resamples, bins)."""
    parts = []
    # Many cells are Gaussian together, as in `_gaussian_sums`.
    if len(cells.bin) > _MANY_CELLS and _effective(cells.copies, cells.weight) > _MANY_CELLS:
        mass = cells.copies * cells.weight
        mean = np.bincount(cells.bin, weights=mass * cells.confidence, minlength=bins)
        spread = mass * cells.weight * cells.confidence * (1 - cells.confidence)
        deviation = np.sqrt(np.bincount(cells.bin, weights=spread, minlength=bins))
        return mean + deviation * rng.standard_normal((resamples, bins))
    membership = residual_matrix(np.arange(len(cells.bin)), cells.bin, cells.weight, (len(cells.bin), bins))
    for size in _chunks(resamples, len(cells.copies)):
        parts.append((membership.T @ _hits(cells, size, rng).T.astype(np.float64)).T)
    return np.concatenate(parts)


def class_hits(
    probs: np.ndarray, column: np.ndarray, weight: np.ndarray, *, size: int, resamples: int, rng: np.random.Generator
) -> np.ndarray:
    """Simulated weighted hits per column if the labels have the predicted probabilities, (resamples, size).

    Args:
        probs: Probabilities (N, K).
        column: The column of the probability of each class in each row, (N, K); `size` for none.
        weight: (N,).
        size: Number of columns.
        resamples: Number of simulated label sets.
        rng: Generator.
    """
    result = np.zeros((resamples, size + 1))
    offset = (np.arange(resamples) * (size + 1)).astype(np.int64)
    step = max(1, _TOSSES // resamples)
    for start in range(0, len(probs), step):
        rows = slice(start, start + step)
        below = np.cumsum(probs[rows], axis=1, dtype=np.float64)
        below /= below[:, -1:]
        tosses = rng.random((len(below), resamples))
        places = np.empty(tosses.shape, dtype=np.int64)
        for place, own, edges, toss in zip(places, column[rows], below, tosses, strict=True):
            place[:] = own[np.searchsorted(edges[:-1], toss, side="right")]
        places += offset
        scale = np.repeat(weight[rows], resamples)
        result += np.bincount(places.ravel(), weights=scale, minlength=result.size).reshape(result.shape)
    return result[:, :size]


def _hits(cells: Cells, size: int, rng: np.random.Generator) -> np.ndarray:
    """Simulated hits of each cell if its confidence were right, (size, C)."""
    if (cells.copies > 1).any():
        return rng.binomial(cells.copies.astype(np.int64), cells.confidence, size=(size, len(cells.copies)))
    # One uniform number per sample gives the same hits as `binomial`, which is slow if all probabilities differ.
    tosses = rng.random((size, len(cells.copies)))
    return np.where(cells.confidence <= 0.5, tosses > 1 - cells.confidence, tosses <= cells.confidence)


def _effective(copies: np.ndarray, weight: np.ndarray) -> float:
    """The effective number of samples: as many of equal weight have the same variance."""
    return float((copies @ weight) ** 2 / (copies @ weight**2))


def draw_counts(weight: np.ndarray, *, resamples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Poisson(1) counts of each row, several resamples at a time, (size, N)."""
    for size in _chunks(resamples, len(weight)):
        # 16 random bits choose an entry of a table, which is several times faster than drawing Poisson counts.
        bits = np.frombuffer(rng.bytes(2 * size * len(weight)), dtype="<u2").reshape(size, len(weight))
        counts = _POISSON_TABLE[bits]
        # A resample in which nothing occurs is replaced by the sample itself.
        counts[counts @ weight == 0] = 1.0
        yield counts


def _chunks(resamples: int, width: int) -> Iterator[int]:
    step = max(1, _CHUNK_ELEMENTS // width)
    for start in range(0, resamples, step):
        yield min(step, resamples - start)
