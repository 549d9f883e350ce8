"""Confidence limits and a paired test for measures that noise biases upward, by inverting bootstrap tests.

Assume that the truth lies at t times a known direction and that the noise is the resampled one. Then both the true
value and the distribution of the observed value are known for each t. The upward bias is part of that distribution,
so it cancels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

NormFunction = Callable[[np.ndarray], np.ndarray]  # sums (..., L) -> norms (...)

_ROUNDING = 1e-12  # a measure up to this size is rounding error


class Direction(NamedTuple):
    """Possible truths along one direction, at t >= 0."""

    size: float  # the measure at t = 1; at t it is size t^power
    simulate: Callable[[float], np.ndarray]  # t -> the values that resamples show if the truth is at t, (resamples,)
    power: int = 1

    def simulate_value(self, value: float) -> np.ndarray:
        """The values that resamples show if the true measure is `value`."""
        if self.is_zero:  # without a direction, the value is added to the noise
            return value + self.simulate(0.0)
        return self.simulate((value / self.size) ** (1 / self.power))

    @property
    def is_zero(self) -> bool:
        """Whether the observed measure is zero, so that it has no direction."""
        return self.size <= _ROUNDING


def norm_directions(
    center: np.ndarray, deviations: np.ndarray, *, norm: NormFunction, power: int = 1
) -> list[Direction]:
    """Directions for the measure norm(sums)^power.

    The size of the bias depends on the direction of the true sums, which is unknown. Two directions are tried: all
    observed sums, and only those beyond two standard errors (the rest may be noise).

    Args:
        center: Observed sums, (L,).
        deviations: Differences of resampled sums from `center`, (resamples, L).
        norm: The norm, over the last axis.
        power: Power of the norm.
    """
    clear = np.where(np.abs(center) > 2 * deviations.std(axis=0), center, 0.0)
    if not clear.any():
        clear = np.where(np.abs(center) == np.abs(center).max(), center, 0.0)

    def direction(sums: np.ndarray) -> Direction:
        return Direction(float(norm(sums)) ** power, lambda t: norm(t * sums + deviations) ** power, power)

    return [direction(center), direction(clear)]


def limits(value: float, directions: list[Direction], *, level: float, most: float) -> tuple[float, float]:
    """Confidence limits, the widest over all directions (Carpenter 1999).

    The limits are the truths under which a value as large as (as small as) the observed one has probability
    (1 - level) / 2. The lower limit is 0 if a calibrated model explains the observed value. If the observed value is 0,
    the upper limit is the `level` quantile of the noise.

    A value smaller than noise alone usually shows is luck. It tells nothing about truths that the data could not have
    seen, so the upper limit is at least the one of the median of the noise (Cowan et al. 2011, power-constrained
    limits). Without this, it would be 0 for one calibrated model in 40.

    Args:
        value: The observed measure.
        directions: Where the truth may lie.
        level: Confidence level.
        most: The largest possible measure.
    """
    pairs = [_direction_limits(value, direction, level=level, most=most) for direction in directions]
    return min(most, *(low for low, _ in pairs)), min(most, max(high for _, high in pairs))


def _direction_limits(value: float, direction: Direction, *, level: float, most: float) -> tuple[float, float]:
    if direction.is_zero:
        return 0.0, max(0.0, float(np.quantile(direction.simulate(0.0), level)))
    tail = (1 - level) / 2

    simulate = functools.cache(direction.simulate)  # both searches begin with the same points
    typical = max(value, float(np.median(simulate(0.0))))

    def share_above(t: float) -> float:
        return float(np.mean(simulate(t) >= value))

    def share_above_typical(t: float) -> float:
        return float(np.mean(simulate(t) >= typical))

    top = 1.0
    # The bound `most` ends the loop: a resample without any wrong sample shows 0, whatever the truth.
    while share_above_typical(top) < 1 - tail and direction.size * top**direction.power < most:
        top *= 2
    low = 0.0 if share_above(0.0) > tail else crossing(share_above, tail, 0.0, top)
    high = crossing(share_above_typical, 1 - tail, 0.0, top)
    return float(direction.size * low**direction.power), float(direction.size * high**direction.power)


def paired_null(values: tuple[float, float], directions: tuple[Direction, Direction]) -> np.ndarray:
    """The distribution of the difference of two measures if their truths were equal, (resamples,).

    The common truth is the one whose mean simulated values add up to the observed values. So a difference that only
    comes from different biases (more bins in use, fewer samples per bin) is part of the distribution.
    """

    def mean(truth: float) -> float:
        return float(sum(np.mean(direction.simulate_value(truth)) for direction in directions))

    wanted = sum(values)
    common = 0.0 if mean(0.0) >= wanted else crossing(mean, wanted, 0.0, max(values))
    first, second = (direction.simulate_value(common) for direction in directions)
    return first - second


def crossing(
    function: Callable[[float], float], wanted: float, low: float, high: float, *, halvings: int = 20
) -> float:
    """Where an increasing step function reaches a value, by bisection."""
    for _ in range(halvings):
        middle = (low + high) / 2
        if function(middle) < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def two_sided_p_value(value: float, null: np.ndarray) -> float:
    """The share of a null distribution that is at least as far from its mean as the observed value."""
    center = float(null.mean())
    # The tolerance keeps rounding errors from counting as differences.
    above = int(np.count_nonzero(np.abs(null - center) >= abs(value - center) - 1e-12))
    return (1 + above) / (len(null) + 1)
