"""Every public function rejects NumPy masked arrays: their masks would be lost, and masked values would be used."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import refocal
from refocal import calibrators, metrics
from refocal.predictions import Predictions
from refocal.report.record import Slider

PROBS = np.array([[0.7, 0.3], [0.2, 0.8], [0.6, 0.4]] * 30)
LOGITS = np.log(PROBS)
LABELS = np.array([0, 1, 1] * 30)
WEIGHTS = np.ones(90)


def masked(array):
    return np.ma.masked_array(array, mask=np.arange(array.size).reshape(array.shape) == 0)


def rejects(name):
    return pytest.raises(
        TypeError, match=f"^{name} must not be a masked array: leave out the masked rows, or fill them"
    )


ONE_ARRAY = {
    refocal.posterior: PROBS,
    refocal.posterior_from_logits: LOGITS,
    refocal.minimizer: PROBS,
    refocal.sigmoid_posterior: LOGITS,
    refocal.sigmoid_minimizer: PROBS,
    refocal.phi: PROBS,
    refocal.confidence_regime: PROBS,
}


@pytest.mark.parametrize("function", ONE_ARRAY, ids=lambda each: each.__name__)
def test_maps(function):
    array = ONE_ARRAY[function]
    function(array, gamma=2.0)
    with pytest.raises(TypeError, match="must not be a masked array"):
        function(masked(array), gamma=2.0)


def test_second_arguments_of_maps():
    with rejects("labels"):
        refocal.proper_focal_partial(PROBS, masked(LABELS), gamma=2.0)
    with rejects("log_q"):
        refocal.focal_partial(LOGITS, masked(LOGITS), gamma=2.0)


@pytest.mark.parametrize(
    "measure", [metrics.ece, metrics.nll, metrics.brier, metrics.smooth_ece, metrics.auroc, metrics.error]
)
def test_metrics(measure):
    with rejects("scores"):
        measure(masked(PROBS), LABELS)
    with rejects("labels"):
        measure(PROBS, masked(LABELS))
    with rejects("sample_weight"):
        measure(PROBS, LABELS, sample_weight=masked(WEIGHTS))


def test_other_metrics():
    with rejects("labels"):
        metrics.CalibrationAccumulator().update(PROBS, masked(LABELS))
    with rejects("posterior"):
        metrics.kl_to_posterior(PROBS, masked(PROBS))
    with rejects("scores"):
        metrics.ece(masked(LOGITS), LABELS, input="logits")


def test_rows_of_a_list():
    with rejects("scores"):
        metrics.ece([masked(row) for row in PROBS], LABELS)
    with rejects("labels"):
        metrics.ece(PROBS, [np.ma.masked, *LABELS[1:]])


@pytest.mark.parametrize(
    "family", [calibrators.TemperatureScaling, calibrators.PlattScaling, calibrators.MatrixScaling]
)
def test_calibrators(family):
    with rejects("X"):
        family().fit(masked(LOGITS), LABELS)
    with rejects("y"):
        family().fit(LOGITS, masked(LABELS))
    with rejects("sample_weight"):
        family().fit(LOGITS, LABELS, masked(WEIGHTS))
    with rejects("X"):
        family().fit(LOGITS, LABELS).predict_proba(masked(LOGITS))


def test_a_classifier_with_its_family():
    model = calibrators.Calibrated(LogisticRegression(), calibrators.TemperatureScaling(), cv=2)
    with rejects("y"):
        model.fit(LOGITS, masked(LABELS))
    with rejects("sample_weight"):
        model.fit(LOGITS, LABELS, masked(WEIGHTS))


def test_reports():
    for name, given in (
        ("scores", (masked(LOGITS), LABELS, WEIGHTS)),
        ("labels", (LOGITS, masked(LABELS), WEIGHTS)),
        ("sample_weight", (LOGITS, LABELS, masked(WEIGHTS))),
    ):
        scores, labels, weights = given
        with rejects(name):
            refocal.evaluate(scores, labels, sample_weight=weights)
        with rejects(name):
            refocal.calibrate(scores, labels, method="temperature", sample_weight=weights)
    with rejects("labels"):
        refocal.calibrate(LOGITS, LABELS, method="temperature").report(LOGITS, masked(LABELS))
    with rejects("labels"):
        Slider.pack(LOGITS, masked(LABELS), gamma=1.0, temperature=1.0)


def test_predictions():
    for name, array in (("labels", LABELS), ("sample_weight", WEIGHTS), ("split", np.array(["val"] * 90))):
        with rejects(name):
            Predictions(LOGITS, input="logits", **{name: masked(array)})
    with rejects("scores"):
        Predictions(masked(LOGITS), input="logits")
