"""The number of samples behind weighted rows."""

from __future__ import annotations

import numpy as np
import pytest

from refocal.stats.sample_counts import WeightSums, count_samples


def test_whole_numbers_count_repetitions():
    weights = np.array([2.0, 0.0, 3.0])
    assert WeightSums.of(weights).samples == 5
    assert count_samples(weights) is weights


@pytest.mark.parametrize("factor", [1e-6, 0.3, 1e6, 1e60])
def test_other_weights_are_relative(factor):
    weights = np.random.default_rng(0).random(50)
    kish = weights.sum() ** 2 / (weights**2).sum()
    scaled = count_samples(factor * weights)
    assert scaled.sum() == pytest.approx(kish, rel=1e-12)
    np.testing.assert_allclose(scaled, count_samples(weights), rtol=1e-12)
    np.testing.assert_allclose(count_samples(scaled), scaled, rtol=1e-12)


def test_kish_counts_the_samples_whose_mean_is_as_precise():
    """The variance of a weighted mean of independent values of variance 1 is 1 / n."""
    weights = np.array([0.5, 1.0, 2.5])
    values = np.random.default_rng(0).standard_normal((200_000, 3))
    variance = np.var(values @ weights / weights.sum())
    assert WeightSums.of(weights).samples == pytest.approx(1 / variance, rel=0.02)


def test_parts_add_up():
    weights = np.random.default_rng(0).choice([0.0, 1.0, 2.5], 40)
    first, second = WeightSums.of(weights[:15]), WeightSums.of(weights[15:])
    assert first.merge(second).samples == pytest.approx(WeightSums.of(weights).samples)
    whole, broken = WeightSums.of(np.array([1.0, 2.0])), WeightSums.of(np.array([0.5]))
    assert (whole.merge(whole).whole, whole.merge(broken).whole) == (True, False)


def test_weights_of_no_rows():
    assert WeightSums.of(np.zeros(0)).samples == 0
    assert count_samples(np.zeros(0)).shape == (0,)
