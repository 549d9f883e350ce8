"""Tails of sums over calibrated claims, against exact distributions, and tests that combine them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from refocal.stats import calibrated_sums
from refocal.stats.calibrated_sums import LEVELS, adjust_holm, combine, sum_levels, sum_p_values

ALL = np.ones((1, LEVELS), dtype=bool)
CLAIMS = {
    "even": lambda rng: rng.uniform(size=200),
    "rare": lambda rng: rng.uniform(0, 0.02, 300),
    "nearly certain": lambda rng: 1 - rng.uniform(0, 0.02, 300),
    "at both ends": lambda rng: rng.beta(0.1, 0.1, 500),
    "one probability": lambda _: np.full(20, 0.3),
    "very rare": lambda rng: rng.uniform(0, 1e-3, 200),
}


def exact_p_value(claims, hits):
    """Twice the smaller tail of the Poisson binomial distribution, by convolution."""
    mass = np.ones(1)
    for claim in claims:
        mass = np.convolve(mass, [1 - claim, claim])
    return min(1.0, 2 * min(mass[hits:].sum(), mass[: hits + 1].sum()))


@pytest.mark.parametrize("deviations", [-6, -4, -2, 2, 4, 6, 10])
@pytest.mark.parametrize("kind", CLAIMS)
def test_tails_are_those_of_the_exact_distribution(kind, deviations):
    claims = CLAIMS[kind](np.random.default_rng(0))
    spread = np.sqrt(np.sum(claims * (1 - claims)))
    hits = int(np.clip(round(claims.sum() + deviations * spread), 0, len(claims)))
    outcomes = np.zeros(len(claims))
    outcomes[np.argsort(-claims)[:hits]] = 1
    (found,) = sum_p_values(sum_levels(claims, outcomes, None), ALL)
    expected = exact_p_value(claims, hits)
    if expected < 0.2:
        assert found == pytest.approx(expected, rel=0.07)
    else:
        assert found > 0.1


def test_certain_claims_fail_if_they_come_false_and_tell_nothing_otherwise():
    claims = np.array([0.0, 1.0, 1.0])
    assert np.isnan(sum_p_values(sum_levels(claims, claims, None), ALL)[0])
    assert sum_p_values(sum_levels(claims, np.array([0.0, 1.0, 0.0]), None), ALL)[0] == 0
    mixed = np.array([0.0] + [0.5] * 100)
    outcomes = np.array([1.0] + [0.0, 1.0] * 50)
    groups = sum_levels(mixed, outcomes, None)
    p_values = sum_p_values(groups, calibrated_sums.group_levels(groups))
    assert combine(p_values, calibrated_sums.scale_shares()) == 0  # the group of certain claims sees the first outcome


def test_equal_weights_change_nothing():
    rng = np.random.default_rng(1)
    claims = rng.uniform(size=500)
    outcomes = (rng.random(500) < claims**1.3).astype(float)
    plain = sum_p_values(sum_levels(claims, outcomes, None), ALL)
    weighted = sum_p_values(sum_levels(claims, outcomes, np.full(500, 2.5)), ALL)
    np.testing.assert_allclose(weighted, plain, rtol=1e-9)


def test_weighted_sums_keep_their_level():
    rng = np.random.default_rng(2)
    found = []
    for _ in range(800):
        claims, weights = rng.uniform(size=300), rng.exponential(size=300)
        found.append(sum_p_values(sum_levels(claims, rng.random(300) < claims, weights), ALL)[0])
    assert 0.03 < np.mean(np.array(found) < 0.05) < 0.075


def test_groups_share_the_variance():
    rng = np.random.default_rng(3)
    claims = rng.uniform(size=20_000)
    sums = sum_levels(claims, rng.random(20_000) < claims, None)
    parts = np.where(calibrated_sums.group_levels(sums), sums.variance, 0.0).sum(axis=1)
    np.testing.assert_allclose(parts[:3] / sums.variance.sum(), [1, 0.5, 0.5], atol=0.06)
    np.testing.assert_allclose(parts[7:15] / sums.variance.sum(), 1 / 8, atol=0.06)


def test_combination_of_equal_p_values_is_that_value_and_one_small_one_counts_by_its_share():
    assert combine(np.full(5, 0.03), np.ones(5)) == pytest.approx(0.03)
    assert combine(np.array([1e-12, 0.5, 0.7, 0.4]), np.ones(4)) == pytest.approx(4e-12, rel=1e-3)
    assert combine(np.array([1e-200, 0.5]), np.ones(2)) == pytest.approx(2e-200, rel=1e-3)
    assert combine(np.array([0.0, 0.5]), np.ones(2)) == 0
    assert combine(np.array([np.nan, 0.2]), np.ones(2)) == pytest.approx(0.2)
    assert combine(np.array([np.nan]), np.ones(1)) == 1


def test_holm():
    np.testing.assert_allclose(adjust_holm(np.array([0.01, 0.04, 0.03])), [0.03, 0.06, 0.06])
    np.testing.assert_allclose(adjust_holm(np.array([0.5, 0.9])), [1.0, 1.0])


def test_the_detectable_error_is_seen_as_often_as_it_says():
    rng = np.random.default_rng(4)
    claims = np.tile(rng.uniform(0.2, 0.8, 400), 10)
    sums = sum_levels(claims, claims, None)
    error = calibrated_sums.find_detectable(sums, level=0.05, power=0.95)
    sides = np.where(calibrated_sums.group_levels(sums)[7:15], np.array([1, -1] * 4)[:, None], 0).sum(axis=0)
    shift = error * sides[calibrated_sums.find_levels(claims)]  # up and down from group to group
    seen = 0
    for _ in range(200):
        drawn = sum_levels(claims, rng.random(4000) < np.clip(claims + shift, 0, 1), None)
        p_values = sum_p_values(drawn, calibrated_sums.group_levels(drawn))
        seen += combine(p_values, calibrated_sums.scale_shares()) <= 0.05
    assert stats.binomtest(seen, 200, 0.95, alternative="less").pvalue > 0.001


def test_claims_that_rounding_puts_above_1():
    sums = sum_levels(np.array([1.0000002, 0.5]), np.array([1.0, 0.0]), None)
    assert (sums.variance >= 0).all()
