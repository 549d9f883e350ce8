"""The posterior map of sigmoid focal loss and its inverse."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest

import refocal
from arrays import to_numpy


def logit(p):
    return np.log(p) - np.log1p(-p)


@pytest.mark.parametrize("gamma", [-0.97, -0.5, 0.0, 0.3, 1.0, 2.0, 50.0])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sigmoid_map_equals_the_two_class_map(xp, gamma, dtype):
    x = np.concatenate([np.linspace(-30, 30, 121), [-1000, -1e-9, 1e-9, 1000]]).astype(dtype)
    two = refocal.posterior_from_logits(np.stack([np.zeros_like(x), x], axis=-1), gamma=gamma)[:, 1]
    probs = to_numpy(refocal.sigmoid_posterior(xp.asarray(x), gamma=gamma))
    assert probs.dtype == dtype
    np.testing.assert_allclose(probs, two, rtol=400 * np.finfo(dtype).eps, atol=np.finfo(dtype).tiny)


@pytest.mark.parametrize("alpha", [None, 0.25, 0.9])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_sigmoid_map_inverts_the_textbook_loss(gamma, alpha):
    balance = 0.5 if alpha is None else alpha
    with mp.workdps(30):
        for eta in (0.02, 0.5, 0.8):
            q = mp.mpf(float(refocal.sigmoid_minimizer(np.array(eta), gamma=gamma, alpha=alpha)))
            slope_positive = mp.diff(lambda p: -balance * (1 - p) ** gamma * mp.log(p), q)
            slope_negative = mp.diff(lambda p: -(1 - balance) * p**gamma * mp.log(1 - p), q)
            assert abs(eta * slope_positive + (1 - eta) * slope_negative) < 1e-12
            assert abs(refocal.sigmoid_posterior(logit(float(q)), gamma=gamma, alpha=alpha) - eta) < 1e-14


def test_known_numbers():
    np.testing.assert_allclose(refocal.sigmoid_minimizer(np.array(0.8), gamma=2), 0.6266, atol=5e-5)
    one_vs_rest = refocal.sigmoid_minimizer(np.array([0.55, 0.30, 0.10, 0.05]), gamma=2)
    np.testing.assert_allclose(one_vs_rest, [0.5187, 0.4215, 0.3058, 0.2502], atol=5e-5)


@pytest.mark.parametrize("gamma", [0.0, 1e-3, 0.5, 1.0, 5.0, 50.0, 1000.0])
def test_round_trip(xp, gamma):
    eta = 1 / (1 + np.exp(-np.linspace(-300, 30, 1001)))
    q = to_numpy(refocal.sigmoid_minimizer(xp.asarray(eta), gamma=gamma))
    back = refocal.sigmoid_posterior(xp.asarray(logit(q)), gamma=gamma)
    np.testing.assert_allclose(to_numpy(back), eta, rtol=0, atol=1e-12)


def test_per_class_alpha_and_gamma(xp):
    x = xp.asarray(np.array([[0.5, -1.0], [2.0, 3.0]]))
    probs = to_numpy(refocal.sigmoid_posterior(x, gamma=[1.0, 3.0], alpha=[0.25, 0.6]))
    for column, (gamma, alpha) in enumerate([(1.0, 0.25), (3.0, 0.6)]):
        alone = refocal.sigmoid_posterior(to_numpy(x)[:, column], gamma=gamma, alpha=alpha)
        np.testing.assert_allclose(probs[:, column], alone, rtol=1e-15)
    back = refocal.sigmoid_minimizer(xp.asarray(probs), gamma=[1.0, 3.0], alpha=[0.25, 0.6])
    np.testing.assert_allclose(logit(to_numpy(back)), to_numpy(x), rtol=1e-12)


def test_one_vs_rest_head_used_as_multiclass(xp):
    eta = np.array([0.55, 0.30, 0.10, 0.05])
    x = logit(refocal.sigmoid_minimizer(eta, gamma=2))
    probs = to_numpy(refocal.sigmoid_posterior(xp.asarray(x), gamma=2, normalize=True))
    np.testing.assert_allclose(probs, eta, rtol=1e-13)
    wrong = refocal.posterior_from_logits(np.log(1 / (1 + np.exp(-x))), gamma=2)
    assert np.abs(wrong - eta).max() > 0.15
    far = to_numpy(refocal.sigmoid_posterior(xp.asarray(np.array([-2000.0, -2001.0])), gamma=1, normalize=True))
    np.testing.assert_allclose(far, [1 / (1 + np.exp(-2.0)), 1 / (1 + np.exp(2.0))], rtol=1e-10)


def test_certainty(xp):
    x = xp.asarray(np.array([-np.inf, np.inf]))
    np.testing.assert_array_equal(to_numpy(refocal.sigmoid_posterior(x, gamma=2, alpha=0.25)), [0, 1])
    np.testing.assert_array_equal(
        to_numpy(refocal.sigmoid_minimizer(xp.asarray(np.array([0.0, 1.0])), gamma=2)), [0, 1]
    )


@pytest.mark.parametrize("alpha", [None, 0.25])
@pytest.mark.parametrize(("end", "beside"), [(0.0, 1e-9), (1.0, 1 - 1e-9)])
def test_slopes_at_certainty_are_the_limits_of_nearby_slopes(alpha, end, beside):
    torch = pytest.importorskip("torch")

    def derivatives(eta, gamma):
        leaf = torch.tensor(eta, dtype=torch.double, requires_grad=True)
        q = refocal.sigmoid_minimizer(leaf, gamma=gamma, alpha=alpha)
        (slope,) = torch.autograd.grad(q, leaf, create_graph=True)
        return q.item(), slope, torch.autograd.grad(slope, leaf)[0].item() if gamma == 0 else None

    value, slope, curvature = derivatives(end, 0.0)
    _, slope_beside, curvature_beside = derivatives(beside, 0.0)
    assert value == end
    assert slope.item() == pytest.approx(slope_beside.item(), rel=1e-7)  # alpha / (1 - alpha), or its inverse
    assert curvature == pytest.approx(curvature_beside, rel=1e-5, abs=1e-6)
    for gamma in (0.5, 2.0):  # odds to the power 1 / (1 + gamma) start with an infinite slope
        value, slope, _ = derivatives(end, gamma)
        assert (value, slope.item()) == (end, np.inf)
