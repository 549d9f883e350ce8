"""Limits and paired tests for normal noise, for which the answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm as normal

from refocal.stats.inverted_tests import Direction, crossing, limits, norm_directions, paired_null

# Standard normal noise without randomness: the middles of 4,001 equally probable parts.
NOISE = normal.ppf((np.arange(4001) + 0.5) / 4001)


def length(sums):
    return np.sqrt(np.sum(sums**2, axis=-1))


def linear_direction(value):
    """A direction of size `value` with normal observations around it, without an absolute value."""
    return Direction(value, lambda t: t * value + NOISE)


@pytest.mark.parametrize("power", [1, 2])
def test_without_noise_every_value_is_simulated_exactly(power):
    center = np.array([3.0, 0.0, -4.0])
    for direction in norm_directions(center, np.zeros((5, 3)), norm=length, power=power):
        assert direction.size == pytest.approx(5.0**power)
        for value in (0.0, 0.3, 5.0, 70.0):
            np.testing.assert_allclose(direction.simulate_value(value), np.full(5, value), rtol=1e-12)
    found = limits(
        5.0**power, norm_directions(center, np.zeros((5, 3)), norm=length, power=power), level=0.9, most=99.0
    )
    assert found == pytest.approx((5.0**power, 5.0**power), rel=1e-4)


def test_the_second_direction_has_the_sums_beyond_two_standard_errors():
    deviations = np.stack([NOISE, 0.1 * NOISE, 3 * NOISE], axis=1)
    whole, clear = norm_directions(np.array([1.9, 0.5, -7.0]), deviations, norm=length)
    assert whole.size == pytest.approx(length(np.array([1.9, 0.5, 7.0])))
    assert clear.size == pytest.approx(length(np.array([0.5, 7.0])))
    # If no sum is, it has the largest.
    for largest in (1.9, -1.9):
        whole, clear = norm_directions(np.array([largest, 0.1, 0.5]), deviations, norm=length)
        assert clear.size == pytest.approx(1.9)
        np.testing.assert_allclose(clear.simulate(2.0)[0], length(np.array([2 * largest, 0, 0]) + deviations[0]))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_limits_of_a_normal_value(level):
    """The textbook interval value -+ z; 0 if noise alone explains the value; never above `most`."""
    z = normal.ppf((1 + level) / 2)
    assert limits(10.0, [linear_direction(10.0)], level=level, most=99.0) == pytest.approx((10 - z, 10 + z), abs=5e-3)
    assert limits(0.6 * z, [linear_direction(0.6 * z)], level=level, most=99.0) == pytest.approx((0, 1.6 * z), abs=5e-3)
    assert limits(10.0, [linear_direction(10.0)], level=level, most=10.1)[1] == pytest.approx(10.1)
    # The widest of several directions counts.
    shifted = Direction(10.0, lambda t: t * 10.0 + NOISE + 0.5)
    found = limits(10.0, [linear_direction(10.0), shifted], level=level, most=99.0)
    assert found == pytest.approx((9.5 - z, 10 + z), abs=5e-3)


@pytest.mark.parametrize("size", [1e-2, 1e-6])
def test_limits_of_a_small_value_are_equally_exact(size):
    """They are exact however far the value lies below `most`."""
    z = normal.ppf(0.95)
    direction = Direction(size, lambda t: size * (t + 0.1 * NOISE))
    expected = (size * (1 - 0.1 * z), size * (1 + 0.1 * z))
    assert limits(size, [direction], level=0.9, most=1.0) == pytest.approx(expected, rel=1e-3)


def test_limits_of_a_square():
    """The limits of (10 t)^2 are the squares of the limits of 10 t."""
    z = normal.ppf(0.95)
    square = Direction(100.0, lambda t: (t * 10.0 + NOISE) ** 2, power=2)
    assert limits(100.0, [square], level=0.9, most=999.0) == pytest.approx(((10 - z) ** 2, (10 + z) ** 2), rel=1e-3)


def test_limits_of_a_zero_measure():
    nothing = Direction(0.0, lambda _: np.abs(NOISE))
    assert nothing.is_zero
    assert Direction(1e-12, lambda _: NOISE).is_zero
    assert not Direction(1e-11, lambda _: NOISE).is_zero
    low, high = limits(0.0, [nothing], level=0.9, most=99.0)
    assert low == 0
    assert high == pytest.approx(normal.ppf(0.95), abs=2e-3)
    np.testing.assert_allclose(nothing.simulate_value(0.5), 0.5 + np.abs(NOISE))


def test_a_paired_null_includes_the_difference_of_biases():
    """The first model has a bias of 1, so equal truths differ by 1. The common truth fits the mean of both values."""
    seen = []

    def biased(t):
        seen.append(t)
        return 2 * t + NOISE + 1

    first, second = Direction(2.0, biased), linear_direction(4.0)
    difference = paired_null((5.0, 4.0), (first, second))
    np.testing.assert_allclose(difference, np.ones(len(NOISE)), atol=1e-12)
    assert seen[-1] * 2 == pytest.approx(4.0, abs=1e-4)  # (v + 1) + v = 5 + 4
    paired_null((2.0, 0.5), (first, second))
    assert seen[-1] * 2 == pytest.approx(0.75, abs=1e-4)
    paired_null((0.2, 0.3), (first, second))
    assert seen[-1] == 0  # the bias alone is larger than the observed values


def test_crossing_is_accurate_to_a_millionth_of_the_interval():
    assert crossing(lambda x: x**3, 8.0, 0.0, 5.0) == pytest.approx(2, abs=5e-6)
    assert crossing(lambda x: x, 3.0, 2.0, 6.0, halvings=0) == 4
    assert crossing(lambda x: x, 3.0, 2.0, 6.0, halvings=1) == 3


@pytest.mark.parametrize("quantile", [0.0, 0.01, 0.2, 0.5])
def test_a_value_below_the_noise_has_the_upper_limit_of_its_median(quantile):
    """Luck makes no interval short: at the smallest of all values, the limit would be 0."""
    noise = np.abs(np.random.default_rng(0).standard_normal((1000, 15)))
    middle = float(np.median(noise.mean(axis=1)))

    def limits_at(value):
        return limits(value, [Direction(value, lambda t: np.mean(t * value + noise, axis=1))], level=0.95, most=9.0)

    low, high = limits_at(float(np.quantile(noise.mean(axis=1), quantile)))
    assert low == 0
    assert high == pytest.approx(limits_at(middle)[1], rel=1e-3)
    assert high > 0.2
    assert limits_at(1.5 * middle)[1] > high + 0.3
