"""Sample weights: whole numbers count repetitions, and others are relative."""

from __future__ import annotations

import numpy as np
import pytest
from labeled_logits import EVERY, draw_calibrated
from sklearn.base import clone

from refocal import scale
from refocal.calibrators import MultilabelCalibrator, TemperatureScaling
from refocal.conformal import PredictionSets
from refocal.predictions import Predictions

FACTORS = [1e-6, 1e6]
REFUSED = {"temperature-ece", "focal-temperature-line"}  # their objectives take no weights
weighted = pytest.mark.parametrize("name", [name for name in EVERY if name not in REFUSED])


def draw_weighted(rows=240, classes=3, *, zeros=False):
    """Draw logits or, with exact zeros, probabilities; labels; and weights that are not whole numbers."""
    logits, labels = draw_calibrated(rows, classes, spread=3.0)
    weights = np.random.default_rng(1).uniform(0.1, 3.0, rows)
    if not zeros:
        return 2 * logits, labels, weights
    probs = np.exp(2 * logits) / np.exp(2 * logits).sum(axis=1, keepdims=True)
    probs[probs < 0.01] = 0.0
    return probs / probs.sum(axis=1, keepdims=True), labels, weights


@weighted
@pytest.mark.parametrize("zeros", [False, True], ids=["logits", "probs"])
def test_a_factor_of_all_weights_changes_no_fit(name, zeros):
    scores, labels, weights = draw_weighted(zeros=zeros)
    calibrator = clone(EVERY[name]).set_params(input="probs" if zeros else "logits")
    plain = clone(calibrator).fit(scores, labels, weights).predict_proba(scores)
    for factor in FACTORS:
        found = clone(calibrator).fit(scores, labels, factor * weights).predict_proba(scores)
        np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-8)


@weighted
def test_weights_that_sum_to_1_are_no_weights(name):
    scores, labels, weights = draw_weighted(zeros=True)
    calibrator = clone(EVERY[name]).set_params(input="probs")
    plain = clone(calibrator).fit(scores, labels).predict_proba(scores)
    found = clone(calibrator).fit(scores, labels, np.full(len(weights), 1 / len(weights))).predict_proba(scores)
    np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-8)


def test_standard_errors_use_the_effective_number_of_samples():
    scores, labels, weights = draw_weighted()
    found, scaled = (TemperatureScaling().fit(scores, labels, w).temperature_error_ for w in (weights, 1e-6 * weights))
    assert found == pytest.approx(scaled, rel=1e-9)
    counted = weights * weights.sum() / (weights**2).sum()
    assert counted.sum() < len(weights)
    assert found == pytest.approx(TemperatureScaling().fit(scores, labels, counted).temperature_error_, rel=1e-9)


@pytest.mark.parametrize("factor", FACTORS)
def test_several_labels_and_prediction_sets(factor):
    scores, labels, weights = draw_weighted()
    events = np.eye(3, dtype=int)[labels]
    several = [MultilabelCalibrator().fit(scores, events, w).predict_proba(scores) for w in (weights, factor * weights)]
    np.testing.assert_allclose(*several, rtol=1e-5, atol=1e-8)
    for options in ({}, {"by_class": True}, {"method": "raps"}):
        one, other = (PredictionSets(**options).fit(scores, labels, w).thresholds_ for w in (weights, factor * weights))
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("factor", [1.0, *FACTORS])
def test_fits_over_files(tmp_path, factor):
    probs, labels, weights = draw_weighted(zeros=True)
    for part in range(3):
        rows = slice(80 * part, 80 * part + 80)
        block = Predictions(probs[rows], input="probs", labels=labels[rows], sample_weight=factor * weights[rows])
        block.write(tmp_path / f"{part}.npz")
    found = scale.calibrate(TemperatureScaling(input="probs"), tmp_path / "*.npz")
    wanted = TemperatureScaling(input="probs").fit(probs, labels, weights)
    assert found.floor_ == pytest.approx(wanted.floor_, rel=1e-9)
    assert found.temperature_error_ == pytest.approx(wanted.temperature_error_, rel=1e-4)
    np.testing.assert_allclose(found.predict_proba(probs), wanted.predict_proba(probs), atol=1e-5)
