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


def test_certain_claims_among_tiny_ones():
    claims = np.array([1.0, 1.0, 1e-40, 1e-300])
    assert sum_p_values(sum_levels(claims, np.array([1.0, 0.0, 0.0, 0.0]), None), ALL)[0] == 0
    assert sum_p_values(sum_levels(claims, np.array([1.0, 1.0, 0.0, 0.0]), None), ALL)[0] == 1
    # claims of 0.1 add up to 1 only within rounding, which is far from 0 in units of the tiny variance
    weights = np.array([0.1, 0.2, 0.3, 1e-3])
    found = sum_p_values(sum_levels(claims[[0, 1, 0, 3]], np.array([1.0, 1.0, 1.0, 0.0]), weights), ALL)[0]
    assert found == 1


@pytest.mark.parametrize("heavy", [1.0, 30.0, 300.0])
@pytest.mark.parametrize("hits", [5, 11, 13])
def test_a_heavy_claim_that_is_nearly_certain_changes_nothing(heavy, hits):
    """It has next to no variance, so the sum has the distribution of the other claims, whatever its weight."""
    claims, weights = np.r_[1e-9, np.full(60, 0.3)], np.r_[heavy, np.ones(60)]
    (found,) = sum_p_values(sum_levels(claims, np.r_[0, np.arange(60) < hits], weights), ALL)
    assert found == pytest.approx(2 * stats.binom.cdf(hits, 60, 0.3), rel=0.01)


def test_very_unequal_weights_raise_no_false_alarms():
    rng, alarms = np.random.default_rng(0), 0
    for _ in range(200):
        claims, weights = rng.beta(0.1, 0.1, 200), np.exp(2 * rng.standard_normal(200))
        sums = sum_levels(claims, rng.random(200) < claims, weights)
        p_values = sum_p_values(sums, calibrated_sums.group_levels(sums))
        alarms += combine(p_values, calibrated_sums.scale_shares()) <= 0.05
    assert alarms <= 10  # 5% of 200


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


def test_weighted_tails_are_those_of_the_exact_distribution():
    claims = np.repeat([0.1, 0.3, 0.7], 40)
    weights = np.tile([1.0, 1.0, 3.0], 40)
    mass = np.ones(1)
    for claim, weight in zip(claims, weights.astype(int), strict=True):
        step = np.zeros(weight + 1)
        step[[0, -1]] = 1 - claim, claim
        mass = np.convolve(mass, step)
    spread = np.sqrt((weights**2 * claims * (1 - claims)).sum())
    for deviations in (-4, -3, -2, 2, 3, 4):
        hits = round((weights * claims).sum() + deviations * spread)
        exact = 2 * min(mass[hits:].sum(), mass[: hits + 1].sum())
        outcomes = np.full(120, hits / weights.sum())  # their weighted sum alone matters
        (found,) = sum_p_values(sum_levels(claims, outcomes, weights), ALL)
        assert 0.9 < found / exact < 1.7  # weights of a level count as equal


def test_a_claim_of_0_that_came_true_in_a_group_where_all_came_true_is_impossible():
    claims = np.array([0.0] + [0.5] * 8)
    (found,) = sum_p_values(sum_levels(claims, np.ones(9), None), ALL)
    assert found == 0
    (found,) = sum_p_values(sum_levels(claims[1:], np.ones(8), None), ALL)
    assert found == pytest.approx(2 * 0.5**8, rel=0.1)


def test_below_one_standard_deviation_the_normal_distribution_will_do():
    claims = np.full(100, 0.5)
    for hits in (47, 53):
        (found,) = sum_p_values(sum_levels(claims, np.arange(100) < hits, None), ALL)
        assert found == pytest.approx(2 * stats.norm.sf(3 / 5), rel=1e-12)
    (found,) = sum_p_values(sum_levels(claims, np.arange(100) < 50, None), ALL)
    assert found == 1


