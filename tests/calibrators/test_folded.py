"""Fits that several calibrators share: the same as separate ones, and blind to what is held out."""

from __future__ import annotations

import numpy as np
import pytest
from labeled_logits import draw_calibrated, draw_focal
from sklearn.base import clone

from refocal.calibrators import (
    AutoCalibrator,
    BetaCalibration,
    DirichletCalibration,
    FocalPosterior,
    FocalTemperatureScaling,
    IsotonicCalibration,
    MatrixScaling,
    TemperatureScaling,
    VectorScaling,
)
from refocal.calibrators.folded import FoldedLogits
from refocal.calibrators.folds import split_rows
from refocal.maps.heads import structured_features
from refocal.maps.posterior import MapSettings

WEIGHTS = np.random.default_rng(0).integers(0, 4, 900).astype(float)


def fold(logits, labels, weights=None):
    return FoldedLogits(logits, labels, weights, split_rows(3, 0, logits, labels, weights))


def draw(dtype=np.float64):
    logits, labels = draw_focal(900, 4, gamma=2.0, temperature=1.5)
    return (30 * logits - 7).astype(dtype), labels


SHARED = [
    TemperatureScaling(),
    TemperatureScaling(objective="focal", gamma=1.0),
    FocalTemperatureScaling(),
    FocalTemperatureScaling(search="line"),
    IsotonicCalibration(),
    IsotonicCalibration(method="top_label"),
    BetaCalibration(),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["equal", "weighted"])
@pytest.mark.parametrize("calibrator", SHARED, ids=str)
def test_shared_fits_are_those_of_each_calibrator(calibrator, weights, dtype):
    logits, labels = draw(dtype)
    folded = fold(logits, labels, weights)
    shared = clone(calibrator).set_params(input="logits")
    predictions = list(shared._fit_and_hold_out(folded))
    alone = clone(calibrator).set_params(input="logits").fit(logits, labels, weights)
    np.testing.assert_allclose(shared.predict_log_proba(logits), alone.predict_log_proba(logits), atol=1e-5)
    for log_probs, (rows, held) in zip(predictions, folded.folds, strict=True):
        alone.fit(logits[rows], labels[rows], None if weights is None else weights[rows])
        # Fits to folds are in float32.
        np.testing.assert_allclose(log_probs, alone.predict_log_proba(logits[held]), atol=1e-4)


