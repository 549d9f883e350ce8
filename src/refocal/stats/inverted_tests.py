"""Confidence limits and a paired test for measures that noise biases upward, by inverting simulated tests.

Assume that the truth lies at t in a known direction. Then both the true value and the distribution of the observed
value are known for each t. The upward bias is part of that distribution, so it cancels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

NormFunction = Callable[[np.ndarray], np.ndarray]  # sums (..., L) -> norms (...)

_ROUNDING = 1e-12  # a measure up to this size is rounding error
_TOLERANCE = 1e-9  # relative; simulated values that differ less from the observed one are equal to it
_HALVINGS = 6
_STEPS = 20
_NO_NOISE = 1e-6  # smaller differences between resamples come from rounding and from stand-ins for empty cells
_DOUBLINGS = 40
_PARTS = 1 << 30


class Direction(NamedTuple):
    """Possible truths along one direction, at t >= 0; t = 0 is a calibrated model."""

    truth: Callable[[float], float]  # t -> the true measure, which does not decrease
    simulate: Callable[[float], np.ndarray]  # t -> the values that samples show if the truth is at t, (resamples,)

    @property
    def is_zero(self) -> bool:
        """Whether the direction leads nowhere."""
        return self.truth(1.0) <= _ROUNDING

    def place(self, value: float) -> float:
        """The t at which the truth is `value`, or the last one if no truth is as large."""
        if self.truth(0.0) >= value:
            return 0.0
        return _find_first(lambda t: self.truth(t) - value, self.find_top(lambda t: self.truth(t) >= value))

    def find_top(self, reached: Callable[[float], bool]) -> float:
        """A t at which the condition holds, or at which the truth does not grow any more."""
        top = 1.0
        for _ in range(_DOUBLINGS):
            if reached(top) or self.truth(2 * top) <= self.truth(top) * (1 + _TOLERANCE):
                break
            top *= 2
        return top


class Evidence(NamedTuple):
    """An observed measure and what it says about the truth."""

    value: float
    directions: Sequence[Direction]  # where the truth may lie
    unseen: Sequence[Direction]  # where it may also lie if a calibrated model explains the value
    most: float  # the largest possible measure


def limits(evidence: Evidence, *, level: float) -> tuple[float, float]:
    """Confidence limits, the widest over all directions (Carpenter 1999).

    The limits are the truths under which a value as large as (as small as) the observed one has probability
    (1 - level) / 2. The lower limit is 0 if a calibrated model explains the observed value.

    A value smaller than noise alone usually shows is luck. It tells nothing about truths that the data could not have
    seen, so the upper limit is at least the one of the median of the noise (Cowan et al. 2011, power-constrained
    limits). Without this, it would be 0 for one calibrated model in 40.
    """
    tail = (1 - level) / 2
    value = evidence.value
    null = evidence.directions[0].simulate(0.0)  # a calibrated model is the same in all directions
    every = [_Search(direction, null) for direction in evidence.directions]
    directions = [search for search in every if not search.direction.is_zero]
    noise = max(float(np.ptp(null)), float(np.ptp(every[0].simulate(1.0))))
    if not evidence.unseen and noise <= _NO_NOISE * value:  # resamples that are all alike tell nothing
        return 0.0, evidence.most
    low = 0.0
    if directions and np.mean(null >= value * (1 - _TOLERANCE)) <= tail:
        low = np.inf
        for search in directions:
            low = min(low, search.low(value, tail=tail, known=low))
    if low == 0:
        directions += [_Search(direction, null) for direction in evidence.unseen if not direction.is_zero]
    typical = max(value, float(np.median(null)))
    high = -np.inf
    for search in directions:
        high = max(high, search.high(typical, tail=tail, known=high))
    if low == 0 and all(search.is_exhausted for search in directions):  # no truth in sight contradicts the value
        high = evidence.most
    return min(evidence.most, low), min(evidence.most, high)


class _Search:
    """The search for limits along a direction; simulations are kept."""

    def __init__(self, direction: Direction, null: np.ndarray) -> None:
        self.direction = direction
        self.simulate = functools.cache(lambda t: null if t == 0 else direction.simulate(t))
        self.is_exhausted = False  # whether even the largest truth was not too large

    def low(self, value: float, *, tail: float, known: float) -> float:
        """The smallest truth that shows the value or more with probability `tail`; infinity if it is above `known`."""

        def excess(t: float) -> float:
            values = self.simulate(t)
            return _order_statistic(values, math.ceil((len(values) - 1) * (1 - tail))) - value * (1 - _TOLERANCE)

        if np.isfinite(known) and excess(self.direction.place(known)) < 0:
            return np.inf
        return self.direction.truth(_bracket(excess, self.direction.find_top(lambda t: excess(t) >= 0))[0])

    def high(self, value: float, *, tail: float, known: float) -> float:
        """The largest truth that shows the value or less with probability `tail`, or anything below `known`."""

        def excess(t: float) -> float:
            values = self.simulate(t)
            smallest = _order_statistic(values, math.floor((len(values) - 1) * tail))
            return smallest - value * (1 + _TOLERANCE) - _ROUNDING

        if np.isfinite(known) and excess(self.direction.place(known)) > 0:
            return -np.inf
        top = self.direction.find_top(lambda t: excess(t) > 0)
        self.is_exhausted = excess(top) <= 0
        return self.direction.truth(top if self.is_exhausted else _bracket(excess, top)[1])


def _find_first(function: Callable[[float], float], high: float) -> float:
    """The first of 2^30 equal steps from 0 to `high` at which a rising function is not negative, or the last one.

    It is negative at 0. The search is by false position, with a halving after each step that did not halve the rest:
    functions that are nearly linear need few evaluations.
    """
    first, last = 0, _PARTS
    at_first, at_last = function(0.0), function(high)
    side, halve = 0, False
    while last - first > 1:
        rest = last - first
        share = 0.5 if halve or at_last < 0 else at_first / (at_first - at_last)
        middle = first + min(max(math.ceil(share * rest), 1), rest - 1)
        found = function(high * middle / _PARTS)
        if found >= 0:
            last, at_last = middle, found
            at_first = at_first / 2 if side == 1 else at_first
            side = 1
        else:
            first, at_first = middle, found
            at_last = at_last / 2 if side == -1 else at_last
            side = -1
        halve = last - first > rest // 2
    return high * last / _PARTS


def _order_statistic(values: np.ndarray, index: int) -> float:
    """The value at an index of the sorted values, without sorting all of them."""
    return float(np.partition(values, index)[index])


def _bracket(function: Callable[[float], float], high: float) -> tuple[float, float]:
    """Two places around the zero of a rising function of t >= 0, by false position; it is positive at `high`."""
    low, at_low, at_high = 0.0, function(0.0), function(high)
    if at_low >= 0:
        return 0.0, 0.0
    side, halve = 0, False
    for _ in range(_STEPS):
        width = high - low
        middle = (low + high) / 2 if halve else (low * at_high - high * at_low) / (at_high - at_low)
        found = function(middle)
        if found >= 0:
            high, at_high = middle, found
            at_low = at_low / 2 if side == 1 else at_low
            side = 1
        else:
            low, at_low = middle, found
            at_high = at_high / 2 if side == -1 else at_high
            side = -1
        halve = high - low > width / 2  # a step function misleads the straight line
        if high - low < 4e-3 * high:
            break
    return low, high


def paired_p_value(first: Evidence, second: Evidence) -> float:
    """The p-value of the hypothesis that two measures have the same truth, from simulations that belong together.

    The common truth is the one whose mean simulated values add up to the observed values. So a difference that only
    comes from different biases (more bins in use, fewer samples per bin) is part of the distribution. The p-value is
    the largest one over the directions in which the truths may lie.
    """
    pairs = zip(first.directions, second.directions, strict=True)
    return max(_paired_p_value((first.value, second.value), pair) for pair in pairs)


def _paired_p_value(values: tuple[float, float], directions: tuple[Direction, Direction]) -> float:
    def simulate(truth: float) -> list[np.ndarray]:
        places = [0.0 if direction.is_zero else direction.place(truth) for direction in directions]
        # What a direction cannot reach is added.
        return [
            direction.simulate(place) + truth - direction.truth(place)
            for direction, place in zip(directions, places, strict=True)
        ]

    def is_large(truth: float) -> bool:
        expected = sum(float(np.mean(part)) for part in simulate(truth))
        return expected >= sum(values) * (1 - _TOLERANCE) - _ROUNDING

    common = 0.0 if is_large(0.0) else bisect(is_large, max(values), halvings=_HALVINGS)
    one, two = simulate(common)
    return two_sided_p_value(values[0] - values[1], one - two)


def bisect(condition: Callable[[float], bool], high: float, *, halvings: int) -> float:
    """The least t in [0, high] from which on a condition holds; it may fail at 0 and is taken to hold at `high`."""
    low = 0.0
    for _ in range(halvings):
        middle = (low + high) / 2
        if condition(middle):
            high = middle
        else:
            low = middle
    return high


def two_sided_p_value(value: float, null: np.ndarray) -> float:
    """The share of a null distribution that is at least as far from its mean as the observed value."""
    center = float(null.mean())
    # The tolerance keeps rounding errors from counting as differences.
    above = int(np.count_nonzero(np.abs(null - center) >= abs(value - center) - 1e-12))
    return (1 + above) / (len(null) + 1)