def test_levels_are_equal_steps_of_log_odds():
    odds = np.array([-40.0, -16.0, -15.76, -15.74, -0.01, 0.01, 0.24, 0.26, 15.74, 15.76, 40.0])
    levels = calibrated_sums.find_levels(1 / (1 + np.exp(-odds)))
    assert levels.tolist() == [0, 0, 0, 1, 63, 64, 64, 65, 126, 127, 127]
    assert calibrated_sums.find_levels(np.array([0.0, 1.0])).tolist() == [0, 127]


def test_sums_of_levels():
    claims, outcomes, weights = np.array([0.2, 0.2, 0.7]), np.array([1.0, 0.0, 1.0]), np.array([2.0, 3.0, 4.0])
    sums = sum_levels(claims, outcomes, weights)
    low, high = calibrated_sums.find_levels(claims)[[0, 2]]
    np.testing.assert_allclose([part[low] for part in sums], [5, 13, 1.0, 2])
    np.testing.assert_allclose([part[high] for part in sums], [4, 16, 2.8, 4])
    np.testing.assert_allclose(sums.variance[[low, high]], [13 * 0.16, 16 * 0.21])
    np.testing.assert_allclose(sums.residual[[low, high]], [1.0, 1.2])
    assert sum(part.sum() for part in sums) == pytest.approx(5 + 13 + 1 + 2 + 4 + 16 + 2.8 + 4)


def test_groups_are_those_of_the_cumulated_variance():
    claims = np.repeat([0.1, 0.3, 0.5, 0.7], [100, 100, 100, 100])
    sums = sum_levels(claims, claims, None)
    variance = 100 * claims[::100] * (1 - claims[::100])
    middle = (np.cumsum(variance) - variance / 2) / variance.sum()
    members = calibrated_sums.group_levels(sums)[:, calibrated_sums.find_levels(claims[::100])]
    start = 0
    for scale in (1, 2, 4, 8):
        expected = np.floor(middle * scale)[None, :] == np.arange(scale)[:, None]
        np.testing.assert_array_equal(members[start : start + scale], expected)
        start += scale
    assert not members[15:].any()
    ends = calibrated_sums.group_levels(sums)[15:]
    assert [row.nonzero()[0].tolist() for row in ends] == [[0], [LEVELS - 1]]


def test_shares_of_the_scales():
    shares = calibrated_sums.scale_shares()
    assert shares.sum() == pytest.approx(1)
    np.testing.assert_allclose(shares, [0.2, *[0.1] * 2, *[0.05] * 4, *[0.025] * 8, 0.1, 0.1])


def test_the_combination_is_the_mean_of_cauchy_quantiles():
    p_values, shares = np.array([[0.02, 0.3, 0.8], [0.9, 0.999, 1.0]]), np.array([1.0, 2.0, 1.0])
    quantiles = stats.cauchy.isf(np.minimum(p_values, 0.99))  # 1 is kept from hiding all others
    expected = stats.cauchy.sf(quantiles @ shares / 4)
    np.testing.assert_allclose(combine(p_values, shares), expected, rtol=1e-9)
    for p_value in (2e-9, 4e-9):  # on both sides of the change to 1 / (pi p)
        assert combine(np.array([p_value]), np.ones(1)) == pytest.approx(p_value, rel=1e-6)


def test_the_detectable_error_of_two_claims_by_hand():
    claims = np.repeat([0.2, 0.8], 50)
    found = calibrated_sums.find_detectable(sum_levels(claims, claims, None), level=0.05, power=0.9)
    # one group of all samples, or from two groups on one for each claim
    groups = {1: [16.0], 2: [8.0, 8.0], 4: [8.0, 8.0], 8: [8.0, 8.0]}
    expected = []
    for scale, variances in groups.items():
        limit = stats.norm.isf(0.8 * 0.05 / (2 * 4 * scale))
        each = 1 - 0.1 ** (1 / len(variances))
        expected.append((limit + stats.norm.ppf(each)) * np.sqrt(variances).sum() / 100)
    assert found == pytest.approx(max(expected))
    certain = sum_levels(np.array([0.0, 1.0]), np.array([0.0, 1.0]), None)
    assert calibrated_sums.find_detectable(certain, level=0.05, power=0.9) == 0
