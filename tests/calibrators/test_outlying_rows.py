"""One row that is far off: a huge logit of a wrong class."""

from __future__ import annotations

import numpy as np
import pytest
from labeled_logits import draw_calibrated, mean_nll
from scipy.special import log_softmax

from refocal import posterior_from_logits
from refocal.calibrators import (
    BY_NAME,
    AutoCalibrator,
    EnsembleTemperatureScaling,
    FocalTemperatureScaling,
    TemperatureScaling,
)

TEMPERATURES = np.geomspace(0.5, 5e4, 40)


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e3, 1e4, 1e6])
@pytest.mark.parametrize("name", BY_NAME)
def test_every_calibrator_can_be_fitted(name, size, dtype):
    logits, labels = draw_with_one_far_off(size, rows=500, dtype=dtype)
    assert np.all(np.isfinite(BY_NAME[name]().fit(logits, labels).predict_proba(logits)))


@pytest.mark.parametrize("rows", [2000, 10_000])
@pytest.mark.parametrize("size", [1e3, 1e4, 1e6])
def test_ensemble_gives_the_row_to_its_uniform_part(size, rows):
    logits, labels = draw_with_one_far_off(size, rows=rows)
    fitted = EnsembleTemperatureScaling().fit(logits, labels)
    assert fitted.temperature_ == pytest.approx(2, rel=0.02)
    without = EnsembleTemperatureScaling().fit(logits[1:], labels[1:])
    # The row costs about the logarithm of its share, and not more.
    assert mean_nll(fitted, logits, labels) < mean_nll(without, logits[1:], labels[1:]) + 15 / rows


@pytest.mark.parametrize("size", [1e3, 1e4, 1e6])
def test_temperature_has_the_largest_likelihood_and_follows_the_row(size):
    logits, labels = draw_with_one_far_off(size)
    fitted = TemperatureScaling().fit(logits, labels)
    least = min(nll_of(log_softmax(logits / T, axis=1), labels) for T in TEMPERATURES)
    found = mean_nll(fitted, logits, labels)
    # At 1e6 uniform probabilities are best: T is at its bound.
    assert found < max(least, np.log(10) if fitted.at_bound_ else 0) + 0.01
    assert fitted.at_bound_ == (size == 1e6)
    rest = log_softmax(logits[1:] / 2, axis=1)
    assert mean_nll(fitted, logits[1:], labels[1:]) > nll_of(rest, labels[1:]) + (0.01 if size == 1e3 else 0.9)


@pytest.mark.parametrize("size", [1e3, 1e4, 1e5, 3e5])
def test_focal_temperature_finds_an_optimum_that_temperature_alone_has_not(size):
    logits, labels = draw_with_one_far_off(size)
    fitted = FocalTemperatureScaling().fit(logits, labels)
    grid = [(gamma, T) for gamma in (-0.97, -0.5, 0.0, 2.0) for T in TEMPERATURES]
    least = min(
        nll_of(posterior_from_logits(logits, gamma=gamma, temperature=T, log=True), labels) for gamma, T in grid
    )
    assert fitted.gamma_ == pytest.approx(-0.97)
    assert mean_nll(fitted, logits, labels) < least + 1e-9


def test_focal_temperature_stays_uniform_if_no_gamma_helps():
    logits, labels = draw_with_one_far_off(1e6)
    fitted = FocalTemperatureScaling().fit(logits, labels)
    assert (fitted.gamma_, fitted.at_bound_) == (0.0, True)


@pytest.mark.parametrize("size", [1e4, 1e6])
def test_auto_gives_the_row_to_its_uniform_part(size):
    logits, labels = draw_with_one_far_off(size)
    fitted = AutoCalibrator().fit(logits, labels)
    assert mean_nll(fitted, logits[1:], labels[1:]) < nll_of(log_softmax(logits[1:] / 2, axis=1), labels[1:]) + 0.02
