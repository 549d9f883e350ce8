"""Simulated sums have the moments of labels that are drawn one by one.

The tests use 4,000 resamples: a mean is within 5 standard errors, a variance within 15 %.
"""

from __future__ import annotations

import numpy as np
import pytest

from refocal.stats.simulated_sums import SumSimulator, sum_columns

RESAMPLES = 4000


def made(rng, *, weighted):
    claim, column = rng.uniform(0.05, 0.95, 300), rng.integers(0, 4, 300)
    weight = (rng.uniform(0.8, 1.2, 300) if weighted else np.ones(300)) / 300
    columns = sum_columns(column, claim, rng.random(300) < claim, weight, size=4)
    tosses = rng.random((RESAMPLES, 300)) < claim
    hits = np.stack([tosses[:, column == k] @ weight[column == k] for k in range(4)], axis=1)
    return claim, column, weight, columns, hits


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("gap", [0.0, 0.2, -0.2])
def test_moments_of_labels_with_a_gap(weighted, gap):
    rng = np.random.default_rng(0)
    claim, column, weight, columns, hits = made(rng, weighted=weighted)
    found = SumSimulator(columns, hits, rng=rng).draw(np.full(4, gap))
    mean = (columns.claim / columns.weight)[column]
    frequency = claim * (1 - gap / mean) if gap >= 0 else 1 - (1 - claim) * (1 + gap / (1 - mean))
    np.testing.assert_allclose(
        np.bincount(column, weights=weight * (claim - frequency)), gap * columns.weight, atol=1e-12
    )
    variance = np.bincount(column, weights=weight**2 * frequency * (1 - frequency))
    np.testing.assert_array_less(np.abs(found.mean(axis=0) - gap * columns.weight), 5 * np.sqrt(variance / RESAMPLES))
    np.testing.assert_allclose(found.var(axis=0), variance, rtol=0.15)


def test_gaps_end_where_frequencies_do():
    rng = np.random.default_rng(0)
    *_, columns, hits = made(rng, weighted=False)
    simulator = SumSimulator(columns, hits, rng=rng)
    np.testing.assert_allclose(simulator.draw(np.full(4, 9.0)), np.tile(columns.claim, (RESAMPLES, 1)))
    np.testing.assert_allclose(
        simulator.draw(np.full(4, -9.0)), np.tile(columns.claim - columns.weight, (RESAMPLES, 1))
    )


def test_columns_keep_the_order_of_others():
    rng = np.random.default_rng(1)
    *_, columns, hits = made(rng, weighted=False)
    same = rng.standard_normal(RESAMPLES)
    found = SumSimulator(columns, hits, rng=rng, like=np.stack([same, same, -same, same], axis=1)).draw(np.full(4, 0.1))
    correlation = np.corrcoef(found.T)
    assert correlation[0, 1] > 0.98
    assert correlation[0, 2] < -0.98


@pytest.mark.parametrize(("mass_share", "expected"), [(1.0, 1.0), (0.5, 0.25), (0.0, 0.0)])
def test_other_rows_move_the_truth(mass_share, expected):
    """Masses vary like Poisson counts, given their total."""
    rng = np.random.default_rng(2)
    *_, columns, hits = made(rng, weighted=False)
    gap = np.array([0.1, 0.0, 0.0, 0.0])
    found = SumSimulator(columns, hits, rng=rng, mass_share=mass_share).draw_truth(gap)[:, 0]
    share = columns.weight[0]
    assert found.mean() == pytest.approx(0.1 * share, rel=0.01)
    assert found.var() == pytest.approx(expected * 0.01 * share * (1 - share) / 300, rel=0.15)
