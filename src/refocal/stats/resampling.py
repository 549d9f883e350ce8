"""Resampling of calibration gaps: the noise in a calibration error, and the hits of a perfectly calibrated model.

A calibration error is a norm of sums D over samples, with D_b the sum of the residuals in bin b. Noise makes the norm
too large on average, so neither the error nor the percentiles of its bootstrap are centered at the truth. This module
returns the noise itself: bootstrap sums minus observed sums. `inverted_tests` turns it into limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy

from refocal.stats.binning import width_index
from refocal.stats.inverted_tests import NormFunction

SparseMatrix = Any  # a SciPy sparse array, which has no public type

_LEVELS = 1 << 11  # of confidence; the bootstrap treats samples of one level as equal
_CHUNK_ELEMENTS = 1 << 21
_MANY_CELLS = 100_000
_SQUARE_PARTS = 8  # parts of a matrix; each is copied for its product with the whole


def _identity(sums: np.ndarray) -> np.ndarray:
    return sums


class Cells(NamedTuple):
    """Groups of interchangeable samples: their number, and the mean of their weights and values."""

    copies: np.ndarray  # (C,)
    weight: np.ndarray  # (C,)
    confidence: np.ndarray  # (C,)
    correct: np.ndarray  # (C,)
    bin: np.ndarray  # (C,)


class Gaps(NamedTuple):
    """Residuals as rows of a sparse matrix; the error is the norm of a linear transform of their weighted mean."""

    residuals: SparseMatrix  # (C, M)
    weight: np.ndarray  # (C,)
    copies: np.ndarray  # (C,)
    norm: NormFunction  # (..., L) -> (...)
    transform: NormFunction = _identity  # (..., M) -> (..., L)
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


def observed_sums(gaps: Gaps) -> np.ndarray:
    """The observed weighted means of the residuals, transformed, (L,)."""
    return gaps.transform((gaps.residuals.T @ gaps.copies) / float(gaps.weight @ gaps.copies))


def noise(several: list[Gaps], *, resamples: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Bootstrap sums minus observed sums, (resamples, L) each, with the same resamples for all `several`.

    In a resample each sample occurs Poisson(1) times, so the samples of a cell of n occur Poisson(n) times (Hanley,
    MacGibbon 2006). Sums over very many cells are Gaussian and are drawn directly.
    """
    copies, weight = several[0].copies, several[0].weight
    if len(copies) > _MANY_CELLS and _effective(copies, weight) > _MANY_CELLS:
        return _gaussian_noise(several, resamples=resamples, rng=rng)
    parts: list[list[np.ndarray]] = [[] for _ in several]
    centers = [observed_sums(gaps) for gaps in several]
    for counts in draw_counts(several[0].copies, several[0].weight, resamples=resamples, rng=rng):
        for part, gaps, center in zip(parts, several, centers, strict=True):
            sums = (gaps.residuals.T @ counts.T).T / (counts @ gaps.weight)[:, None]
            part.append(gaps.transform(sums) - center)
    return [np.concatenate(part) for part in parts]


def _gaussian_noise(several: list[Gaps], *, resamples: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Gaussian noise with the covariance of resampled means: the sum of (r - c w)(r - c w)^T, c the observed mean."""
    copies, weight = several[0].copies, several[0].weight
    total = float(weight @ copies)
    # This matrix may be the largest object in memory, so it is not copied.
    residuals = (
        several[0].residuals
        if len(several) == 1
        else scipy.sparse.hstack([gaps.residuals for gaps in several], format="csr")
    )
    center = (residuals.T @ copies) / total
    repeated = residuals
    if (copies != 1).any():
        repeated = residuals.multiply(copies[:, None]).asformat(residuals.format)  # SciPy 1.15 returns a coo_array
    width = -(-repeated.shape[1] // _SQUARE_PARTS)
    parts = (repeated[:, start : start + width] for start in range(0, repeated.shape[1], width))
    squares = np.concatenate([(residuals.T @ part).toarray() for part in parts], axis=1)
    shift = np.outer(residuals.T @ (copies * weight), center)
    covariance = (squares - shift - shift.T + float(copies @ weight**2) * np.outer(center, center)) / total**2
    gaussian = rng.multivariate_normal(np.zeros(len(center)), covariance, size=resamples, method="eigh")
    edges = np.cumsum([gaps.residuals.shape[1] for gaps in several])[:-1]
    return [gaps.transform(part) for gaps, part in zip(several, np.split(gaussian, edges, axis=1), strict=True)]


def resample_counts(weight: np.ndarray, *, resamples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """How often each sample occurs, one resample after another."""
    for counts in draw_counts(np.ones(len(weight)), weight, resamples=resamples, rng=rng):
        yield from counts


def calibrated_hits(cells: Cells, *, resamples: int, bins: int, rng: np.random.Generator) -> np.ndarray:
    """Simulated weighted hits per bin if every confidence were right, (resamples, bins)."""
    parts = []
    if len(cells.bin) > _MANY_CELLS and _effective(cells.copies, cells.weight) > _MANY_CELLS:  # Gaussian, as in `noise`
        mass = cells.copies * cells.weight
        mean = np.bincount(cells.bin, weights=mass * cells.confidence, minlength=bins)
        spread = mass * cells.weight * cells.confidence * (1 - cells.confidence)
        deviation = np.sqrt(np.bincount(cells.bin, weights=spread, minlength=bins))
        return mean + deviation * rng.standard_normal((resamples, bins))
    membership = residual_matrix(np.arange(len(cells.bin)), cells.bin, cells.weight, (len(cells.bin), bins))
    for size in _chunks(resamples, len(cells.copies)):
        parts.append((membership.T @ _hits(cells, size, rng).T.astype(np.float64)).T)
    return np.concatenate(parts)


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


def draw_counts(
    copies: np.ndarray, weight: np.ndarray, *, resamples: int, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """Poisson counts of each cell, several resamples at a time, (size, C)."""
    mean = copies if (copies != 1).any() else 1.0  # the same counts; a scalar mean is faster
    for size in _chunks(resamples, len(copies)):
        counts = rng.poisson(mean, size=(size, len(copies))).astype(np.float64)
        # A resample in which nothing occurs is replaced by the sample itself.
        counts[counts @ weight == 0] = copies
        yield counts


def _chunks(resamples: int, width: int) -> Iterator[int]:
    step = max(1, _CHUNK_ELEMENTS // width)
    for start in range(0, resamples, step):
        yield min(step, resamples - start)
