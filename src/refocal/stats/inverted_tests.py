"""Confidence limits and a paired test for measures that noise makes larger, by inverting bootstrap tests.

Suppose the truth lies at t times a direction, and the noise is as resampled. Then the measure's value for each t is
known, and so is the distribution of what would be observed: the upward bias is part of it and cancels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Norm = Callable[[np.ndarray], np.ndarray]

_NOTHING = 1e-12  # a measure up to this size is rounding


class Ray(NamedTuple):
    """Possible truths along one direction."""

    size: float  # the measure at t = 1; at t it is size t^power
    observed: Callable[[float], np.ndarray]  # what resamples show where the truth is at t, (resamples,)
    power: int = 1

    def at(self, value: float) -> np.ndarray:
        """What resamples show where the measure has this value."""
        if self.is_nothing:  # there is no direction to go: the value comes on top of the noise
            return value + self.observed(0.0)
        return self.observed((value / self.size) ** (1 / self.power))

    @property
    def is_nothing(self) -> bool:
        """Whether nothing was found, so that a truth has no direction."""
        return self.size <= _NOTHING


def rays_of_norm(center: np.ndarray, deviations: np.ndarray, *, norm: Norm, power: int = 1) -> list[Ray]:
    """Rays for norm(sums)^power, where sums were `center` and resamples deviated from it by `deviations`.

    How large the bias is depends on the direction of the true sums, which is not known. Two are tried: all the observed
    sums, and only those beyond two standard errors, the rest being noise.
    """
    clear = np.where(np.abs(center) > 2 * deviations.std(axis=0), center, 0.0)
    if not clear.any():
        clear = np.where(np.abs(center) == np.abs(center).max(), center, 0.0)

    def ray(direction: np.ndarray) -> Ray:
        return Ray(float(norm(direction)) ** power, lambda t: norm(t * direction + deviations) ** power, power)

    return [ray(center), ray(clear)]


def limits(found: float, rays: list[Ray], *, level: float, most: float) -> tuple[float, float]:
    """Confidence limits, the widest of all rays (Carpenter 1999).

    They are those truths under which a value as large as (as small as) the found one has a probability of
    (1 - level) / 2; where no miscalibration at all explains what was found, the lower limit is 0. Where nothing was
    found, the upper limit is what noise shows with a probability of `level`. None is above `most`.
    """
    of_rays = [_limits(found, ray, level=level, most=most) for ray in rays]
    return min(most, *(low for low, _ in of_rays)), min(most, max(high for _, high in of_rays))


def _limits(found: float, ray: Ray, *, level: float, most: float) -> tuple[float, float]:
    if ray.is_nothing:
        return 0.0, max(0.0, float(np.quantile(ray.observed(0.0), level)))
    tail = (1 - level) / 2

    @functools.cache  # both searches begin with the same points
    def share_above(t: float) -> float:
        return float(np.mean(ray.observed(t) >= found))

    top = 1.0
    # resamples that lack all the samples that are wrong show nothing, whatever the truth
    while share_above(top) < 1 - tail and ray.size * top**ray.power < most:
        top *= 2
    low = 0.0 if share_above(0.0) > tail else crossing(share_above, tail, 0.0, top)
    high = crossing(share_above, 1 - tail, 0.0, top)
    return float(ray.size * low**ray.power), float(ray.size * high**ray.power)


def paired_null(found: tuple[float, float], rays: tuple[Ray, Ray]) -> np.ndarray:
    """The distribution of the difference of two values if the truths were equal, (resamples,).

    Their common value is the one at which the mean of both is what was found, so that a difference that comes from
    different biases alone (more bins in use, fewer samples in each) is part of the distribution.
    """

    def mean(value: float) -> float:
        return float(sum(np.mean(ray.at(value)) for ray in rays))

    wanted = sum(found)
    common = 0.0 if mean(0.0) >= wanted else crossing(mean, wanted, 0.0, max(found))
    first, second = (ray.at(common) for ray in rays)
    return first - second


def crossing(
    function: Callable[[float], float], wanted: float, low: float, high: float, *, halvings: int = 20
) -> float:
    """Where a growing step function reaches a value, by bisection."""
    for _ in range(halvings):
        middle = (low + high) / 2
        if function(middle) < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2
