"""Sums over labels that are drawn from the predictions, as they would be if the predictions were calibrated.

Three kinds of sums describe the labels. Each is a residual: what the labels give minus what the predictions claim.

- temperature, for each group: w (log p_y - E log p), the score of the temperature over the rows that predict one class.
- frequency, for each class: w ([y = k] - p_k), the score of the bias of the class.
- hits, for each cell of confidence: w ([claim came true] - claim).

Most rows get their most probable label, so that only the others, the misses, are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

_CHUNK_ELEMENTS = 1 << 20
_MOST_MISSES = 1e7  # in all simulated label sets together; beyond, pieces of the data are simulated less often
_PIECES = 64
_FEWEST_DRAWS = 64  # of each piece
_MANY_SAMPLES = 10_000


class PredictedRows(NamedTuple):
    """Rows of predictions. The labels of an event are 0 and 1, and its claim is P(y = 1)."""

    probs: np.ndarray  # (n, K), rows sum to 1
    log_probs: np.ndarray  # (n, K)
    labels: np.ndarray  # (n,)
    weights: np.ndarray  # (n,)
    claimed: np.ndarray  # (n,), the label that the claim is about
    column: np.ndarray  # (n,), the label of a multi-label task; 0 for others
    cell: np.ndarray  # (n,), the cell of the claim


class LabelSums(NamedTuple):
    """Residual sums: of the temperature (G,), of the frequencies (G,), and of the hits (cells,), one after another."""

    observed: np.ndarray  # (M,)
    simulated: np.ndarray  # (resamples, M)
    variance: np.ndarray  # (M,), of calibrated predictions
    fourth: np.ndarray  # (M,), the sum of the fourth central moments of what is added up
    possible: bool  # whether every label has a probability above 0
    groups: int  # G

    @property
    def temperature(self) -> slice:
        """Where the temperature sums are."""
        return slice(0, self.groups)

    @property
    def frequency(self) -> slice:
        """Where the frequency sums are."""
        return slice(self.groups, 2 * self.groups)

    @property
    def hits(self) -> slice:
        """Where the sums of hits are."""
        return slice(2 * self.groups, None)


class _Block:
    """The labels of a block of rows as differences from the most probable ones."""

    def __init__(self, rows: PredictedRows, groups: int) -> None:
        self.labels, self.weights = rows.labels, rows.weights
        count, classes = rows.probs.shape
        each = np.arange(count)
        self.top = rows.probs.argmax(axis=1)
        others = rows.probs.copy()
        others[each, self.top] = 0.0
        self.cumulative = np.cumsum(others, axis=1)
        self.miss = self.cumulative[:, -1]
        self.classes = classes
        ruled_out = np.isneginf(rows.log_probs)  # such classes are never drawn
        self.log_probs = np.where(ruled_out, 0.0, rows.log_probs)
        self.possible = not (ruled_out[each, rows.labels] & (rows.weights > 0)).any()
        self.log_top = self.log_probs[each, self.top]
        self.claimed, self.top_hit = rows.claimed, (self.top == rows.claimed).astype(np.float64)
        self.first = rows.column * classes  # of the group and of the frequencies of the row
        self.group, self.cell = self.first + self.top, 2 * groups + rows.cell
        self.groups = groups
        self._rows = rows

    def add_labels(self, sums: np.ndarray, draw: np.ndarray, row: np.ndarray, label: np.ndarray) -> None:
        """Add misses to sums (draws, M): in each draw and row, the label instead of the most probable one."""
        flat, start = sums.reshape(-1), draw * sums.shape[1]
        weight, group = self.weights.take(row), self.group.take(row)
        gain = self.log_probs.reshape(-1).take(row * self.classes + label) - self.log_top.take(row)
        hit = (label == self.claimed.take(row)) - self.top_hit.take(row)
        for place, value in (
            (group, weight * gain),
            (self.groups + group, -weight),
            (self.groups + self.first.take(row) + label, weight),
            (self.cell.take(row), weight * hit),
        ):
            np.add.at(flat, start + place, value)

    def add_observed(self, sums: np.ndarray) -> None:
        """Add the misses of the labels to sums (M,)."""
        row = np.flatnonzero(self.labels != self.top)
        self.add_labels(sums[None], np.zeros(len(row), dtype=np.intp), row, self.labels[row])

    def add_drawn(self, sums: np.ndarray, rng: np.random.Generator) -> None:
        """Add the misses of drawn labels to sums (draws, M)."""
        count = len(self.miss)
        step = max(1, _CHUNK_ELEMENTS // count)
        for start in range(0, len(sums), step):
            part = sums[start : start + step]
            tosses = rng.random((len(part), count))
            missed = np.flatnonzero(tosses < self.miss)
            draw, row = np.divmod(missed, count)
            self.add_labels(part, draw, row, self._pick(row, tosses.reshape(-1).take(missed)))

    def _pick(self, row: np.ndarray, toss: np.ndarray) -> np.ndarray:
        """Find the first class whose cumulative probability is above the toss, by bisection."""
        flat, start = self.cumulative.reshape(-1), row * self.classes
        low = np.zeros(len(row), dtype=np.intp)
        size = self.classes
        while size > 1:
            half = size // 2
            low += half * (flat.take(start + low + (half - 1)) <= toss)
            size -= half
        return low

    def add_base(self, sums: np.ndarray, variance: np.ndarray, fourth: np.ndarray) -> None:
        """Add the residuals of the most probable labels, and the moments of the residuals."""
        probs, weight, each = self._rows.probs, self.weights, np.arange(len(self.miss))
        mean = np.einsum("ij,ij->i", probs, self.log_probs)
        away = self.log_probs - mean[:, None]
        size = len(sums)
        claim = probs[each, self.claimed]
        places = (self.groups + self.first[:, None] + np.arange(self.classes)).reshape(-1)
        repeated = np.repeat(weight, self.classes)
        flat = probs.reshape(-1)
        residual = -flat.copy()
        residual[each * self.classes + self.top] += 1.0
        for total, power, (of_group, of_class, of_cell) in (
            (sums, 1, (self.log_top - mean, residual, self.top_hit - claim)),
            (variance, 2, (np.einsum("ij,ij->i", probs, away**2), flat * (1 - flat), claim * (1 - claim))),
            (fourth, 4, (np.einsum("ij,ij->i", probs, away**4), _fourth_moment(flat), _fourth_moment(claim))),
        ):
            scale = weight**power
            for place, value in (
                (self.group, scale * of_group),
                (places, repeated**power * of_class),
                (self.cell, scale * of_cell),
            ):
                total[:] += np.bincount(place, value, minlength=size)


def _fourth_moment(probs: np.ndarray) -> np.ndarray:
    """The fourth central moment of a 0 or 1."""
    spread = probs * (1 - probs)
    return spread * (1 - 3 * spread)


def sum_labels(
    blocks: Iterable[PredictedRows],
    *,
    groups: int,
    cells: int,
    resamples: int,
    rng: np.random.Generator,
    misses: float,
    effective: float,
    count: int,
) -> LabelSums:
    """Sum the residuals of the labels, and of labels drawn from the predictions.

    If that would take more than 10 million misses, the rows are divided into 64 pieces or more, the labels of each
    piece are drawn fewer times, and each simulated set of labels is put together from the draws of the pieces. Its sums
    are scaled to their exact variances.

    Args:
        blocks: The rows.
        groups: Number of classes, over all columns.
        cells: Number of cells of confidence.
        resamples: Number of simulated label sets.
        rng: Generator of the simulation.
        misses: Expected number of rows that do not get their most probable label.
        effective: Effective number of samples.
        count: Number of rows.
    """
    size = 2 * groups + cells
    observed, variance, fourth = np.zeros(size), np.zeros(size), np.zeros(size)
    simulated = np.zeros((resamples, size))
    pooled = resamples * misses > _MOST_MISSES and effective > _MANY_SAMPLES
    draws = min(resamples, max(_FEWEST_DRAWS, int(_MOST_MISSES / misses))) if pooled else resamples
    base, spread, possible = np.zeros(size), np.zeros(size), True
    for rows in _split(blocks, -(-count // _PIECES)) if pooled else blocks:
        block = _Block(rows, groups)
        block.add_base(base, variance, fourth)
        block.add_observed(observed)
        possible &= block.possible
        if pooled:
            own = np.zeros((draws, size))
            block.add_drawn(own, rng)
            own -= own.mean(axis=0)
            spread += own.var(axis=0)
            simulated += own[rng.integers(draws, size=resamples)]
        else:
            block.add_drawn(simulated, rng)
    observed += base
    if pooled:  # few draws tell means and variances only roughly, but those are known
        simulated *= np.sqrt(np.divide(variance, spread, out=np.ones(size), where=spread > 0))
    else:
        simulated += base
    return LabelSums(observed, simulated, variance, fourth, possible, groups)


def _split(blocks: Iterable[PredictedRows], most: int) -> Iterator[PredictedRows]:
    for rows in blocks:
        for start in range(0, len(rows.labels), most):
            yield PredictedRows(*(part[start : start + most] for part in rows))
