"""Second opinions: verdicts against the papers, confirmed by other means than the checks."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
from scipy.optimize import minimize

import reference
import refocal
from refocal_lab.claims.kimura2024 import bound_frequency
from refocal_lab.claims.kimura2024_curvature import trace_estimates
from refocal_lab.claims.komisarenko2024_map import _jacobian_violation
from refocal_lab.claims.mukhoti2020_tables import weight_norms


@pytest.mark.parametrize(
    ("row", "gamma"), [((0.3, 0.3, 0.3, 0.1), 0.05), ((0.333, 0.333, 0.333, 0.001), 1.0), ((0.11,) * 9 + (0.01,), 0.5)]
)
def test_counterexamples_to_rising_confidence_in_sixty_digits(row, gamma):
    mapped = reference.mp_log_posterior([mp.log(mp.mpf(str(v))) for v in row], gamma=gamma)
    assert mp.exp(mapped[0]) < row[0] - 1e-6


def test_the_risk_minimizer_is_overconfident_there():
    """Minimize the focal risk with a general optimizer, without the map."""
    eta = refocal.posterior(np.array([0.333, 0.333, 0.333, 0.001]), gamma=1)

    def risk(z):
        log_p = z - np.logaddexp.reduce(z)
        return -np.sum(eta * -np.expm1(log_p) * log_p)

    found = minimize(risk, np.log(eta), method="BFGS", options={"gtol": 1e-12}).x
    scores = np.exp(found - np.logaddexp.reduce(found))
    assert scores.max() > eta.max() + 5e-6


def test_three_classes_never_lose_confidence_on_a_dense_grid():
    a, b = np.meshgrid(np.linspace(1 / 3, 1, 401), np.linspace(0, 0.5, 401))
    rows = np.stack([a, b, 1 - a - b], axis=-1).reshape(-1, 3)
    rows = rows[(rows.min(axis=1) > 1e-9) & (rows[:, 0] >= rows[:, 1:].max(axis=1))]
    for gamma in (0.001, 0.03, 0.3, 1.0, 3.0, 10.0):
        assert np.max(rows[:, 0] - refocal.posterior(rows, gamma=gamma)[:, 0]) < 1e-12


@pytest.mark.parametrize("gamma", [-0.95, -0.5])
def test_the_jacobian_of_the_map_has_the_sign_of_its_formula(gamma):
    rng = np.random.default_rng(0)
    for row in rng.dirichlet([0.5, 0.5, 0.5, 0.5], 50):
        if row.min() < 1e-4:
            continue
        step = 1e-6 * row.min()
        sides = [
            [refocal.posterior(row + sign * step * (np.eye(4)[i] - np.eye(4)[3]), gamma=gamma) for sign in (1, -1)]
            for i in range(3)
        ]
        jacobian = np.array([(up - down)[:3] / (2 * step) for up, down in sides])
        assert np.sign(np.linalg.det(jacobian)) == -np.sign(_jacobian_violation(row[None], gamma))[0] == 1


def test_negative_gamma_maps_distinct_scores_to_distinct_posteriors():
    p = np.linspace(1e-6, 1 - 1e-6, 100_001)
    for gamma in (-0.99, -0.9, -0.5, -0.1):
        assert np.all(np.diff(refocal.posterior(np.stack([p, 1 - p], axis=1), gamma=gamma)[:, 0]) > 0)


def test_the_entropy_bound_needs_every_bit_of_entropy():
    """For gamma near 0, two classes and a one-hot posterior, the bound approaches equality and never crosses it."""
    x = np.concatenate([np.geomspace(1e-12, 0.5, 400), 1 - np.geomspace(1e-12, 0.5, 400)])
    entropy = -x * np.log(x) - (1 - x) * np.log1p(-x)
    for gamma in (1e-3, 0.3, 0.7, 1.0, 4.0):
        assert np.all(-np.log(x) * np.expm1(gamma * np.log1p(-x)) + gamma * entropy > 0)


def test_the_gradient_of_focal_loss_vanishes_although_the_paper_says_it_diverges():
    p = 1 - np.geomspace(1e-12, 1e-3, 10)
    for gamma in (0.1, 0.25, 0.4):
        slope = refocal.phi(p, gamma=gamma) / p
        assert np.all(np.diff(slope) > 0) and slope[0] < 0.1


def test_nll_of_any_logits_has_one_minimum_in_the_temperature():
    rng = np.random.default_rng(0)
    t = np.geomspace(0.05, 50, 4000)
    for _ in range(20):
        logits, labels = 3 * rng.standard_normal((30, 4)), rng.integers(4, size=30)
        scaled = logits[None] / t[:, None, None]
        nll = np.mean(np.logaddexp.reduce(scaled, axis=2) - scaled[:, np.arange(30), labels], axis=1)
        signs = np.sign(np.diff(nll))
        assert np.count_nonzero(np.diff(signs[signs != 0])) <= 1


def test_simulations_repeat_and_depend_on_their_seed():
    assert np.array_equal(weight_norms(trials=2), weight_norms(trials=2))
    assert not np.array_equal(weight_norms(trials=2), weight_norms(trials=2, seed=1))
    assert bound_frequency(trials=500) == bound_frequency(trials=500)
    near, bias = trace_estimates(trials=50, probes=200, seed=3)
    assert 0 < near < 50 and abs(bias) < 2


def test_a_weak_bound_fails_often_enough_to_be_seen():
    """The simulation can detect failures: without the logarithm, the bound of Corollary 1 would fail."""
    assert bound_frequency(trials=2000, epsilon=2 * np.sqrt(50)) < 1990
