"""Structured maps: the fit ends at the optimum of the stated objective."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

from refocal.calibrators.fit import structured
from refocal.calibrators.fit.structured import Structured


def draw(rows=80, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    x = log_softmax(rng.normal(0.5, 2, (rows, classes)), axis=1)
    share = rng.dirichlet(np.full(rows, 5.0))
    return x, rng.integers(0, classes, rows), share


@pytest.mark.parametrize("matrix", [False, True])
def test_the_fit_minimizes_the_stated_objective(matrix):
    x, labels, share = draw()
    penalty, samples, classes = 0.7, 90.0, 3
    problem = Structured.prepare(x, labels, share, samples, matrix=matrix)
    weights, bias = problem.join(problem.fit(penalty, tolerance=1e-14).correction)
    unit, mean = penalty * classes / samples, share @ x

    def objective(point):
        d, offset = point[:3], point[3:6]
        a = point[6:].reshape(3, 3) if matrix else np.zeros((3, 3))
        scores = x + (x - mean) @ (np.diag(d) + a).T + offset
        nll = -share @ log_softmax(scores, axis=1)[np.arange(len(x)), labels]
        return nll + unit / 2 * (d @ d + 4 * np.sum(a * a) + offset @ offset / 2)

    best = minimize(objective, np.zeros(15 if matrix else 6), method="BFGS", options={"gtol": 1e-9}).x
    change = np.diag(best[:3]) + (best[6:].reshape(3, 3) if matrix else 0)
    expected = np.eye(3) + change if matrix else 1 + best[:3]
    np.testing.assert_allclose(weights, expected, atol=2e-5)
    np.testing.assert_allclose(bias, best[3:6] - change @ mean, atol=5e-5)


def test_a_strong_penalty_gives_the_base():
    x, labels, share = draw()
    problem = Structured.prepare(x, labels, share, 80, matrix=True)
    weights, bias = problem.join(problem.fit(1e9, tolerance=1e-14).correction)
    np.testing.assert_allclose(weights, np.eye(3), atol=1e-6)
    np.testing.assert_allclose(bias, 0, atol=1e-6)


def test_the_start_does_not_matter():
    x, labels, share = draw(rows=300, classes=4)
    problem = Structured.prepare(x, labels, share, 300, matrix=True)
    far = problem.fit(0.1, tolerance=1e-14)
    cold, warm = problem.fit(4.0, tolerance=1e-14), problem.fit(4.0, far, tolerance=1e-14)
    for a, b in zip(cold.correction, warm.correction, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    single = problem.cast(np.float32).fit(4.0, tolerance=1e-6)
    for a, b in zip(cold.correction, single.correction, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)


def test_a_matrix_acts_on_the_principal_directions(monkeypatch):
    """If the features lie in a plane, two directions are as good as all."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 2)) @ rng.standard_normal((2, 5))
    labels = rng.integers(0, 5, 200)
    share = np.full(200, 1 / 200)
    full = Structured.prepare(x, labels, share, 200, matrix=True)
    monkeypatch.setattr(structured, "_MOST_DIRECTIONS", 2)
    few = Structured.prepare(x, labels, share, 200, matrix=True)
    assert few.directions.shape == (2, 200)
    probs = [problem.correct(problem.fit(1.0, tolerance=1e-14).correction) for problem in (full, few)]
    np.testing.assert_allclose(*probs, atol=1e-5)


def test_effective_parameters_lie_between_none_and_all():
    x, labels, share = draw(rows=500, classes=4)
    problem = Structured.prepare(x, labels, share, 500, matrix=True)
    counts = [
        problem.count_effective(problem.fit(penalty, tolerance=1e-6).correction, penalty)
        for penalty in (1e6, 4, 0.25, 1e-6)
    ]
    assert counts == sorted(counts)
    assert counts[0] < 0.1
    assert counts[-1] == pytest.approx(4 * 4 + 8, rel=0.01)  # a direction of log-probabilities may hardly vary


def test_a_fit_that_does_not_end_says_so(monkeypatch):
    x, labels, share = draw()
    monkeypatch.setattr(structured, "_MAX_ITERATIONS", 1)
    with pytest.raises(RuntimeError, match=r"no optimum found in 1 iterations with penalty=.*: the gradient is still"):
        Structured.prepare(x, labels, share, 80, matrix=True).fit(1e-3, tolerance=1e-6)
