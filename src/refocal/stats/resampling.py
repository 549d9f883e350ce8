"""Resampling of gaps: what noise does to a calibration error, and what a perfectly calibrated model would show.

A calibration error is a norm of sums D over samples, D_b = sum of the residuals in bin b. The norm of a noisy sum is
too large in the mean, so neither the error nor the percentiles of its bootstrap are where the truth is. Everything here
works with the noise itself: bootstrap sums less the observed ones. `inversion` makes limits of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy

from refocal.stats.binning import width_index
from refocal.stats.inverted_tests import Norm

_LEVELS = 1 << 11  # of confidence, within which samples count as equal to a bootstrap
_CHUNK_ELEMENTS = 1 << 21
_MANY_CELLS = 100_000
_SQUARE_PARTS = 8  # of a matrix, each copied for its product with the whole


def _itself(sums: np.ndarray) -> np.ndarray:
    return sums


class Cells(NamedTuple):
    """Samples that count as one another: how many, and the mean of each one's weight and values."""

    copies: np.ndarray  # (C,)
    weight: np.ndarray  # (C,)
    confidence: np.ndarray  # (C,)
    correct: np.ndarray  # (C,)
    bin: np.ndarray  # (C,)


class Gaps(NamedTuple):
    """Residuals as rows of a sparse matrix; the error is the norm of a linear map of their weighted mean."""

    residuals: Any  # sparse (C, M)
    weight: np.ndarray  # (C,)
    copies: np.ndarray  # (C,)
    norm: Norm  # (..., L) -> (...)
    through: Norm = _itself  # (..., M) -> (..., L)
    power: int = 1  # the error is the norm to this power
    most: float = 1.0  # no error can be larger


