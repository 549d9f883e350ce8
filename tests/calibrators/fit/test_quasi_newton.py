"""The minimizer of many parameters: optima by other means, and what knowledge of the curvature is worth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_expit

from refocal.calibrators.fit.quasi_newton import descend


def make_quadratic(size=30, seed=0):
    """A convex quadratic function with its Hessian and its minimum."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((size, size)) * np.geomspace(1, 30, size)
    hessian, best = root.T @ root / size + np.eye(size), rng.standard_normal(size)

    def function(x):
        slope = hessian @ (x - best)
        return float((x - best) @ slope / 2), slope

    return function, hessian, best


def count_evaluations(function, *args, **settings):
    evaluations = 0

    def counted(x):
        nonlocal evaluations
        evaluations += 1
        return function(x)

    return descend(counted, *args, **settings), evaluations


SETTINGS = {"tolerance": 1e-14, "rounding": 1e-15, "most": 500}


@pytest.mark.parametrize("factor", [1.0, 1e-3, 1e3, 1e-9])
def test_the_minimum_of_a_quadratic_function_is_found(factor):
    """Also with a poor estimate of the diagonal, whose first step is far too long or too short."""
    function, hessian, best = make_quadratic()
    end = descend(function, np.zeros(30), diagonal=factor * np.diag(hessian), **SETTINGS)
    assert end.done
    np.testing.assert_allclose(end.x, best, atol=1e-6)
    assert np.abs(end.gradient).max() < 1e-5 / np.sqrt(factor)
    assert len(end.pairs) == 10
    for step, change in end.pairs:
        np.testing.assert_allclose(change, hessian @ step, atol=1e-6 * np.abs(change).max())


def test_a_logistic_regression_agrees_with_another_minimizer():
    rng = np.random.default_rng(0)
    features, signs = rng.standard_normal((200, 8)), rng.choice([-1.0, 1.0], 200)

    def function(x):
        margins = signs * (features @ x)
        slope = -features.T @ (signs * np.exp(log_expit(-margins))) / 200
        return float(-np.mean(log_expit(margins)) + 0.005 * x @ x), slope + 0.01 * x

    end = descend(function, np.full(8, 5.0), diagonal=np.full(8, 0.26), **SETTINGS)
    expected = minimize(function, np.zeros(8), jac=True, method="BFGS", options={"gtol": 1e-10}).x
    np.testing.assert_allclose(end.x, expected, atol=1e-6)


def test_known_curvature_saves_evaluations_and_does_not_change_the_minimum():
    function, hessian, best = make_quadratic()
    steps = np.linalg.eigh(hessian)[1][:, -8:].T  # the steepest directions
    settings = {"diagonal": np.diag(hessian), **SETTINGS}
    cold, many = count_evaluations(function, np.zeros(30), **settings)
    pairs = [(step, hessian @ step) for step in steps]
    warm, few = count_evaluations(function, np.zeros(30), pairs=pairs, **settings)
    np.testing.assert_allclose(warm.x, cold.x, atol=1e-6)
    np.testing.assert_allclose(warm.x, best, atol=1e-6)
    assert few < many
    there, one = count_evaluations(function, best, **settings)
    assert one == 1
    assert there.iterations == 0


def bowl(x):
    return float(x @ x / 2), x


@pytest.mark.parametrize("change", [[-1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1e-12, 1.0]])
def test_pairs_without_curvature_are_not_used(change):
    """As for pairs of the descent itself: the gradient of a convex function grows along a step."""
    pairs = [(np.array([1.0, 0.0]), np.array(change))]
    end = descend(bowl, np.array([3.0, 4.0]), diagonal=np.ones(2), pairs=pairs, **SETTINGS)
    assert end.done
    assert end.iterations == 1
    np.testing.assert_allclose(end.x, 0, atol=1e-6)


def test_pairs_that_lead_nowhere_are_forgotten():
    """Every step that they suggest leaves the line on which the function is finite."""

    def function(x):
        return (float(x[0] ** 2 / 2) if x[1] == 0 else np.inf), np.array([x[0], 0.0])

    pairs = [(np.array([0.0, 1.0]), np.array([1.0, 1.0]))]
    end = descend(function, np.array([3.0, 0.0]), diagonal=np.array([2.0, 1.0]), pairs=pairs, **SETTINGS)
    assert end.done
    np.testing.assert_allclose(end.x, 0, atol=1e-6)


def test_a_descent_that_does_not_end_says_so():
    function, hessian, _ = make_quadratic()
    end = descend(function, np.zeros(30), diagonal=np.diag(hessian), **{**SETTINGS, "most": 2})
    assert not end.done
    assert end.iterations == 2


def test_values_without_digits_end_the_descent():
    """A value that never decreases, against its gradient, is rounding: the search ends and says that it is not done."""
    end = descend(lambda x: (1.0 + float(x @ x > 0), x - 1), np.zeros(3), diagonal=np.ones(3), **SETTINGS)
    assert not end.done
    assert end.iterations == 0
