"""One row that is far off: a huge logit of a wrong class."""

from __future__ import annotations

import numpy as np
import pytest
from labeled_logits import draw_calibrated, mean_nll
from scipy.special import log_softmax

from refocal.calibrators import BY_NAME, AutoCalibrator, EnsembleTemperatureScaling


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


@pytest.mark.parametrize("size", [1e4, 1e6])
def test_auto_gives_the_row_to_its_uniform_part(size):
    logits, labels = draw_with_one_far_off(size)
    fitted = AutoCalibrator().fit(logits, labels)
    assert mean_nll(fitted, logits[1:], labels[1:]) < nll_of(log_softmax(logits[1:] / 2, axis=1), labels[1:]) + 0.02
