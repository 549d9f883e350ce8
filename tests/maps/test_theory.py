"""Thresholds, regimes, gamma* and temperatures."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import refocal
from arrays import random_simplex, to_numpy
from refocal import Regime


def test_known_thresholds():
    assert refocal.thresholds(1) == pytest.approx((math.exp(-2), math.exp(-1)), rel=1e-14)
    assert refocal.thresholds(3) == pytest.approx((0.085461, 0.252584), abs=1e-6)


@pytest.mark.parametrize("gamma", [1e-9, 1e-3, 0.1, 0.5, 2.0, 5.0, 50.0, 1e4])
def test_thresholds_satisfy_their_definitions(gamma):
    tau_oc, tau_uc = refocal.thresholds(gamma)
    assert 0 < tau_oc < tau_uc < 0.5
    if gamma > 1e-4:
        peak = minimize_scalar(lambda v: -refocal.phi(v, gamma=gamma), bounds=(0, 0.5), method="bounded")
        assert refocal.phi(tau_oc, gamma=gamma) >= -peak.fun * (1 - 1e-15)
        assert refocal.phi(tau_uc, gamma=gamma) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("gamma", [0.2, 1.0, 3.0])
def test_regime_is_the_sign_of_top_score_minus_top_posterior(xp, gamma):
    rng = np.random.default_rng(0)
    rows = [random_simplex(rng, (300, 30), spread=spread) for spread in (0.3, 1.0, 2.0)]
    probs = np.concatenate(rows)
    change = probs.max(axis=-1) - refocal.posterior(probs, gamma=gamma).max(axis=-1)
    regime = to_numpy(refocal.confidence_regime(xp.asarray(probs), gamma=gamma))
    np.testing.assert_array_equal(regime, np.sign(change))
    tau_oc, tau_uc = refocal.thresholds(gamma)
    ambiguous = (probs.max(axis=-1) > tau_oc) & (probs.max(axis=-1) < tau_uc)
    assert {-1, 1} <= set(regime.tolist())
    assert ambiguous.sum() > 100


def test_exact_rows(xp):
    rows = xp.asarray(np.array([[1.0, 0, 0], [0.5, 0, 0.5], [1 / 3, 1 / 3, 1 / 3], [0.6, 0.4, 0]]))
    assert to_numpy(refocal.confidence_regime(rows, gamma=2)).tolist() == [0, 0, 0, Regime.UNDERCONFIDENT]
    assert to_numpy(refocal.confidence_regime(rows, gamma=0)).tolist() == [0, 0, 0, 0]


def test_known_gamma_star():
    assert refocal.gamma_star(0.2) == pytest.approx(4.8506, abs=5e-5)
    assert refocal.gamma_star(0.25) == pytest.approx(3.0702, abs=5e-5)
    assert refocal.gamma_star(0.1) == pytest.approx(14.924, abs=5e-4)
    assert refocal.gamma_star(0.5) == 0


@pytest.mark.parametrize("p0", [1e-6, 0.01, 0.3, 0.39, 0.41, 0.49, 0.4999, 0.5 - 1e-10])
def test_gamma_star_makes_the_gradients_equal(p0):
    gamma = refocal.gamma_star(p0)
    assert gamma > 0
    assert refocal.phi(p0, gamma=gamma) == pytest.approx(1, abs=1e-11)
    assert refocal.thresholds(gamma).tau_uc == pytest.approx(p0, rel=1e-9)


@pytest.mark.parametrize("p0", [1e-10, 0.2, 0.39, 0.41, 0.4999999, 0.5 - 1e-12, 0.5 - 2.0**-54])
def test_gamma_star_is_precise_near_the_branch_point(p0):
    with mp.workdps(60):
        p = mp.mpf(p0)
        ratio = -p * mp.log(p) / (1 - p)
        exact = mp.findroot(lambda g: mp.log1p(-p) + mp.log1p(g * ratio) / g, mp.mpf(refocal.gamma_star(p0)))
    assert refocal.gamma_star(p0) == pytest.approx(float(exact), rel=1e-14)


@pytest.mark.parametrize("gamma", [5e-324, 1e-100, 1e-19, 1e100, 1e308])
def test_thresholds_of_any_gamma(gamma):
    tau_oc, tau_uc = refocal.thresholds(gamma)
    assert 0 < tau_oc < tau_uc <= 0.5


@pytest.mark.parametrize(("gamma", "temperature", "error"), [(9, None, 0.08), (3, 1 / (0.64 * 3 + 0.91), None)])
def test_closest_temperature_of_three_classes_matches_the_paper(gamma, temperature, error):
    nearest = refocal.closest_temperature(gamma, classes=3, logit_range=5)
    if temperature is not None:
        assert nearest.temperature == pytest.approx(temperature, rel=0.02)
    if error is not None:
        assert nearest.error == pytest.approx(error, abs=0.005)


def test_thresholds_of_tiny_gamma():
    """phi^gamma(v) is about 1 + gamma (log(1 - v) + s(v)), which is 1 at v = 1/2."""
    found = refocal.thresholds(1e-300)
    assert found.tau_uc == pytest.approx(0.5, rel=1e-12)
    v = np.linspace(0.001, 0.5, 200_001)
    assert found.tau_oc == pytest.approx(v[np.argmax(np.log1p(-v) - v * np.log(v) / (1 - v))], abs=1e-5)


def test_gamma_star_has_a_domain():
    with pytest.raises(ValueError, match=r"p0 must lie in \[1e-300, 0.5\], got 0.51: above 0.5 focal loss"):
        refocal.gamma_star(0.51)
    with pytest.raises(ValueError, match=r"p0 must lie in \[1e-300, 0.5\], got 1e-301$"):
        refocal.gamma_star(1e-301)
    with pytest.raises(ValueError, match="p0 must be positive"):
        refocal.gamma_star(0)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 3.0, 50.0])
def test_temperatures_bound_the_binary_map(gamma):
    lower, upper = refocal.temperature_bounds(gamma)
    x = np.linspace(1e-3, 30, 3000)
    mapped = refocal.sigmoid_posterior(x, gamma=gamma)
    slack = 1e-14
    assert np.all(mapped <= 1 / (1 + np.exp(-x / lower)) + slack)
    assert np.all(mapped >= 1 / (1 + np.exp(-x / upper)) - slack)


def test_known_temperature_bounds():
    assert refocal.temperature_bounds(4) == pytest.approx((0.2, 0.238), abs=5e-4)
    assert refocal.temperature_bounds(0) == (1, 1)


@pytest.mark.parametrize(("classes", "step"), [(2, 0.01), (3, 0.05), (4, 0.25)])
@pytest.mark.parametrize("gamma", [-0.5, 1.0, 3.0])
def test_closest_temperature_beats_its_neighbors(classes, step, gamma):
    nearest = refocal.closest_temperature(gamma, classes=classes, logit_range=5)
    axes = np.meshgrid(*[np.arange(0, 10 + step, step)] * (classes - 1), indexing="ij")
    logits = np.stack([np.zeros_like(axes[0]), *[-axis for axis in axes]], axis=-1).reshape(-1, classes)
    mapped = refocal.posterior_from_logits(logits, gamma=gamma)

    def error(temperature):
        return np.abs(refocal.posterior_from_logits(logits, gamma=0, temperature=temperature) - mapped).max()

    assert error(nearest.temperature) == pytest.approx(nearest.error, rel=5e-3)
    for factor in (0.95, 1.05):
        assert error(factor * nearest.temperature) > nearest.error


@pytest.mark.parametrize("gamma", [50.0, 1000.0])
def test_closest_temperature_resolves_small_gaps_for_a_large_gamma(gamma):
    nearest = refocal.closest_temperature(gamma, classes=4, logit_range=20)
    steps = np.append(np.linspace(0, 12 / (1 + gamma), 49), 40.0)  # near the top class, or far away
    axes = np.meshgrid(steps, steps, steps, indexing="ij")
    logits = np.stack([np.zeros_like(axes[0]), *[-axis for axis in axes]], axis=-1).reshape(-1, 4)
    scaled = refocal.posterior_from_logits(logits, gamma=0, temperature=nearest.temperature)
    reached = np.abs(scaled - refocal.posterior_from_logits(logits, gamma=gamma)).max()
    assert nearest.error == pytest.approx(reached, rel=0.01)


def test_closest_temperature_options():
    pair = refocal.closest_temperature(2, classes=2, logit_range=(-5, 5))
    assert pair == refocal.closest_temperature(2, classes=2, logit_range=5)
    assert refocal.closest_temperature(0, classes=3, logit_range=5).temperature == pytest.approx(1, abs=1e-6)
    assert pair == refocal.closest_temperature(2, classes=np.int64(2), logit_range=5)
    with pytest.raises(ValueError, match="classes must be 2 to 4, got 5"):
        refocal.closest_temperature(2, classes=5, logit_range=5)
    with pytest.raises(TypeError, match="classes must be a whole number, 2 to 4, got '2'"):
        refocal.closest_temperature(2, classes="2", logit_range=5)
    with pytest.raises(ValueError, match="logit_range must be a number or a pair of numbers, got 3 values"):
        refocal.closest_temperature(2, classes=2, logit_range=(1, 2, 3))
    with pytest.raises(ValueError, match="logit_range must be positive"):
        refocal.closest_temperature(2, classes=2, logit_range=0)
