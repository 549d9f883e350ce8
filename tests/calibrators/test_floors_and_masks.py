"""Probabilities of exactly 0, and logits of masked classes."""

from __future__ import annotations

import numpy as np
import pytest
from labeled_logits import draw_calibrated
from scipy.special import softmax
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier

import refocal
from refocal.calibrators import (
    BY_NAME,
    AutoCalibrator,
    FocalPosterior,
    FocalTemperatureScaling,
    PlattScaling,
    TemperatureScaling,
    load,
)
from refocal.metrics import nll


@pytest.fixture(scope="module", params=[RandomForestClassifier(50, random_state=0), KNeighborsClassifier()], ids=repr)
def votes(request):
    """Probabilities with exact zeros, and labels, to fit to and to test on."""
    pixels, labels = load_digits(return_X_y=True)
    model = clone(request.param).fit(pixels[::3], labels[::3])
    return tuple((model.predict_proba(pixels[k::3]), labels[k::3]) for k in (1, 2))


@pytest.mark.parametrize("name", BY_NAME)
def test_exact_zeros_do_not_depend_on_the_dtype(votes, name):
    (probs, labels), (others, wanted) = votes
    assert np.mean(probs == 0) > 0.3
    double, single = (
        BY_NAME[name](input="probs").fit(probs.astype(dtype), labels).predict_proba(others.astype(dtype))
        for dtype in (np.float64, np.float32)
    )
    by_order = name in ("isotonic", "histogram", "quadratic", "venn-abers")  # rounding separates some equal scores
    assert nll(double, wanted) == pytest.approx(nll(single, wanted), rel=0.05 if by_order else 1e-4)
    assert nll(double, wanted) < 0.5


@pytest.mark.parametrize("combine", ["mixture", "select"])
def test_auto_calibrates_votes(votes, combine):
    (probs, labels), (others, wanted) = votes
    auto = AutoCalibrator(input="probs", combine=combine).fit(probs, labels)
    temperature = TemperatureScaling(input="probs").fit(probs, labels)
    found = auto.predict_proba(others)
    assert found.min() > 0
    assert nll(found, wanted) < nll(temperature.predict_proba(others), wanted) + 0.02
    for member in auto.members_:
        assert getattr(member, "floor_", auto.floor_) == auto.floor_
    assert len(auto.members_) == 1 or combine == "mixture"


def test_temperature_scaling_of_votes_is_better_than_with_tiny_numbers(votes):
    (probs, labels), (others, wanted) = votes
    fitted = TemperatureScaling(input="probs").fit(probs, labels)
    assert fitted.floor_ == 1 / (len(labels) + 1)
    assert 0.1 < fitted.temperature_ < 1
    tiny = TemperatureScaling().fit(np.log(np.maximum(probs, 1e-300)), labels)
    assert nll(fitted.predict_proba(others), wanted) < 0.6 * nll(tiny.predict_proba(np.log(others + 1e-300)), wanted)


def test_small_probabilities_of_a_network_are_kept():
    logits, labels = draw_calibrated(4000, 10)
    logits = 4 * logits
    probs = np.exp(logits - np.log(np.sum(np.exp(logits), axis=1, keepdims=True)))
    assert probs.min() < 1e-9
    fitted = TemperatureScaling(input="probs").fit(probs, labels)
    assert fitted.floor_ == probs.min()
    assert fitted.temperature_ == pytest.approx(TemperatureScaling().fit(logits, labels).temperature_, rel=1e-6)