@pytest.mark.parametrize("calibrator", [VectorScaling(), MatrixScaling(), DirichletCalibration()], ids=str)
def test_linear_maps_on_shared_bases_are_those_of_a_fit_alone(calibrator):
    logits, labels = draw()
    auto = AutoCalibrator(candidates=[TemperatureScaling(), FocalTemperatureScaling(), VectorScaling(), calibrator])
    shared = auto.fit(logits, labels).candidates_[-1]
    alone = calibrator.fit(logits, labels)
    assert shared.penalty_ == alone.penalty_
    for name in ("gamma_", "temperature_", "weights_", "bias_", "penalty_scores_", "effective_parameters_"):
        np.testing.assert_allclose(getattr(shared, name), getattr(alone, name), rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("calibrator", [*SHARED[::2], VectorScaling(penalty=1.0), MatrixScaling(penalty=1.0)], ids=str)
def test_held_out_labels_do_not_reach_held_out_predictions(calibrator):
    """They only move first guesses and coordinates."""
    logits, labels = draw()
    folded = fold(logits, labels)
    changed = labels.copy()
    changed[folded.folds[1][1][:60]] = 0
    first, second = (
        list(clone(calibrator).set_params(input="logits")._fit_and_hold_out(fold(logits, each)))
        for each in (labels, changed)
    )
    # A path of penalties ends when a thousandth of the noise is left to gain.
    atol = 2e-3 if hasattr(calibrator, "penalty") else 1e-5
    np.testing.assert_allclose(first[1], second[1], atol=atol)
    assert np.abs(first[0] - second[0]).max() > 10 * atol


def test_a_guess_from_all_rows_is_used_only_if_it_is_certain():
    """With few rows, the NLL of focal temperature scaling may have several minima."""
    logits, labels = draw_calibrated(60, 4)
    folded = fold(logits, labels)
    assert folded.focal_temperature(None).gamma_error > 0.2 * (1 + folded.focal_temperature(None).gamma)
    for index, (rows, _) in enumerate(folded.folds):
        alone = FocalTemperatureScaling().fit(logits[rows], labels[rows])
        assert folded.focal_temperature(index).gamma == pytest.approx(alone.gamma_, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("focal", [False, True])
def test_features_are_those_of_the_head(focal):
    logits, labels = draw()
    folded = fold(logits, labels)
    base = folded.base(focal=focal)
    assert (base.gamma != 0) == focal
    settings = MapSettings.check(base.gamma, None, 0.0, False, classes=4)
    expected = structured_features(
        logits, temperature=base.temperature, settings=settings, uniform=base.uniform, centered=False, xp=np
    )
    np.testing.assert_allclose(folded.features(None, focal=focal), expected, rtol=1e-10, atol=1e-12)
    for index in range(3):
        fitted = folded.focal_temperature(index) if focal else folded.temperature(index)
        settings = MapSettings.check(fitted.gamma if focal else 0.0, None, 0.0, False, classes=4)
        uniform = 1 / (1 + len(folded.folds[index][0]))
        expected = structured_features(
            logits, temperature=1 / fitted.beta, settings=settings, uniform=uniform, centered=False, xp=np
        )
        np.testing.assert_allclose(folded.features(index, focal=focal), expected, atol=2e-5)
        assert folded.features(index, focal=focal) is folded.features(index, focal=focal)


def test_the_better_base_is_that_of_the_held_out_rows():
    logits, labels = draw()
    assert fold(logits, labels).focal_is_better
    logits, labels = draw_calibrated(3000, 3)
    folded = fold(logits, labels)
    gain = 0.0
    for index, (_, held) in enumerate(folded.folds):
        for focal, sign in ((True, 1), (False, -1)):
            fitted = folded.focal_temperature(index) if focal else folded.temperature(index)
            settings = MapSettings.check(fitted.gamma if focal else 0.0, None, 0.0, False, classes=3)
            log_probs = structured_features(
                logits[held], temperature=1 / fitted.beta, settings=settings, uniform=1 / 2001, centered=False, xp=np
            )
            gain += sign * log_probs[np.arange(len(held)), labels[held]].sum()
    assert folded.focal_is_better == (gain > 0)


@pytest.mark.parametrize("calibrator", [TemperatureScaling(), FocalTemperatureScaling()], ids=str)
def test_constant_rows_leave_the_logits_of_the_held_out_row_as_they_are(calibrator):
    """One row is not constant. In the fold that holds it out, T is not determined and is 1."""
    logits, labels = np.zeros((50, 3)), np.arange(50) % 3
    logits[0], labels[0] = [40.0, 8.0, 0.0], 1
    folded = fold(logits, labels)
    index = next(index for index, (_, held) in enumerate(folded.folds) if 0 in held)
    predictions = list(clone(calibrator).set_params(input="logits")._fit_and_hold_out(folded))
    expected = FocalPosterior(gamma=0.0, input="logits").fit(logits, labels).predict_log_proba(logits)
    np.testing.assert_allclose(predictions[index], expected[folded.folds[index][1]], atol=1e-6)


@pytest.mark.parametrize("focal", [False, True])
@pytest.mark.parametrize("spread", [60.0, 0.05])
def test_the_base_of_separable_rows_is_that_of_all_rows_in_each_fold(focal, spread):
    """T is not determined and is 1 logit, whatever the spread of the logits."""
    labels = np.arange(200) % 4
    logits = spread * (np.eye(4)[labels] + 0.1 * np.random.default_rng(0).random((200, 4)))
    folded = fold(logits, labels)
    assert folded.base(focal=focal).temperature == 1
    # The share of the uniform distribution is that of the fold.
    expected = structured_features(
        logits,
        temperature=1.0,
        settings=MapSettings.check(0.0, None, 0.0, False, classes=4),
        uniform=1 / (1 + len(folded.folds[0][0])),
        centered=False,
        xp=np,
    )
    np.testing.assert_allclose(folded.features(0, focal=focal), expected, atol=2e-5)
