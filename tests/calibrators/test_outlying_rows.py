"""One row that is far off: a huge logit of a wrong class, or of the right one."""

from __future__ import annotations

import numpy as np
import pytest
from labeled_logits import draw_calibrated, mean_nll
from scipy.special import expit, log_softmax

from refocal.calibrators import (
    BY_NAME,
    AutoCalibrator,
    BetaCalibration,
    EnsembleTemperatureScaling,
    PlattScaling,
    QuadraticScaling,
    binary,
)


def draw_with_one_far_off(size, *, rows=2000, dtype=np.float64):
    """Draw logits of temperature 2 and labels; in the first row, a wrong class has a logit of `size`."""
    logits, labels = draw_calibrated(rows, 10)
    logits = 2 * logits
    logits[0] = 0
    logits[0, (labels[0] + 1) % 10] = size
    return logits.astype(dtype), labels


def nll_of(log_probs, labels):
    """The mean NLL of log-probabilities."""
    return -np.mean(log_probs[np.arange(len(labels)), labels])


FOLLOW = ("temperature", "focal-temperature", "vector", "matrix", "dirichlet")  # the last three by their base


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e3, 1e4, 1e6])
@pytest.mark.parametrize("name", BY_NAME)
def test_every_calibrator_can_be_fitted(name, size, dtype):
    """Most maps hardly change. Maximum likelihood follows the row, as the page about calibrators says."""
    logits, labels = draw_with_one_far_off(size, rows=500, dtype=dtype)
    new_logits, new_labels = draw_with_one_far_off(0, rows=5000)
    fitted = BY_NAME[name]().fit(logits, labels)
    assert np.all(np.isfinite(fitted.predict_proba(logits)))
    if name not in FOLLOW:
        without = mean_nll(BY_NAME[name]().fit(logits[1:], labels[1:]), new_logits, new_labels)
        assert mean_nll(fitted, new_logits, new_labels) < without + 0.02


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("size", [1e3, 1e6])
@pytest.mark.parametrize("name", BY_NAME)
def test_a_row_that_is_far_off_and_right_changes_little(name, size, classes):
    logits, labels = draw_calibrated(500, classes)
    new_logits, new_labels = draw_calibrated(5000, classes, seed=1)
    without = mean_nll(BY_NAME[name]().fit(2 * logits[1:], labels[1:]), 2 * new_logits, new_labels)
    logits[0, labels[0]] = size
    assert mean_nll(BY_NAME[name]().fit(2 * logits, labels), 2 * new_logits, new_labels) < without + 0.002


@pytest.mark.parametrize("name", ["platt", "beta", "quadratic"])
def test_large_log_odds_among_small_ones_are_no_outliers(name):
    """Most log-odds are near 0, so their median says nothing about the others."""
    rng = np.random.default_rng(0)
    log_odds = np.where(rng.random(4000) < 0.8, 0.02, 3.0) * rng.standard_normal(4000)
    labels = (rng.random(4000) < expit(log_odds)).astype(int)
    exact = np.mean(np.logaddexp(0, np.where(labels, -log_odds, log_odds)))
    assert mean_nll(BY_NAME[name]().fit(log_odds, labels), log_odds, labels) < exact + 0.03


@pytest.mark.parametrize("name", ["platt", "beta"])
def test_ordinary_log_odds_are_fitted_as_they_are(name, monkeypatch):
    """The smallest number of spreads that count is above that of ordinary data, here of networks and of uniform p."""
    logits, labels = draw_calibrated(3000, 10, spread=5.0)
    probs = np.random.default_rng(0).random(3000)
    for scores, targets in ((logits, labels), (np.log(probs) - np.log1p(-probs), labels % 2)):
        found = BY_NAME[name]().fit(scores, targets)
        with monkeypatch.context() as patched:
            patched.setattr(binary, "_FAR", np.inf)
            plain = BY_NAME[name]().fit(scores, targets)
        np.testing.assert_array_equal(found.weights_, plain.weights_)
        np.testing.assert_array_equal(found.bias_, plain.bias_)


@pytest.mark.parametrize("rows", [2000, 10_000])
@pytest.mark.parametrize("size", [1e3, 1e4, 1e6])
def test_ensemble_gives_the_row_to_its_uniform_part(size, rows):
    logits, labels = draw_with_one_far_off(size, rows=rows)
    fitted = EnsembleTemperatureScaling().fit(logits, labels)
    assert fitted.temperature_ == pytest.approx(2, rel=0.02)
    without = EnsembleTemperatureScaling().fit(logits[1:], labels[1:])
    # The row costs about the logarithm of its share, and not more.
    assert mean_nll(fitted, logits, labels) < mean_nll(without, logits[1:], labels[1:]) + 15 / rows


@pytest.mark.parametrize("size", [1e4, 1e6])
def test_auto_gives_the_row_to_its_uniform_part(size):
    logits, labels = draw_with_one_far_off(size)
    fitted = AutoCalibrator().fit(logits, labels)
    assert mean_nll(fitted, logits[1:], labels[1:]) < nll_of(log_softmax(logits[1:] / 2, axis=1), labels[1:]) + 0.02


@pytest.mark.parametrize("kind", [PlattScaling, BetaCalibration, QuadraticScaling])
def test_far_rows_count_by_their_weights_and_not_by_their_place(kind):
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((700, 4))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    logits[0] = [1e6, 0, 0, 0]
    weights, order = rng.integers(1, 4, len(logits)), rng.permutation(len(logits))
    fitted = kind().fit(logits, labels, weights)
    repeated = kind().fit(np.repeat(logits, weights, axis=0), np.repeat(labels, weights))
    permuted = kind().fit(logits[order], labels[order], weights[order])
    for other in (repeated, permuted):
        np.testing.assert_allclose(other.predict_proba(logits), fitted.predict_proba(logits), atol=1e-6)
