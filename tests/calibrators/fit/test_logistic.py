"""Penalized regressions: each ends where the conditions of its optimum hold."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_softmax

from refocal.calibrators.fit.logistic import fit_affine, fit_binary, fit_mixture


@pytest.mark.parametrize("off_diagonal", [None, 0.3])
def test_affine_is_the_minimum_of_the_stated_objective(off_diagonal):
    rng = np.random.default_rng(0)
    features, labels, share = rng.normal(0.5, 2, (60, 3)), rng.integers(0, 3, 60), rng.dirichlet(np.ones(60))
    start, diagonal, bias = 0.7, 0.05, 0.02
    center = share @ features

    def objective(parameters):
        b = parameters[-3:]
        w = np.diag(parameters[:3]) if off_diagonal is None else parameters[:9].reshape(3, 3)
        logs = log_softmax(features @ w.T + b, axis=1)
        shift = (w - start * np.eye(3)) @ center + b
        penalty = diagonal * np.sum((np.diag(w) / start - 1) ** 2) + bias * (shift @ shift)
        if off_diagonal is not None:
            penalty += off_diagonal * np.sum(((w - np.diag(np.diag(w))) / start) ** 2)
        return -share @ logs[np.arange(60), labels] + penalty / 2

    size = 6 if off_diagonal is None else 12
    best = minimize(objective, np.zeros(size), method="BFGS", options={"gtol": 1e-8})
    found = fit_affine(features, labels, share, start, diagonal=diagonal, off_diagonal=off_diagonal, bias=bias)
    np.testing.assert_allclose(np.concatenate([found.weights.ravel(), found.bias]), best.x, atol=2e-5)


def test_affine_without_anything_to_learn_is_temperature_scaling():
    rng = np.random.default_rng(1)
    features, labels = rng.normal(0, 2, (40, 4)), rng.integers(0, 4, 40)
    found = fit_affine(features, labels, np.full(40, 1 / 40), 0.4, diagonal=1e9, off_diagonal=1e9, bias=1e9)
    np.testing.assert_allclose(found.weights, 0.4 * np.eye(4), atol=1e-6)
    np.testing.assert_allclose(found.bias, 0, atol=1e-6)


# the first four need no step that is shortened, the others do
@pytest.mark.parametrize("seed", [1, 2, 3, 5, 4, 13, 14, 18, 47])
def test_a_mixture_meets_the_conditions_of_its_optimum(seed):
    """The mean of L_i / (L w) is 1 for a component in use, and at most 1 for the others."""
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
def test_a_binary_regression_has_no_slope_at_its_optimum(seed):
    """From seed 130 on, some steps have to be shortened."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(3, 8))
    features = np.c_[rng.normal(0, rng.choice([1, 10]), (rows, 2)), np.ones(rows)]
    targets = np.where(rng.random(rows) < 0.5, 0.001, 0.999)
    share = rng.dirichlet(np.ones(rows))
    found = fit_binary(features, targets, share)
    slope = features.T @ (share * (expit(features @ found) - targets))
    np.testing.assert_allclose(slope, 0, atol=1e-6)