def as_cells(confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None, index: np.ndarray) -> Cells:
    """Join samples of the same bin, outcome and level of confidence; with weights, each sample is a cell."""
    wide = confidence.astype(np.float64)
    if weights is not None or len(wide) <= _LEVELS:
        scale = np.ones(len(wide)) if weights is None else weights
        return Cells(np.ones(len(wide)), scale, wide, correct.astype(np.float64), index)
    key = (index.astype(np.int64) * _LEVELS + width_index(confidence, bins=_LEVELS)) * 2 + correct
    count = np.bincount(key)
    total = np.bincount(key, weights=wide)
    used = np.flatnonzero(count)
    kept = count[used].astype(np.float64)
    return Cells(kept, np.ones(len(used)), total[used] / kept, (used % 2).astype(np.float64), used // (2 * _LEVELS))


def residual_matrix(rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> Any:
    """A sparse matrix of residuals."""
    return scipy.sparse.csr_array((values, (rows, columns)), shape=shape)


class ResidualColumns:
    """A sparse matrix of residuals, a few columns at a time, in the memory of the matrix alone: 12 bytes a residual.

    SciPy's own way, from all rows, columns and values at once, takes four times that. Columns are the bins of a class,
    in which each sample has one residual at most.
    """

    def __init__(self, rows: int, classes: int) -> None:
        # memory that is never written to is never taken
        self._values = np.empty(rows * classes)
        self._rows = np.empty(rows * classes, dtype=np.int32)
        self._ends = [np.zeros(1, dtype=np.int64)]
        self._shape = (rows, 0)

    def add(self, rows: np.ndarray, column: np.ndarray, values: np.ndarray, *, size: int) -> None:
        """Residuals in the next `size` columns."""
        order = np.argsort(column, kind="stable")
        start = int(self._ends[-1][-1])
        self._rows[start : start + len(rows)] = rows[order]
        self._values[start : start + len(rows)] = values[order]
        self._ends.append(start + np.cumsum(np.bincount(column, minlength=size)))
        self._shape = (self._shape[0], self._shape[1] + size)

    def matrix(self) -> Any:
        """What was added, (rows, columns)."""
        ends = np.concatenate(self._ends)
        used = int(ends[-1])
        return scipy.sparse.csc_array((self._values[:used], self._rows[:used], ends), shape=self._shape)


def observed(gaps: Gaps) -> np.ndarray:
    """The sums, (L,)."""
    return gaps.through((gaps.residuals.T @ gaps.copies) / float(gaps.weight @ gaps.copies))


def noise(several: list[Gaps], *, resamples: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Bootstrap sums less the observed ones, (resamples, L) each; all with the same resamples of the same samples.

    A resample gives each sample a Poisson(1) number of places, so a cell of n samples has Poisson(n) of them (Hanley,
    MacGibbon 2006). Of very many cells the sums are Gaussian, and are drawn as such.
    """
    copies, weight = several[0].copies, several[0].weight
    if len(copies) > _MANY_CELLS and _effective(copies, weight) > _MANY_CELLS:
        return _gaussian_noise(several, resamples=resamples, rng=rng)
    parts: list[list[np.ndarray]] = [[] for _ in several]
    centers = [observed(gaps) for gaps in several]
    for drawn in draws(several[0].copies, several[0].weight, resamples=resamples, rng=rng):
        for part, gaps, center in zip(parts, several, centers, strict=True):
            sums = (gaps.residuals.T @ drawn.T).T / (drawn @ gaps.weight)[:, None]
            part.append(gaps.through(sums) - center)
    return [np.concatenate(part) for part in parts]


def _gaussian_noise(several: list[Gaps], *, resamples: int, rng: np.random.Generator) -> list[np.ndarray]:
    """The same from the covariance of resampled means: the sum of (r - c w)(r - c w)^T, c being the observed mean."""
    copies, weight = several[0].copies, several[0].weight
    total = float(weight @ copies)
    # no copies of a matrix that may be the largest thing in memory
    residuals = (
        several[0].residuals
        if len(several) == 1
        else scipy.sparse.hstack([gaps.residuals for gaps in several], format="csr")
    )
    center = (residuals.T @ copies) / total
    repeated = residuals
    if (copies != 1).any():
        repeated = residuals.multiply(copies[:, None]).asformat(residuals.format)  # SciPy 1.15 gives a coo_array
    width = -(-repeated.shape[1] // _SQUARE_PARTS)
    parts = (repeated[:, start : start + width] for start in range(0, repeated.shape[1], width))
    squares = np.concatenate([(residuals.T @ part).toarray() for part in parts], axis=1)
    shift = np.outer(residuals.T @ (copies * weight), center)
    covariance = (squares - shift - shift.T + float(copies @ weight**2) * np.outer(center, center)) / total**2
    drawn = rng.multivariate_normal(np.zeros(len(center)), covariance, size=resamples, method="eigh")
    edges = np.cumsum([gaps.residuals.shape[1] for gaps in several])[:-1]
    return [gaps.through(part) for gaps, part in zip(several, np.split(drawn, edges, axis=1), strict=True)]


def resampled_weights(weight: np.ndarray, *, resamples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Numbers of places of each sample, one resample after another."""
    for drawn in draws(np.ones(len(weight)), weight, resamples=resamples, rng=rng):
        yield from drawn


def calibrated_hits(cells: Cells, *, resamples: int, bins: int, rng: np.random.Generator) -> np.ndarray:
    """Weighted hits in each bin if every confidence were right, (resamples, bins)."""
    parts = []
    if len(cells.bin) > _MANY_CELLS and _effective(cells.copies, cells.weight) > _MANY_CELLS:  # Gaussian, as above
        mass = cells.copies * cells.weight
        mean = np.bincount(cells.bin, weights=mass * cells.confidence, minlength=bins)
        spread = mass * cells.weight * cells.confidence * (1 - cells.confidence)
        deviation = np.sqrt(np.bincount(cells.bin, weights=spread, minlength=bins))
        return mean + deviation * rng.standard_normal((resamples, bins))
    which = residual_matrix(np.arange(len(cells.bin)), cells.bin, cells.weight, (len(cells.bin), bins))
    for size in _chunks(resamples, len(cells.copies)):
        parts.append((which.T @ _hits(cells, size, rng).T.astype(np.float64)).T)
    return np.concatenate(parts)


def _hits(cells: Cells, size: int, rng: np.random.Generator) -> np.ndarray:
    """Hits of each cell if its confidence were right, (size, C)."""
    if (cells.copies > 1).any():
        return rng.binomial(cells.copies.astype(np.int64), cells.confidence, size=(size, len(cells.copies)))
    # one toss a sample, read the way `binomial` reads it, which is slow at probabilities that all differ
    tosses = rng.random((size, len(cells.copies)))
    return np.where(cells.confidence <= 0.5, tosses > 1 - cells.confidence, tosses <= cells.confidence)


def _effective(copies: np.ndarray, weight: np.ndarray) -> float:
    """How many samples of equal weight would be as sure."""
    return float((copies @ weight) ** 2 / (copies @ weight**2))


def draws(copies: np.ndarray, weight: np.ndarray, *, resamples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Poisson numbers of places, several resamples at a time."""
    mean = copies if (copies != 1).any() else 1.0  # the same numbers, of one mean in less time
    for size in _chunks(resamples, len(copies)):
        drawn = rng.poisson(mean, size=(size, len(copies))).astype(np.float64)
        # a few samples may all be left out: such a resample is the sample itself
        drawn[drawn @ weight == 0] = copies
        yield drawn


def _chunks(resamples: int, width: int) -> Iterator[int]:
    step = max(1, _CHUNK_ELEMENTS // width)
    for start in range(0, resamples, step):
        yield min(step, resamples - start)
