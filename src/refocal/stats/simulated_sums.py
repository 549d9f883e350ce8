"""Simulated residual sums of a model whose calibration error is known.

A calibration error is a norm of sums over columns: a column holds the claims of one bin (of one class, for classwise
errors). The bootstrap cannot show the noise of such sums if outcomes are rare: events that did not occur are never
drawn. Here the outcomes are drawn instead: first from the claims c themselves, which shows a calibrated model.

If the claims of a column exceed their frequencies by g on average, each comes true with probability (1 - s) c, where
s = g / mean c. So each hit of the calibrated model is kept with probability 1 - s. If the claims fall short, each fails
with probability (1 - s) (1 - c), and each failure is kept with probability 1 - s. Every gap that is possible at all
leaves probabilities in [0, 1].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_BLOCK = 1 << 14  # sums that are looked at together


class ColumnSums(NamedTuple):
    """Sums over the claims c of each column with weights w and outcomes y, (M,) each. All weights add up to 1."""

    weight: np.ndarray  # sum of w
    square: np.ndarray  # sum of w^2
    claim: np.ndarray  # sum of w c
    hits: np.ndarray  # sum of w y
    variance: np.ndarray  # sum of w^2 c (1 - c), the variance of the hits of a calibrated model

    @property
    def residual(self) -> np.ndarray:
        """The observed sums of w (c - y)."""
        return self.claim - self.hits

    @property
    def gap(self) -> np.ndarray:
        """The mean residual of each column; 0 in an empty one."""
        return np.divide(self.residual, self.weight, out=np.zeros_like(self.weight), where=self.weight > 0)

    def possible_gaps(self) -> GapRange:
        """The gaps that are possible: no frequency is below 0 or above 1. In an empty column, it is only 0."""
        held = self.weight > 0
        mean = np.divide(self.claim, self.weight, out=np.zeros_like(self.weight), where=held)
        return GapRange(np.where(held, mean - 1, 0.0), np.where(held, mean, 0.0))


class GapRange(NamedTuple):
    """The least and the largest possible gap of each column, (M,) each."""

    least: np.ndarray
    largest: np.ndarray

    def bound(self, gap: np.ndarray) -> np.ndarray:
        """The nearest possible gaps."""
        return np.minimum(np.maximum(gap, self.least), self.largest)


def sum_columns(
    column: np.ndarray, claim: np.ndarray, correct: np.ndarray, weight: np.ndarray, *, size: int
) -> ColumnSums:
    """Sum the claims (n,) of each of `size` columns; the weights keep their scale."""
    square = weight**2
    parts = (weight, square, weight * claim, weight * correct, square * claim * (1 - claim))
    return ColumnSums(*(np.bincount(column, weights=part, minlength=size) for part in parts))


class SumSimulator:
    """Draws residual sums under any gaps, always from the same random numbers.

    Args:
        columns: The columns.
        hits: Weights of the hits of a calibrated model, (resamples, M).
        rng: Generator.
        like: Sums (resamples, M), for example bootstrap sums: the residual sums of each column are sorted like them, so
            that columns that depend on each other in `like` do so here. None to keep the order of `hits`.
        groups: Number of equally long groups of columns; the columns of a group hold all claims.
        mass_share: How much of the noise in the weight of a column is noise of the measure: 1 for sums of absolute
            gaps, 1/2 for the root of squares, 0 for the largest gap.
    """

    def __init__(
        self,
        columns: ColumnSums,
        hits: np.ndarray,
        *,
        rng: np.random.Generator,
        like: np.ndarray | None = None,
        groups: int = 1,
        mass_share: float = 1.0,
    ) -> None:
        self._columns = columns
        self._possible = columns.possible_gaps()
        self._places = None if like is None else _rank(like)
        self._hits = hits
        self._seed = int(rng.integers(1 << 63))
        self._step = np.divide(
            columns.square, columns.weight, out=np.ones_like(columns.weight), where=columns.weight > 0
        )
        self._whole = _are_whole(hits, self._step)  # all weights are equal
        mass = rng.poisson(columns.weight / self._step, hits.shape).reshape(len(hits), groups, -1)
        mass = mass * self._step.reshape(groups, -1)
        given = columns.weight.reshape(groups, -1)
        drawn = mass.sum(axis=2, keepdims=True)
        mass *= given.sum(axis=1, keepdims=True)
        mass /= np.where(drawn > 0, drawn, 1.0)
        np.copyto(mass, given, where=drawn <= 0)
        self._mass = mass.reshape(hits.shape)
        self._mass -= columns.weight
        self._mass *= mass_share
        self._mass += columns.weight

    def draw(self, gap: np.ndarray) -> np.ndarray:
        """Residual sums (resamples, M) if the claims of each column exceed their frequency by `gap`, (M,)."""
        weight, claim = self._columns.weight, self._columns.claim
        gap = self._possible.bound(gap)
        over = gap >= 0
        side = np.where(over, claim, weight - claim)
        lost = np.divide(np.abs(gap) * weight, side, out=np.zeros_like(side), where=side > 0)
        changed = lost > 0
        kept = weight - self._hits
        np.copyto(kept, self._hits, where=over)
        if changed.all():
            kept[:] = self._thin(kept, np.maximum(0.0, 1 - lost), self._step)
        elif changed.any():
            kept[:, changed] = self._thin(kept[:, changed], np.maximum(0.0, 1 - lost[changed]), self._step[changed])
        np.subtract(weight, kept, out=kept, where=~over)
        sums = np.subtract(claim, kept, out=kept)
        if self._places is not None:
            increasing = np.sort(np.ascontiguousarray(sums.T), axis=1)
            sums[:] = increasing.ravel()[self._places]
        return sums

    def draw_truth(self, gap: np.ndarray) -> np.ndarray:
        """True residual sums (resamples, M) of other samples of rows, if these are the true gaps."""
        return self._possible.bound(gap) * self._mass

    def draw_means(self, losses: np.ndarray) -> np.ndarray:
        """Weighted means (resamples,) of losses that each column has, (M,), in other samples of rows."""
        return self._mass @ losses

    def _thin(self, sums: np.ndarray, share: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Keep each unit of the sums with probability `share`; this overwrites the sums."""
        rng = np.random.default_rng(self._seed)
        if self._whole:
            sums /= step
            return rng.binomial(np.rint(sums, out=sums).astype(np.int64), share) * step
        spread = np.sqrt(np.maximum(sums, 0.0) * step * share * (1 - share))
        return np.clip(sums * share + spread * rng.standard_normal(sums.shape), 0.0, sums)


def _rank(like: np.ndarray) -> np.ndarray:
    """Find the places of values (R, M) among the sorted values of their columns, one column after another."""
    resamples, columns = like.shape
    order = np.argsort(like, axis=0, kind="stable")
    places = np.empty(like.shape, dtype=np.intp)
    np.put_along_axis(places, order, np.arange(resamples)[:, None] + resamples * np.arange(columns), axis=0)
    return places


def _are_whole(hits: np.ndarray, step: np.ndarray) -> bool:
    """Whether all hits (R, M) are whole multiples of the steps (M,), up to rounding."""
    rows = max(1, _BLOCK // len(step))
    blocks = (hits[start : start + rows] / step for start in range(0, len(hits), rows))
    return all(np.abs(counts - np.rint(counts)).max() < 1e-6 for counts in blocks)
