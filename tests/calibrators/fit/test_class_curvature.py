"""The model of the Hessian of structured maps: its inverse, and where it is exact."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax

from refocal.calibrators.fit.class_curvature import ClassCurvature
from refocal.calibrators.fit.structured import Structured


def draw(classes, count, *, rows=50, seed=0):
    """Weights (K, N), features (K, N), directions (r, N) and axes (K, r); the axes explain only a part of x."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(0.3, 1, (count, rows))
    axes = rng.standard_normal((classes, count))
    features = axes @ directions + rng.standard_normal((classes, rows))
    return rng.dirichlet(np.ones(rows), classes), features, directions, axes


def write_out(model, strengths):
    """The model as a matrix, from its definition: second moments of (x, z, 1) for each class, and the penalties."""
    classes, count = model.axes.shape
    size = 2 * classes + classes * count
    whole = np.zeros((size, size))
    for k in range(classes):
        covariance = np.zeros((count + 2, count + 2))
        own = model.axes[k] * model.spreads[k]
        covariance[0, 0] = model.axes[k] @ own + model.rest[k]
        covariance[0, 1:-1] = covariance[1:-1, 0] = own
        covariance[1:-1, 1:-1] = np.diag(model.spreads[k])
        mean = np.concatenate([[model.mean[k]], model.means[k], [1.0]])
        places = np.concatenate([[k], classes + count * k + np.arange(count), [size - classes + k]])
        whole[np.ix_(places, places)] = covariance + model.weight[k] * np.outer(mean, mean)
    penalties = np.repeat(strengths, [classes, classes * count, classes])
    return whole + np.diag(penalties)


@pytest.mark.parametrize(("classes", "count"), [(2, 2), (5, 5), (6, 3), (4, 0)])
def test_the_inverse_is_that_of_the_matrix(classes, count):
    model, strengths = ClassCurvature.measure(*draw(classes, count)), (0.03, 0.2, 0.01)
    matrix = write_out(model, strengths)
    vector = np.random.default_rng(1).standard_normal(len(matrix))
    np.testing.assert_allclose(model.invert(*strengths)(vector), np.linalg.solve(matrix, vector), rtol=1e-6)
    np.testing.assert_allclose(model.diagonal(), np.diag(write_out(model, (0, 0, 0))), rtol=1e-12)


@pytest.mark.parametrize("count", [0, 4])
def test_moments_are_those_of_the_weighted_samples(count):
    weights, features, directions, axes = draw(5, count)
    model = ClassCurvature.measure(weights, features, directions, axes)
    for k, own in enumerate(weights):
        assert model.weight[k] == pytest.approx(own.sum())
        assert model.mean[k] == pytest.approx(np.average(features[k], weights=own))
        for r in range(count):
            mean = np.average(directions[r], weights=own)
            assert model.means[k, r] == pytest.approx(mean)
            assert model.spreads[k, r] == pytest.approx(own @ (directions[r] - mean) ** 2)
    exact = np.vecdot(weights, features**2)
    assert np.all(model.diagonal()[:5] >= exact * (1 - 1e-12))
    if count == 0:  # then a block is the exact one
        np.testing.assert_allclose(model.diagonal(), np.concatenate([exact, weights.sum(axis=1)]), rtol=1e-12)


def test_a_class_without_weight_and_a_direction_without_spread_have_finite_inverses():
    weights, features, directions, axes = draw(3, 2)
    weights[1], directions[0] = 0.0, 1.0
    solve = ClassCurvature.measure(weights, features, directions, axes).invert(1e-12, 1e-12, 1e-12)
    vector = np.random.default_rng(0).standard_normal(12)
    assert np.isfinite(solve(vector)).all()
    assert vector @ solve(vector) > 0


@pytest.mark.parametrize("matrix", [False, True])
def test_diagonal_and_blocks_are_those_of_the_nll(matrix):
    """By finite differences. Without a matrix, blocks are exact; with one, the diagonal is, except for the factors."""
    rng = np.random.default_rng(0)
    x = log_softmax(rng.normal(0, 2, (60, 3)), axis=1)
    problem = Structured.prepare(x, rng.integers(0, 3, 60), np.full(60, 1 / 60), 60, matrix=matrix)
    start = problem.begin()
    size = problem.parameters

    def gradient(point):
        correction = type(start.correction)(point[:3], point[3:-3].reshape(3, -1), point[-3:])
        scores = problem.correct(correction)
        return problem._gradient(scores, problem._exponentiate(scores)[1])

    np.testing.assert_allclose(start.nll[1], gradient(np.zeros(size)), atol=1e-15)
    steps = 1e-6 * np.eye(size)
    hessian = np.array([(gradient(step) - gradient(-step)) / 2e-6 for step in steps])
    np.testing.assert_allclose(start.curvature.diagonal()[3:], np.diag(hessian)[3:], rtol=1e-6)
    if not matrix:
        blocks = write_out(start.curvature, (0, 0, 0))
        np.testing.assert_allclose(blocks[blocks != 0], hessian[blocks != 0], rtol=1e-6)
