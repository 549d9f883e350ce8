"""An omnibus test of calibration: statistics of residual sums, each for one kind of error, and their combination.

Every statistic is computed for the labels and for labels drawn from the predictions. The rank of the observed one is
its p-value. The p-values are combined, and the rank of the observed combination is the p-value of the whole test: it
is exact, whatever the statistics depend on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refocal.stats import calibrated_sums
from refocal.stats.label_sums import LabelSums
from refocal.stats.resampling import residual_matrix

_ROWS = 64  # label sets whose sums are raised to a power at once
_CLASS_POWER = 4  # between the sum of squares, for errors of many classes, and the maximum, for those of few
_GROUP_POWER = 2
_FEW = 0.25  # how much the rarity of the events of a cell counts; see `_deviations`
_TIED = 1e-9


class CalibrationTestParts(NamedTuple):
    """The p-value of each part of an omnibus test of calibration, on its own.

    Attributes:
        temperature: Of the score of the temperature: are all predictions too sure, or not sure enough?
        frequencies: Of the scores of the biases: does each class occur as often as predicted?
        classes: Of the scores of one temperature for each predicted class.
        bins: Of the gaps in bins of the confidence, of the given kind and of equal mass.
        cumulative: Of the gap of all claims below, or above, any confidence.
    """

    temperature: float
    frequencies: float
    classes: float
    bins: float
    cumulative: float


# The shares of the level. The first two parts are optimal for one direction each, and nothing else sees what they see;
# bins must see any pattern. The others see what is rarer, or find it so clearly that a small share will do.
_SHARES = np.array(CalibrationTestParts(temperature=0.25, frequencies=0.25, classes=0.05, bins=0.3, cumulative=0.15))


def measure_parts(sums: LabelSums, binnings: list[np.ndarray]) -> np.ndarray:
    """Statistics of the parts: of the labels first, then of each simulated set of labels, (1 + resamples, parts).

    Args:
        sums: Residual sums. The cells of the hits are in the order of their confidence.
        binnings: For each way to bin the confidence, the bin of each cell, (cells,).
    """
    temperature, frequency = (_whole(sums, where) for where in (sums.temperature, sums.frequency))
    deviations = _deviations(sums.variance, sums.fourth)
    hits = _whole(sums, sums.hits)
    variance, fourth = sums.variance[sums.hits], sums.fourth[sums.hits]
    squares = np.zeros(len(hits))
    for index in binnings:
        size = int(index.max()) + 1
        own = _deviations(*(np.bincount(index, part, minlength=size) for part in (variance, fourth)), few=_FEW)
        squares += _sum_powers(add_cells(hits, index, size=size), own, power=2)
    total = np.sqrt(sums.variance[sums.temperature].sum())
    return np.stack(
        [
            np.abs(temperature.sum(axis=1)) / (total if total > 0 else 1.0),
            _sum_powers(frequency, deviations[sums.frequency], power=_CLASS_POWER),
            _sum_powers(temperature, deviations[sums.temperature], power=_GROUP_POWER),
            squares,
            np.maximum(
                _scan(hits, variance, fourth),
                _scan(hits[:, ::-1], variance[::-1], fourth[::-1]),
            ),
        ],
        axis=1,
    )


def rank_parts(statistics: np.ndarray, *, possible: bool) -> tuple[CalibrationTestParts, float]:
    """The p-values of the parts, and of all together, from statistics (1 + resamples, parts).

    An impossible label is evidence against any temperature, so that its p-value is 0.
    """
    p_values = np.stack([_ranks(column) for column in statistics.T], axis=1)
    if not possible:
        p_values[0, 0] = 0.0
    combined = calibrated_sums.combine(p_values, _SHARES)
    together = float(_ranks(-np.log(np.maximum(combined, 1e-300)))[0]) if possible else 0.0
    return CalibrationTestParts(*map(float, p_values[0])), together


def add_cells(sums: np.ndarray, index: np.ndarray, *, size: int) -> np.ndarray:
    """Add up sums (label sets, cells) over the cells of each bin, (label sets, size)."""
    member = residual_matrix(np.arange(len(index)), index, np.ones(len(index)), (len(index), size))
    added: np.ndarray = (member.T @ sums.T).T
    return added


def _whole(sums: LabelSums, where: slice) -> np.ndarray:
    return np.concatenate([sums.observed[None, where], sums.simulated[:, where]])


def _deviations(variance: np.ndarray, fourth: np.ndarray, *, few: float = 1.0) -> np.ndarray:
    """Scales of sums: their standard deviations, larger if few events make them up.

    The ratio of the fourth moment to the variance is the square of a typical event. If a sum has a smaller variance, no
    event at all is expected, and one would be many standard deviations: it would hide all other sums.
    """
    event = np.divide(fourth, variance, out=np.ones_like(variance), where=variance > 0)
    return np.sqrt(variance + few * event)


def _sum_powers(sums: np.ndarray, deviations: np.ndarray, *, power: int) -> np.ndarray:
    """Sum |sum / deviation|^power over the last axis of (label sets, M), a few label sets at a time."""
    parts = [
        ((np.abs(sums[start : start + _ROWS]) / deviations) ** power).sum(axis=1)
        for start in range(0, len(sums), _ROWS)
    ]
    return np.concatenate(parts)


def _scan(hits: np.ndarray, variance: np.ndarray, fourth: np.ndarray) -> np.ndarray:
    """The largest standardized residual of the first cells, of however many, (label sets,)."""
    deviations = _deviations(np.cumsum(variance), np.cumsum(fourth), few=_FEW)
    largest: np.ndarray = (np.abs(np.cumsum(hits, axis=1)) / deviations).max(axis=1)
    return largest


def _ranks(statistic: np.ndarray) -> np.ndarray:
    """The share of values that are at least as large as each; values that differ by rounding are equal."""
    least = statistic - _TIED * np.maximum(1.0, np.abs(statistic))
    below = np.searchsorted(np.sort(statistic), least, side="left")
    ranks: np.ndarray = (len(statistic) - below) / len(statistic)
    return ranks
