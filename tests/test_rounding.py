"""Probabilities that are rounded to a few decimals are normalized by one rule, in arrays and in files."""

from __future__ import annotations

import numpy as np
import pytest

import refocal
from refocal import calibrators, metrics
from refocal._rounding import normalize_rounded
from refocal.predictions import Predictions, PredictionsWarning
from refocal.report import cross_calibrate

WARNING = "rows of (scores|probs) sum to 1 only within rounding; they are normalized"


def draw(rows=60, *, decimals=2):
    rng = np.random.default_rng(0)
    probs = np.round(rng.dirichlet(np.ones(4), size=rows), decimals)
    assert np.abs(probs.sum(axis=1) - 1).max() > 1e-4
    return probs, np.argmax(probs, axis=1), probs / probs.sum(axis=1, keepdims=True)


def accumulate(probs, labels):
    accumulator = metrics.CalibrationAccumulator()
    accumulator.update(probs, labels)
    return accumulator.compute().brier


def predict(probs, labels):
    predictions = Predictions(probs, input="probs", labels=labels)
    np.testing.assert_allclose(predictions.scores.sum(axis=1), 1, rtol=1e-6)
    return predictions.scores[0, 0]


USES = {
    "Predictions": predict,
    "nll": metrics.nll,
    "ece": metrics.ece,
    "classwise_ece": metrics.classwise_ece,
    "accumulator": accumulate,
    "calibrator": lambda probs, labels: calibrators.TemperatureScaling(input="probs").fit(probs, labels).temperature_,
    "predict": lambda probs, _: calibrators.FocalPosterior(gamma=2.0, input="probs").predict_proba(probs)[0, 0],
    "evaluate": lambda probs, labels: refocal.evaluate(probs, labels, input="probs").given.measures["brier"].value,
    "calibrate": lambda probs, labels: refocal.calibrate(
        probs, labels, input="probs", method="temperature"
    ).chosen.parameters["temperature"],
    "cross_calibrate": lambda probs, labels: cross_calibrate(
        probs, labels, input="probs", method="temperature", folds=2, by_class=False
    ).probs[0, 0],
}


@pytest.mark.parametrize("decimals", [2, 3])
@pytest.mark.parametrize("use", USES)
def test_rounded_rows_are_normalized_with_a_warning(use, decimals):
    probs, labels, normalized = draw(decimals=decimals)
    with pytest.warns(UserWarning, match=WARNING):
        found = USES[use](probs, labels)
    assert found == pytest.approx(USES[use](normalized, labels), rel=1e-3)


def test_arrays_and_files_are_normalized_alike(tmp_path):
    probs, labels, _ = draw()
    lines = [",".join(map(str, [*row, label])) for row, label in zip(probs.tolist(), labels.tolist(), strict=True)]
    (tmp_path / "p.csv").write_text("\n".join(["prob_0,prob_1,prob_2,prob_3,label", *lines]), encoding="utf-8")
    with pytest.warns(PredictionsWarning, match="sum to 1 only within rounding; rows are normalized"):
        read = Predictions.read(tmp_path / "p.csv")
    assert normalize_rounded(probs)[1]
    np.testing.assert_array_equal(read.scores, normalize_rounded(probs)[0])
    with pytest.warns(UserWarning, match=WARNING):
        made = Predictions(probs, input="probs")
    np.testing.assert_array_equal(made.scores, read.scores)


def test_multilabel_predictions_keep_sums_close_to_1():
    probs, labels, _ = draw()
    made = Predictions(probs, input="probs", labels=np.eye(4)[labels])
    np.testing.assert_array_equal(made.scores, probs)


@pytest.mark.parametrize("use", USES)
def test_rows_that_no_rounding_explains_are_rejected(use):
    probs, labels, normalized = draw()
    for wrong in (normalized * 1.003, np.where(np.arange(60)[:, None] == 7, probs + 0.01, normalized)):
        with pytest.raises(ValueError, match=r"(rows of (scores|probs)|probs, row \d+:) must sum to 1.* got .*"):
            USES[use](wrong, labels)


@pytest.mark.parametrize("use", USES)
def test_rows_that_sum_to_1_bring_no_warning(use):
    _, labels, normalized = draw()
    USES[use](normalized, labels)
    USES[use](normalized.astype(np.float32), labels)
