"""The partial loss and phi: textbook formulas, limits, and mpmath."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest

import refocal
from arrays import to_numpy
from refocal._arrays import namespace
from refocal.maps.simplex import log_odds_against, log_p_and_q, log_p_and_q_from_odds, split_logits


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 0.5, 1.0, 2.0, 7.0])
def test_partial_loss_is_the_textbook_formula(xp, gamma):
    p = np.array([1e-12, 0.1, 0.5, 0.9])
    loss = refocal.focal_partial(xp.asarray(np.log(p)), xp.asarray(np.log1p(-p)), gamma=gamma)
    np.testing.assert_allclose(to_numpy(loss), -((1 - p) ** gamma) * np.log(p), rtol=1e-14)


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 0.5, 2.0, [0.0, 2.0], [-0.5, -0.25]])
def test_partial_loss_at_certainty(xp, gamma):
    loss = refocal.focal_partial(xp.asarray([0.0, -np.inf]), xp.asarray([-np.inf, 0.0]), gamma=gamma)
    np.testing.assert_array_equal(to_numpy(loss), [0, np.inf])


def test_log_odds_against_labels_are_those_of_all_classes(xp):
    rows = np.random.default_rng(0).standard_normal((4, 4)) * [[1], [10], [300], [1]]
    rows[3] = [5, -np.inf, -np.inf, -np.inf]
    for label in range(4):
        logits, labels = xp.asarray(rows), xp.asarray(np.full(4, label))
        against = log_odds_against(logits, labels, xp=namespace(logits))
        found = log_p_and_q_from_odds(against, xp=namespace(logits))
        expected = log_p_and_q(split_logits(rows, temperature=1.0, xp=np), xp=np)
        for own, of_all in zip(found, expected, strict=True):
            np.testing.assert_allclose(to_numpy(own), of_all[:, label], rtol=1e-12)


@pytest.mark.parametrize("gamma", [-0.97, -0.3, 0.0, 0.5, 1.0, 3.0, 50.0])
def test_phi_agrees_with_mpmath(xp, gamma):
    # the formula changes at 1/2 and 7/8
    ends = [1e-300, 1e-9, 0.5, 0.875]
    p = np.concatenate([ends, np.linspace(0.01, 0.99, 50), 1 - np.logspace(-1, -6, 21)])
    values = to_numpy(refocal.phi(xp.asarray(p), gamma=gamma))
    units = 80 if xp.__name__.startswith("jax") else 8  # the log1p of XLA is off by up to a hundred units
    with mp.workdps(50):
        for value, probability in zip(values, p, strict=True):
            v, g = mp.mpf(float(probability)), mp.mpf(gamma)
            exact = (1 - v) ** g - g * (1 - v) ** (g - 1) * v * mp.log(v)
            assert abs(mp.mpf(float(value)) / exact - 1) < units * 2.0**-52 * (8 + abs(mp.log(exact)))


def test_phi_at_the_ends(xp):
    ends = xp.asarray([0.0, 1.0])
    np.testing.assert_array_equal(to_numpy(refocal.phi(ends, gamma=2.0)), [1, 0])
    np.testing.assert_array_equal(to_numpy(refocal.phi(ends, gamma=0.0)), [1, 1])


def test_phi_is_the_slope_of_the_loss():
    p, step = np.linspace(0.05, 0.95, 19), 1e-6
    loss = [refocal.focal_partial(np.log(v), np.log1p(-v), gamma=1.7) for v in (p - step, p + step)]
    np.testing.assert_allclose(refocal.phi(p, gamma=1.7), -p * (loss[1] - loss[0]) / (2 * step), rtol=1e-6)
