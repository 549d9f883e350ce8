"""Regressions and mixtures: each ends where the conditions of its optimum hold."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from refocal.calibrators.fit import logistic
from refocal.calibrators.fit.logistic import fit_binary, fit_mixture, fit_square_mixture


# The first four seeds need no shortened step; the others do.
@pytest.mark.parametrize("seed", [1, 2, 3, 5, 4, 13, 14, 18, 47])
def test_a_mixture_meets_the_conditions_of_its_optimum(seed):
    """The mean of L_i / (L w) is 1 for a component with positive weight, and at most 1 for the others."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(2, 6))
    likelihoods = np.exp(rng.normal(0, rng.choice([1, 5, 10]), (rows, 3)))
    share = rng.dirichlet(np.full(rows, rng.choice([0.2, 1.0])))
    weights = fit_mixture(likelihoods, share)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert np.all(weights >= 0)
    ratio = (share / (likelihoods @ weights)) @ likelihoods
    assert np.all(ratio < 1 + 1e-5)
    np.testing.assert_allclose(weights * (ratio - 1), 0, atol=1e-6)


@pytest.mark.parametrize("seed", [0, 2, 4, 130, 150, 210])
def test_a_binary_regression_has_gradient_0_at_its_optimum(seed):
    """Seeds from 130 on need shortened steps."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(3, 8))
    features = np.c_[rng.normal(0, rng.choice([1, 10]), (rows, 2)), np.ones(rows)]
    targets = np.where(rng.random(rows) < 0.5, 0.001, 0.999)
    share = rng.dirichlet(np.ones(rows))
    found = fit_binary(features, targets, share)
    slope = features.T @ (share * (expit(features @ found) - targets))
    np.testing.assert_allclose(slope, 0, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_a_mixture_that_newton_does_not_finish_is_finished_by_em(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    first = rng.random(200)
    likelihoods = np.stack([first, first + 1e-9 * rng.random(200), rng.random(200), np.full(200, 0.3)], axis=1)
    share = np.full(200, 1 / 200)
    best = share @ np.log(likelihoods @ fit_mixture(likelihoods, share))
    monkeypatch.setattr(logistic, "_MAX_NEWTON_STEPS", 1)
    found = fit_mixture(likelihoods, share)
    assert found.sum() == pytest.approx(1)
    assert share @ np.log(likelihoods @ found) > best - 2e-6


def test_mixture_weights_against_a_fine_grid():
    rng = np.random.default_rng(0)
    likelihoods = rng.random((200, 3)) ** [1, 2, 0.5]
    share = rng.random(200)
    share /= share.sum()
    found = fit_mixture(likelihoods, share)
    here = share @ np.log(likelihoods @ found)
    grid = np.array([(a, b, 1 - a - b) for a in np.linspace(0, 1, 101) for b in np.linspace(0, 1 - a, 51)])
    assert here >= np.max(share @ np.log(likelihoods @ grid.T)) - 1e-12
    assert fit_mixture(np.array([[1.0, 0.0, 0.25]]), np.ones(1)).tolist() == pytest.approx([1, 0, 0])


def test_mixture_weights_do_not_overflow_at_tiny_likelihoods():
    """If the weight of the last part became 0, the row would have a likelihood whose inverse square overflows."""
    rng = np.random.default_rng(0)
    likelihoods = np.stack([rng.uniform(0.3, 1, 10_000), rng.uniform(0.2, 1, 10_000), np.full(10_000, 0.1)], axis=1)
    likelihoods[0, :2] = 1e-200, 0.0
    share = np.full(10_000, 1e-4)
    weights = fit_mixture(likelihoods, share)
    slopes = (share / (likelihoods @ weights)) @ likelihoods
    assert slopes.max() == pytest.approx(1, abs=1e-6)  # the condition of the optimum
    assert weights[2] > 1e-5


@pytest.mark.parametrize("seed", range(8))
def test_a_mixture_of_errors_meets_the_conditions_of_its_optimum(seed):
    """The gradient P w is the same for all components with positive weight, and not smaller for the others."""
    errors = np.random.default_rng(seed).standard_normal((30, 4)) * [1, 2, 1, 0.5] + 0.3
    products = errors.T @ errors / 30
    weights = fit_square_mixture(products)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert np.all(weights >= 0)
    gradient = products @ weights
    value = weights @ gradient
    assert np.all(gradient > value - 1e-6)
    np.testing.assert_allclose(weights * (gradient - value), 0, atol=1e-6)


def test_binary_regression_against_scikit_learn():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 2))
    y = rng.random(500) < 1 / (1 + np.exp(-(1.5 * x[:, 0] - x[:, 1] + 0.5)))
    features = np.column_stack([x, np.ones(500)])
    found = fit_binary(features, y.astype(float), np.full(500, 1 / 500))
    theirs = LogisticRegression(C=1e12, tol=1e-10, max_iter=1000).fit(x, y)
    np.testing.assert_allclose(found, [*theirs.coef_[0], *theirs.intercept_], rtol=1e-4)


def test_solvers_say_when_they_fail(monkeypatch):
    rng = np.random.default_rng(0)
    x, labels, share = rng.standard_normal((50, 3)), rng.integers(0, 3, 50), np.full(50, 0.02)
    monkeypatch.setattr(logistic, "_MAX_NEWTON_STEPS", 1)
    with pytest.raises(RuntimeError, match="no optimum found in 1 Newton steps"):
        fit_binary(x, (labels == 0).astype(float), share)
