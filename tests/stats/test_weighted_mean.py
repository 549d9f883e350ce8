"""The weighted mean with its limits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from refocal.stats.weighted_mean import TWO_SIDED_95, estimate_mean


def test_limits_are_those_of_the_normal_distribution():
    values = np.random.default_rng(0).normal(size=50)
    mean, low, high = estimate_mean(values)
    expected = stats.norm.interval(0.95, loc=values.mean(), scale=values.std() / 50**0.5)
    assert (mean, low, high) == pytest.approx((values.mean(), *expected), rel=1e-6)


def test_equal_weights_change_nothing():
    values = np.random.default_rng(0).normal(size=50)
    assert estimate_mean(values, np.full(50, 3.0)) == pytest.approx(estimate_mean(values))


def test_a_weight_of_zero_drops_a_value():
    values = np.random.default_rng(0).normal(size=50)
    weights = np.where(np.arange(50) < 40, 1.0, 0.0)
    assert estimate_mean(values, weights) == pytest.approx(estimate_mean(values[:40]))


def test_the_mean_of_few_heavy_values_is_uncertain():
    """The variance of a weighted mean of independent values with variance 1 is the sum of the squared shares."""
    rng, weights = np.random.default_rng(0), np.array([5.0] * 20 + [1.0] * 20)
    draws = rng.normal(size=(4000, 40))
    means, lows, highs = np.array([estimate_mean(values, weights) for values in draws]).T
    assert means.std() == pytest.approx(np.sum((weights / weights.sum()) ** 2) ** 0.5, rel=0.05)
    assert np.mean((lows <= 0) & (highs >= 0)) == pytest.approx(0.94, abs=0.02)


def test_the_least_variance_decides_where_values_show_no_spread():
    mean, low, high = estimate_mean(np.full(100, 0.02), variances=np.full(100, 0.02 * 0.98))
    assert mean == pytest.approx(0.02)
    assert high - mean == pytest.approx(mean - low) == pytest.approx(TWO_SIDED_95 * (0.02 * 0.98 / 100) ** 0.5)
