"""The derivatives that boosting uses: gradients are exact, second derivatives positive and never too small."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest

from refocal.boosting.derivatives import (
    binary_derivatives,
    binary_losses,
    multiclass_derivatives,
    multiclass_losses,
    row_derivatives,
)

GAMMAS = [0.0, 0.3, 1.0, 2.0, 5.0]
each_gamma = pytest.mark.parametrize("gamma", GAMMAS)
SCORES = np.array([-100.0, -40.0, -6.0, -2.5, -1.0, -1e-3, 0.0, 0.7, 3.0, 15.0, 36.0, 80.0])


def mp_binary(score, positive, gamma):
    """Loss, first and second derivative at a score, as mpmath differentiates the loss."""
    with mp.workdps(400):
        sign = 1 if positive else -1

        def loss(x):
            p, q = 1 / (1 + mp.exp(-sign * x)), 1 / (1 + mp.exp(sign * x))
            return -(q ** mp.mpf(gamma)) * mp.log(p)

        return [mp.diff(loss, mp.mpf(score), order) for order in range(3)]


def mp_softmax_losses(scores, label, gamma):
    """Loss, gradient and diagonal of the Hessian of one row."""

    def loss(*row):
        weights = [mp.exp(score) for score in row]
        p = weights[label] / mp.fsum(weights)
        q = mp.fsum(weight for k, weight in enumerate(weights) if k != label) / mp.fsum(weights)
        return -(q ** mp.mpf(gamma)) * mp.log(p)

    with mp.workdps(400):
        row = tuple(map(mp.mpf, scores))
        orders = np.eye(len(row), dtype=int)
        first = [mp.diff(loss, row, tuple(map(int, order))) for order in orders]
        second = [mp.diff(loss, row, tuple(map(int, 2 * order))) for order in orders]
        return loss(*row), first, second


def floats(values):
    return np.array([float(value) for value in values])


def check_hessian(found, exact):
    """Positive, and never smaller than the exact one."""
    assert (found > 0).all()
    assert (found >= exact * (1 - 1e-12)).all()


@each_gamma
@pytest.mark.parametrize("positive", [True, False])
def test_binary_derivatives_against_mpmath(gamma, positive):
    labels = np.full(len(SCORES), positive)
    loss, first, second = (
        floats(column) for column in zip(*(mp_binary(x, positive, gamma) for x in SCORES), strict=True)
    )
    np.testing.assert_allclose(binary_losses(SCORES, labels, gamma=gamma), loss, rtol=1e-12)
    gradient, hessian = binary_derivatives(SCORES, labels, gamma=gamma)
    np.testing.assert_allclose(gradient, first, rtol=1e-12)
    check_hessian(hessian, second)
    easy = SCORES * (1 if positive else -1) > -1
    np.testing.assert_allclose(hessian[easy], second[easy], rtol=1e-12)
    if gamma == 0:
        np.testing.assert_allclose(hessian, second, rtol=1e-12)
    else:
        assert (second < 0).any()  # the case that the bound is for


@each_gamma
@pytest.mark.parametrize("scores", [[0.0, 0.0, 0.0], [2.0, -1.0, 0.5], [-6.0, 3.0, 2.9], [9.0, -30.0, 1.0]])
def test_multiclass_derivatives_against_mpmath(gamma, scores):
    for label in range(3):
        loss, first, second = mp_softmax_losses(scores, label, gamma)
        rows, labels = np.array([scores]), np.array([label])
        np.testing.assert_allclose(multiclass_losses(rows, labels, gamma=gamma), [float(loss)], rtol=1e-12)
        gradient, hessian = multiclass_derivatives(rows, labels, gamma=gamma)
        np.testing.assert_allclose(gradient[0], floats(first), rtol=1e-12)
        check_hessian(hessian[0], floats(second))
        if scores[label] >= max(scores):
            np.testing.assert_allclose(hessian[0], floats(second), rtol=1e-12)


@each_gamma
def test_two_classes_agree_with_binary(gamma):
    labels = np.arange(len(SCORES)) % 2
    pairs = np.stack([np.zeros_like(SCORES), SCORES], axis=1)
    gradient, hessian = multiclass_derivatives(pairs, labels, gamma=gamma)
    expected = binary_derivatives(SCORES, labels == 1, gamma=gamma)
    np.testing.assert_allclose(gradient[:, 1], expected.gradient, rtol=1e-12)
    np.testing.assert_allclose(gradient[:, 0], -expected.gradient, rtol=1e-12)
    np.testing.assert_allclose(hessian, np.stack([expected.hessian] * 2, axis=1), rtol=1e-10)


@each_gamma
def test_no_newton_step_is_longer_than_that_of_cross_entropy(gamma):
    scores = 6 * np.random.default_rng(0).standard_normal((500, 4))
    labels = np.arange(500) % 4
    steps = [np.divide(*multiclass_derivatives(scores, labels, gamma=g)) for g in (gamma, 0.0)]
    assert (np.abs(steps[0]) <= np.abs(steps[1]) * (1 + 1e-9)).all()


@each_gamma
def test_the_whole_hessian_of_a_row(gamma):
    scores = 4 * np.random.default_rng(1).standard_normal((200, 5))
    labels = np.arange(200) % 5
    gradient, diagonal = multiclass_derivatives(scores, labels, gamma=gamma)
    for index, label in enumerate(labels):
        row = row_derivatives(scores[index], int(label), gamma=gamma)
        np.testing.assert_allclose(row.gradient, gradient[index], rtol=1e-12)
        np.testing.assert_allclose(np.diag(row.hessian), diagonal[index], rtol=1e-9, atol=1e-300)
        np.testing.assert_array_equal(row.hessian, row.hessian.T)
        values = np.linalg.eigvalsh(row.hessian)
        assert values[0] > -1e-14 * values[-1]
        np.testing.assert_allclose(row.hessian.sum(axis=0), 0, atol=1e-14)  # adding a constant changes nothing


def test_the_whole_hessian_is_exact_for_an_easy_row():
    scores, label, step = np.array([1.0, 2.0, -0.5]), 1, 1e-6

    def gradient(shift):
        return row_derivatives(scores + shift, label, gamma=2.0).gradient

    columns = [(gradient(shift) - gradient(-shift)) / (2 * step) for shift in step * np.eye(3)]
    np.testing.assert_allclose(row_derivatives(scores, label, gamma=2.0).hessian, np.array(columns), atol=1e-9)


@each_gamma
def test_extreme_scores_stay_finite(gamma):
    scores = np.array([[1e3, -1e3, 0.0], [-1e3, 1e3, 1e3], [1e6, -1e6, 1e6]])
    for label in range(3):
        labels = np.full(3, label)
        for values in multiclass_derivatives(scores, labels, gamma=gamma):
            assert np.isfinite(values).all()
        assert (multiclass_derivatives(scores, labels, gamma=gamma).hessian >= 0).all()
        for row in scores:
            assert all(np.isfinite(values).all() for values in row_derivatives(row, label, gamma=gamma))
    for positive in (True, False):
        for values in binary_derivatives(scores[:, 0], np.full(3, positive), gamma=gamma):
            assert np.isfinite(values).all()