def test_one_column_has_a_floor_at_both_ends():
    rng = np.random.default_rng(0)
    probs = rng.binomial(5, 0.5, 100) / 5
    labels = (rng.random(100) < probs).astype(int)
    labels[np.flatnonzero(probs == 0)[0]] = 1
    fitted = PlattScaling(input="probs").fit(probs, labels)
    assert fitted.floor_ == 1 / 101
    with np.errstate(divide="ignore"):
        log_odds = np.log(np.maximum(probs, 1 / 101)) - np.log(np.maximum(1 - probs, 1 / 101))
    same = PlattScaling(input="logits").fit(log_odds, labels)
    np.testing.assert_allclose(fitted.predict_proba(probs), same.predict_proba(log_odds), rtol=1e-9)
    two = PlattScaling(input="probs").fit(np.stack([1 - probs, probs], axis=1), labels)
    np.testing.assert_allclose(two.predict_proba([[1.0, 0.0]]), fitted.predict_proba([0.0]), rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exports_read_0_and_1_as_predictions_do(dtype, tmp_path):
    rng = np.random.default_rng(0)
    probs = rng.random(200)
    labels = (rng.random(200) < probs).astype(int)
    probs[:3] = 1e-20, 1.0, 0.0
    fitted = PlattScaling(input="probs").fit(probs, labels)
    fitted.floor_ = 1e-20
    ends = np.array([[0.0], [1.0], [1e-21], [0.5]], dtype=dtype)
    found = fitted.to_torch()(tensor(ends)).numpy()
    np.testing.assert_allclose(np.log(found), np.log(fitted.predict_proba(ends)), rtol=1e-4, atol=1e-6)


def test_a_posterior_that_needs_no_fit_has_no_floor():
    probs = np.array([[1.0, 0.0], [0.4, 0.6], [0.5, 0.5]])
    fitted = FocalPosterior(gamma=2.0, input="probs").fit(probs, [0, 1, 0])
    assert not hasattr(fitted, "floor_")
    assert fitted.predict_proba(probs)[0, 1] < 1e-300


def test_a_refit_forgets_the_floor(votes, tmp_path):
    (probs, labels), _ = votes
    calibrator = TemperatureScaling(input="probs").fit(probs, labels)
    calibrator.save(tmp_path / "calibrator.json")
    assert load(tmp_path / "calibrator.json").floor_ == calibrator.floor_
    calibrator.set_params(input="logits").fit(probs, labels)
    assert not hasattr(calibrator, "floor_")


# --- masks


def mask(logits, labels, value=-np.inf):
    """Mask some classes, but not the labels."""
    hidden = np.random.default_rng(1).random(logits.shape) < 0.4
    hidden[np.arange(len(labels)), labels] = False
    return np.where(hidden, value, logits)


@pytest.mark.parametrize("name", ["temperature", "focal-temperature"])
def test_masked_classes_get_probability_0_and_do_not_disturb_the_fit(name, tmp_path):
    logits, labels = draw_calibrated(3000, 6)
    masked = mask(2 * logits, labels)
    calibrator = BY_NAME[name]().fit(masked, labels)
    probs = calibrator.predict_proba(masked)
    np.testing.assert_array_equal(probs == 0, np.isinf(masked))
    far = BY_NAME[name]().fit(mask(2 * logits, labels, -1e9), labels)
    np.testing.assert_allclose(far.predict_proba(masked), probs, atol=1e-6)
    calibrator.to_onnx(tmp_path / "head.onnx")
    np.testing.assert_allclose(calibrator.to_torch()(tensor(masked)).numpy(), probs, atol=1e-12)


@pytest.mark.parametrize("value", [-2e3, -1e6, -1e9])
@pytest.mark.parametrize("name", BY_NAME)
def test_masks_that_are_finite_do_not_disturb_any_fit(name, value):
    (logits, labels), (others, wanted) = (draw_calibrated(2000, 10, seed=seed) for seed in (0, 1))
    fitted = BY_NAME[name]().fit(mask(2 * logits, labels, value), labels)
    found = nll(fitted.predict_proba(mask(2 * others, wanted, value)), wanted)
    assert found < nll(softmax(mask(others, wanted), axis=1), wanted) + 0.04


def tensor(array):
    import torch

    return torch.as_tensor(array)


def force(logits, labels, share, value=-np.inf):
    """Mask all classes but the label in this share of the rows."""
    forced = np.random.default_rng(1).random(len(labels)) < share
    hidden = np.repeat(forced[:, None], logits.shape[1], axis=1)
    hidden[np.arange(len(labels)), labels] = False
    return np.where(hidden, value, logits), forced


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("make", [TemperatureScaling, FocalTemperatureScaling, lambda: AutoCalibrator(cv=2)])
def test_rows_in_which_only_one_class_is_not_masked_determine_nothing(make, dtype):
    logits = np.array([[1, -np.inf, -np.inf], [-np.inf, 2, -np.inf], [-np.inf, 0, 0], [5, -np.inf, -np.inf]], dtype)
    probs = make().set_params(classes=3).fit(logits, [0, 1, 2, 0]).predict_proba(logits)
    np.testing.assert_allclose(probs, [[1, 0, 0], [0, 1, 0], [0, 0.5, 0.5], [1, 0, 0]])


def test_rows_that_are_forced_change_no_held_out_score_of_others():
    logits, labels = draw_calibrated(2000, 5)
    masked, _ = force(3 * logits, labels, 0.7)
    auto = AutoCalibrator().fit(masked, labels)
    scores = {result["name"]: result["score"] for result in auto.results_}
    own = nll(TemperatureScaling().fit(masked, labels).predict_proba(masked), labels)
    assert scores["TemperatureScaling"] == pytest.approx(own, rel=0.02)
    assert scores["FocalPosterior"] > 1.3 * own


@pytest.mark.parametrize("value", [-65504, -1e9, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("name", BY_NAME)
def test_rows_that_finite_masks_force_do_not_disturb_any_fit(name, value):
    (logits, labels), (others, wanted) = (draw_calibrated(2000, 5, seed=seed) for seed in (0, 1))
    (masked, _), (scores, forced) = force(3 * logits, labels, 0.6, value), force(3 * others, wanted, 0.6, value)
    fitted = BY_NAME[name]().fit(masked, labels)
    found = nll(fitted.predict_proba(scores), wanted)
    assert found < np.mean(~forced) * nll(softmax(others[~forced], axis=1), wanted[~forced]) + 0.04


@pytest.mark.parametrize("lead", [1e13, 1e38])
@pytest.mark.parametrize("name", BY_NAME)
def test_a_row_that_is_right_by_far_changes_little(name, lead):
    logits, labels = draw_calibrated(1000, 2)
    far = logits.copy()
    far[0, labels[0]] = lead
    plain, other = (BY_NAME[name]().fit(scores, labels) for scores in (logits, far))
    assert np.mean(np.abs(other.predict_proba(logits) - plain.predict_proba(logits))) < 0.02
    assert other.predict_proba(far)[0, labels[0]] > 0.9


def test_calibrators_that_take_no_masks_say_which_do():
    logits, labels = draw_calibrated(50, 3)
    masked = mask(logits, labels)
    with pytest.raises(ValueError, match="-inf, which PlattScaling cannot take: fit TemperatureScaling, Focal"):
        PlattScaling().fit(masked, labels)
    fitted = PlattScaling().fit(logits, labels)
    with pytest.raises(ValueError, match="-inf, which this PlattScaling cannot take"):
        fitted.predict_proba(masked)


def test_auto_chooses_among_the_calibrators_that_take_masks():
    logits, labels = draw_calibrated(2000, 4)
    masked = mask(3 * logits, labels)
    auto = AutoCalibrator().fit(masked, labels)
    assert {result["name"] for result in auto.results_} == {
        FocalPosterior.__name__,
        TemperatureScaling.__name__,
        FocalTemperatureScaling.__name__,
        "mixture",
    }
    np.testing.assert_array_equal(auto.predict_proba(masked) == 0, np.isinf(masked))
    auto.fit(logits, labels)
    assert len(auto.results_) == 8
    auto.fit(masked, labels)  # an earlier fit does not matter
    assert refocal.calibrate(masked, labels).chosen.name in ("temperature", "focal-temperature", "mixture")
