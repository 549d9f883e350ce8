"""The minimizer inverts the posterior map, in few evaluations; the proper part of the loss."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import refocal
from arrays import random_simplex, to_numpy
from refocal.maps import newton

ETA = np.array([0.55, 0.30, 0.10, 0.05])


@pytest.mark.parametrize(
    ("gamma", "detached", "expected"),
    [
        (1, False, (0.4944, 0.3278, 0.1194, 0.0583)),
        (2, False, (0.4522, 0.3324, 0.1436, 0.0719)),
        (3, False, (0.4206, 0.3272, 0.1642, 0.0880)),
        (1, True, (0.4664, 0.3228, 0.1371, 0.0736)),
        (2, True, (0.4230, 0.3202, 0.1621, 0.0947)),
        (3, True, (0.3946, 0.3136, 0.1789, 0.1129)),
    ],
)
def test_known_minimizers(xp, gamma, detached, expected):
    scores = to_numpy(refocal.minimizer(xp.asarray(ETA), gamma=gamma, detached=detached))
    np.testing.assert_allclose(scores, expected, atol=5e-5)


def posteriors(rng, classes):
    """Rows from soft to nearly one-hot, after the special rows of Charoenphakdee et al. (2021), Prop. 6."""
    special = np.zeros((3, classes))
    special[0, -1] = 1
    special[1] = 1 / classes
    special[2, : classes // 2 + 1] = 1 / (classes // 2 + 1)
    spreads = [1e-3, 1, 5, 30, 200]
    rows = [random_simplex(rng, (60, classes), spread=spread) for spread in spreads]
    return np.concatenate([special, *rows])


@pytest.mark.parametrize("classes", [2, 3, 10, 100, 1000])
@pytest.mark.parametrize("gamma", [0.0, 1e-3, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0])
def test_posterior_inverts_minimizer_in_few_evaluations(classes, gamma, monkeypatch):
    evaluations = []
    log_h = newton._log_h_of_rest
    monkeypatch.setattr(newton, "_log_h_of_rest", lambda *args: evaluations.append(1) or log_h(*args))
    eta = posteriors(np.random.default_rng(classes), classes)
    scores = refocal.minimizer(eta, gamma=gamma)
    assert len(evaluations) <= 24  # for the slowest row; 2 of them carry derivatives
    np.testing.assert_allclose(refocal.posterior(scores, gamma=gamma), eta, rtol=0, atol=1e-12)
    np.testing.assert_allclose(scores.sum(axis=-1), 1, atol=1e-13)
    np.testing.assert_allclose(scores[:3], eta[:3], rtol=1e-13)


@pytest.mark.parametrize("gamma", [0.5, 2.0, 10.0, [0.5] * 9 + [20.0]])
def test_most_rows_need_ten_evaluations(gamma, monkeypatch):
    evaluations = []
    log_h = newton._log_h_of_rest
    monkeypatch.setattr(newton, "_log_h_of_rest", lambda *args: evaluations.append(1) or log_h(*args))
    rows = posteriors(np.random.default_rng(10), 10)[3::7]
    for row in rows:
        refocal.minimizer(row, gamma=gamma)
    assert len(evaluations) <= 11 * len(rows)


@pytest.mark.parametrize("detached", [False, True])
def test_round_trip_with_all_settings_of_the_loss(xp, detached):
    rng = np.random.default_rng(11)
    eta = posteriors(rng, 6)
    options = {"gamma": [0, 0.5, 1, 2, 5, 20], "weight": [0.1, 1, 2, 3, 4, 10], "detached": detached}
    for smoothing in (0.0, 0.1):
        scores = refocal.minimizer(xp.asarray(eta), label_smoothing=smoothing, **options)
        back = refocal.posterior(scores, label_smoothing=smoothing, smoothing_edge="exact", **options)
        np.testing.assert_allclose(to_numpy(back), eta, rtol=0, atol=1e-12)


def test_nearly_one_hot_rows_keep_their_relative_precision():
    eta = np.array([[1.0, 1e-30, 1e-200, 0.0]])
    back = refocal.posterior(refocal.minimizer(eta, gamma=3), gamma=3)
    np.testing.assert_allclose(back, eta, rtol=1e-11)


@pytest.mark.parametrize("gamma", [0.5, 3.0, [0.0, 1.0, 4.0]])
def test_minimizer_minimizes_the_expected_loss(gamma):
    eta, weight = np.array([0.5, 0.3, 0.2]), np.array([1.0, 2.0, 0.5])
    exponents = np.broadcast_to(gamma, 3)

    def risk(logits):
        q = np.exp(logits - logits.max())
        q /= q.sum()
        return -np.sum(eta * weight * (1 - q) ** exponents * np.log(q))

    found = minimize(risk, np.zeros(3), tol=1e-12)
    q = np.exp(found.x - found.x.max())
    np.testing.assert_allclose(refocal.minimizer(eta, gamma=gamma, weight=weight), q / q.sum(), atol=1e-6)


def test_float32_and_half():
    torch = pytest.importorskip("torch")
    eta = torch.tensor([[0.7, 0.2, 0.1]])
    exact = refocal.minimizer(eta.double(), gamma=2)
    assert refocal.minimizer(eta, gamma=2).dtype == torch.float32
    torch.testing.assert_close(refocal.minimizer(eta, gamma=2).double(), exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(refocal.minimizer(eta.bfloat16(), gamma=2).double(), exact, rtol=2e-2, atol=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_subnormal_posteriors_and_weights(xp, dtype):
    tiny = np.finfo(dtype).smallest_subnormal
    eta = xp.asarray(np.array([[1, tiny, 0], [0.2, 0.3, 0.5]], dtype=dtype))
    scores = refocal.minimizer(eta, gamma=2, weight=[10, 1, 1])
    back = refocal.posterior(scores, gamma=2, weight=[10, 1, 1])
    np.testing.assert_allclose(to_numpy(back), to_numpy(eta), atol=20 * np.finfo(dtype).eps)


def test_empty_batch(xp):
    assert tuple(refocal.minimizer(xp.zeros((0, 4)), gamma=2).shape) == (0, 4)


def test_an_error_if_the_search_does_not_converge(monkeypatch):
    monkeypatch.setattr(newton, "_MAX_EVALUATIONS", 2)
    with pytest.raises(RuntimeError, match="did not converge after 2 evaluations"):
        refocal.minimizer(ETA, gamma=50)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_proper_part_is_the_loss_of_the_inverse_image(xp, gamma):
    rng = np.random.default_rng(5)
    eta = random_simplex(rng, (30, 4))
    labels = rng.integers(4, size=30)
    q = refocal.minimizer(eta, gamma=gamma)[np.arange(30), labels]
    loss = refocal.proper_focal_partial(xp.asarray(eta), xp.asarray(labels), gamma=gamma)
    np.testing.assert_allclose(to_numpy(loss), -((1 - q) ** gamma) * np.log(q), rtol=1e-12)


def test_the_inverse_rejects_negative_gamma():
    for function in (refocal.minimizer, lambda eta, gamma: refocal.proper_focal_partial(eta, np.array(0), gamma=gamma)):
        with pytest.raises(ValueError, match="gamma must be at least 0"):
            function(ETA, gamma=-0.5)


def test_proper_part_at_certainty():
    rows = np.array([[1.0, 0.0], [1.0, 0.0]])
    np.testing.assert_array_equal(refocal.proper_focal_partial(rows, np.array([0, 1]), gamma=2), [0, np.inf])


def test_truth_minimizes_the_proper_part_but_not_focal_loss():
    truth = np.array([0.6, 0.3, 0.1])
    grid = random_simplex(np.random.default_rng(0), (4000, 3), spread=1.0)
    labels = np.arange(3)

    def risk(loss, rows):
        return np.sum(truth * loss(np.repeat(rows[..., None, :], 3, axis=-2)), axis=-1)

    def proper(rows):
        return refocal.proper_focal_partial(rows, np.broadcast_to(labels, rows.shape[:-1]), gamma=2)

    def focal(rows):
        p = rows[..., labels, labels]
        return refocal.focal_partial(np.log(p), np.log1p(-p), gamma=2)

    assert np.all(risk(proper, grid[:300]) >= risk(proper, truth))
    assert risk(focal, refocal.minimizer(truth, gamma=2)) < risk(focal, truth)
