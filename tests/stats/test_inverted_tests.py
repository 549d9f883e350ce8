"""Limits and paired tests for normal noise, for which the answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm as normal

from refocal.stats import inverted_tests
from refocal.stats.inverted_tests import Direction, Evidence, bisect, limits, paired_p_value, two_sided_p_value

# Standard normal noise without randomness: the middles of 4,001 equally probable parts.
NOISE = normal.ppf((np.arange(4001) + 0.5) / 4001)


def linear(size=1.0, *, bias=0.0, scale=1.0):
    """Truths size * t with normal observations around them."""
    return Direction(lambda t: size * t, lambda t: size * t + scale * NOISE + bias)


def evidence(value, *directions, most=99.0, unseen=()):
    return Evidence(value, list(directions), list(unseen), most)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
def test_limits_of_a_normal_value(level):
    """The textbook interval value -+ z; 0 if noise alone explains the value; never above `most`."""
    z = normal.ppf((1 + level) / 2)
    assert limits(evidence(10.0, linear()), level=level) == pytest.approx((10 - z, 10 + z), rel=6e-3)
    assert limits(evidence(0.6 * z, linear()), level=level) == pytest.approx((0, 1.6 * z), rel=6e-3)
    assert limits(evidence(10.0, linear(), most=10.1), level=level)[1] == pytest.approx(10.1)
    # The widest of several directions counts.
    found = limits(evidence(10.0, linear(), linear(bias=0.5)), level=level)
    assert found == pytest.approx((9.5 - z, 10 + z), rel=6e-3)
    assert limits(evidence(10.0, linear(bias=0.5), linear()), level=level) == pytest.approx(found, rel=6e-3)


@pytest.mark.parametrize("size", [1e-2, 1e-6])
def test_limits_of_a_small_value_are_equally_exact(size):
    """They are exact however far the value lies below `most`."""
    z = normal.ppf(0.95)
    found = limits(evidence(size, linear(size, scale=0.1 * size)), level=0.9)
    assert found == pytest.approx((size * (1 - 0.1 * z), size * (1 + 0.1 * z)), rel=5e-3)


def test_limits_of_a_square():
    """The limits of (10 t)^2 are the squares of the limits of 10 t."""
    z = normal.ppf(0.95)
    square = Direction(lambda t: 100 * t**2, lambda t: (t * 10.0 + NOISE) ** 2)
    found = limits(evidence(100.0, square, most=999.0), level=0.9)
    assert found == pytest.approx(((10 - z) ** 2, (10 + z) ** 2), rel=1e-2)


def test_limits_of_a_step_function():
    """No event in 100 trials: the limit is the probability at which that happens 25 times in 1,000."""
    probability = (np.arange(1000) + 0.5) / 1000
    rare = Direction(lambda t: min(t, 1.0), lambda t: (probability >= (1 - min(t, 1.0)) ** 100).astype(float))
    nothing = Direction(lambda _: 0.0, lambda _: np.zeros(1000))
    low, high = limits(Evidence(0.0, [nothing], [rare], 1.0), level=0.95)
    assert low == 0
    assert high == pytest.approx(1 - 0.025 ** (1 / 100), rel=0.03)


def test_a_value_that_every_truth_explains_has_no_upper_limit():
    """Unless the model is surely not calibrated: then the largest truth in sight is the limit."""
    noise = np.linspace(-1, 1, 101)
    bounded = Direction(lambda t: min(t, 0.5), lambda t: 0.5 * min(t, 0.5) + 0.3 * noise)
    assert limits(Evidence(0.25, [bounded], [], 1.0), level=0.95) == (0, 1)
    assert limits(Evidence(0.5, [bounded], [], 1.0), level=0.95)[1] == pytest.approx(0.5)


def test_resamples_without_noise_tell_nothing():
    silent = Direction(lambda t: t, lambda t: np.full(100, t))
    assert limits(Evidence(0.3, [silent], [], 1.0), level=0.95) == (0, 1)


def test_unseen_directions_count_only_if_the_model_may_be_calibrated():
    z = normal.ppf(0.95)
    wide = linear(scale=5.0)
    assert limits(evidence(10.0, linear(), unseen=[wide]), level=0.9) == pytest.approx((10 - z, 10 + z), rel=6e-3)
    assert limits(evidence(1.0, linear(), unseen=[wide]), level=0.9) == pytest.approx((0, 1 + 5 * z), rel=6e-3)


def test_equal_truths_with_different_biases_do_not_differ():
    """The first model has a bias of 3, so equal truths differ by 3."""
    first, second = evidence(13.0, linear(bias=3.0)), evidence(10.0, Direction(lambda t: t, lambda t: t - NOISE))
    assert paired_p_value(first, second) > 0.9
    differing = first._replace(value=18.0)
    # The difference has standard deviation 2.
    assert paired_p_value(differing, second) == pytest.approx(2 * normal.sf(2.5), rel=0.1)


def test_a_truth_out_of_reach_is_added():
    bounded = Direction(lambda t: min(t, 1.0), lambda t: min(t, 1.0) + NOISE)
    nothing = Direction(lambda _: 0.0, lambda _: NOISE)
    for direction in (bounded, nothing):
        assert paired_p_value(evidence(10.0, direction), evidence(10.0, linear())) == 1
    assert paired_p_value(evidence(10.0, nothing), evidence(1.0, linear(scale=0.5))) < 1e-3


def test_bisection_and_p_values():
    assert bisect(lambda x: x**3 >= 8, 5.0, halvings=20) == pytest.approx(2, abs=5e-6)
    assert bisect(lambda x: x >= 3, 4.0, halvings=1) == 4
    assert two_sided_p_value(5.0, np.arange(10.0)) == pytest.approx(11 / 11)
    assert two_sided_p_value(9.0, np.arange(10.0)) == pytest.approx(3 / 11)


@pytest.mark.parametrize("quantile", [0.0, 0.01, 0.2, 0.5])
def test_a_value_below_the_noise_has_the_upper_limit_of_its_median(quantile):
    """Luck makes no interval short: at the smallest of all values, the limit would be 0."""
    noise = np.abs(np.random.default_rng(0).standard_normal((1000, 15)))
    middle = float(np.median(noise.mean(axis=1)))

    def limits_at(value):
        direction = Direction(lambda t: value * t, lambda t: np.mean(t * value + noise, axis=1))
        return limits(evidence(value, direction), level=0.95)

    low, high = limits_at(float(np.quantile(noise.mean(axis=1), quantile)))
    assert low == 0
    assert high == pytest.approx(limits_at(middle)[1], rel=1e-2)
    assert high > 0.2
    assert limits_at(1.5 * middle)[1] > high + 0.3


@pytest.mark.parametrize(
    "function",
    [
        lambda t: 3 * t - 1,
        lambda t: min(t, 0.3) - 0.29,
        lambda t: t**9 - 0.4,
        lambda t: np.floor(7 * t) - 3,
        lambda t: float(t >= 1e-9) - 0.5,
        lambda t: min(t, 0.0) - 1.0,  # never reached: the last place
        lambda t: t - 1,
    ],
)
@pytest.mark.parametrize("high", [1.0, 4.0])
def test_the_first_place_is_that_of_halvings(function, high):
    """In at most twice as many evaluations, and in few for a straight line."""
    places = []

    def count(t):
        places.append(t)
        return function(t / high)

    assert inverted_tests._find_first(count, high) == bisect(lambda t: function(t / high) >= 0, high, halvings=30)
    assert len(places) <= 62
    if function(0.5) - function(0.0) == function(1.0) - function(0.5):
        assert len(places) <= 32
