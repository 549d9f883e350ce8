"""Temperature scaling with each of its objectives."""

from __future__ import annotations

import numpy as np
import pytest
from labeled_logits import draw_calibrated, draw_focal, mean_nll
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.calibration import _TemperatureScaling

from refocal.calibrators import FocalTemperatureScaling, TemperatureScaling
from refocal.calibrators.temperature import PUBLISHED_TEMPERATURES
from refocal.stats.binning import equal_mass_bins, equal_width_bins


def compute_nll(logits, labels, temperature, weights=None):
    scores = -log_softmax(logits.astype(np.float64) / temperature, axis=1)[np.arange(len(labels)), labels]
    return np.average(scores, weights=weights)


@pytest.mark.parametrize("true", [0.1, 0.5, 1.0, 3.0, 50.0])
@pytest.mark.parametrize("classes", [2, 10])
def test_a_known_temperature_is_found_within_its_standard_error(true, classes):
    logits, labels = draw_calibrated(5000, classes)
    calibrator = TemperatureScaling().fit(true * logits, labels)
    assert abs(calibrator.temperature_ - true) < 3 * calibrator.temperature_error_
    assert calibrator.temperature_error_ < 0.05 * true
    assert not calibrator.at_bound_
    assert calibrator.n_parameters_ == 1


def test_standard_error_matches_the_spread_of_estimates():
    fits = [TemperatureScaling().fit(*draw_calibrated(400, 5, seed=seed)) for seed in range(200)]
    spread = np.std([fit.temperature_ for fit in fits])
    assert np.mean([fit.temperature_error_ for fit in fits]) == pytest.approx(spread, rel=0.15)


def test_scikit_learn_finds_the_same_temperature():
    logits, labels = draw_calibrated(3000, 6)
    theirs = _TemperatureScaling().fit(2.5 * logits, labels)
    ours = TemperatureScaling().fit(2.5 * logits, labels)
    assert ours.temperature_ == pytest.approx(1 / theirs.beta_, rel=1e-4)
    assert (
        compute_nll(2.5 * logits, labels, ours.temperature_)
        <= compute_nll(2.5 * logits, labels, 1 / theirs.beta_) + 1e-15
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_fit_is_optimal(dtype, weighted):
    logits, labels = draw_calibrated(800, 7, dtype=dtype)
    weights = np.random.default_rng(3).random(800) if weighted else None
    found = TemperatureScaling().fit(1.7 * logits, labels, weights).temperature_
    best = minimize_scalar(
        lambda log_t: compute_nll(1.7 * logits, labels, np.exp(log_t), weights),
        bounds=(-3, 3),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert found == pytest.approx(np.exp(best.x), rel=1e-6)
    here = compute_nll(1.7 * logits, labels, found, weights)
    for other in [*PUBLISHED_TEMPERATURES, found * 1.001, found / 1.001]:
        assert here <= compute_nll(1.7 * logits, labels, other, weights) + 1e-15


def test_float32_and_float64_give_the_same_fit():
    logits, labels = draw_calibrated(3000, 20, dtype=np.float32)
    single, double = (TemperatureScaling().fit(2 * logits.astype(t), labels) for t in (np.float32, np.float64))
    assert single.temperature_ == pytest.approx(double.temperature_, rel=1e-7)
    assert single.temperature_ > 1.8
    half = TemperatureScaling().fit((2 * logits).astype(np.float16), labels)
    assert half.temperature_ == pytest.approx(double.temperature_, rel=1e-3)


def test_weights_count_as_repetitions():
    logits, labels = draw_calibrated(300, 4)
    counts = np.random.default_rng(0).integers(0, 4, 300)
    weighted = TemperatureScaling().fit(logits, labels, counts)
    repeated = TemperatureScaling().fit(np.repeat(logits, counts, axis=0), np.repeat(labels, counts))
    assert weighted.temperature_ == pytest.approx(repeated.temperature_, rel=1e-7)
    assert weighted.temperature_error_ == pytest.approx(repeated.temperature_error_, rel=1e-3)


def test_a_scale_of_logits_is_undone_and_a_shift_does_nothing():
    logits, labels = draw_calibrated(500, 4)
    plain = TemperatureScaling().fit(logits, labels)
    for scale in (1e-12, 1e-3, 1e3, 1e12):
        scaled = TemperatureScaling().fit(scale * logits, labels)
        assert scaled.temperature_ == pytest.approx(scale * plain.temperature_, rel=1e-7)
    shift = np.random.default_rng(1).standard_normal((500, 1))
    assert TemperatureScaling().fit(logits + shift, labels).temperature_ == pytest.approx(plain.temperature_, rel=1e-7)


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e20, 1e30])
def test_float32_logits_of_any_size_are_fitted(scale):
    logits, labels = draw_calibrated(500, 4)
    scaled = (scale * logits).astype(np.float32)
    for calibrator in (TemperatureScaling(), FocalTemperatureScaling()):
        found = calibrator.fit(scaled, labels).predict_log_proba(scaled)
        expected = calibrator.fit(scaled.astype(np.float64), labels).predict_log_proba(scaled)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_two_classes_in_closed_form():
    # One logit gap g that is right in a share r of the cases: log-odds g / T = log(r / (1 - r)).
    logits = np.tile([[5.0, 0.0]], (10, 1))
    labels = np.array([0] * 8 + [1] * 2)
    calibrator = TemperatureScaling().fit(logits, labels)
    assert calibrator.temperature_ == pytest.approx(5 / np.log(4), rel=1e-7)
    np.testing.assert_allclose(calibrator.predict_proba(logits[:1]), [[0.8, 0.2]], rtol=1e-6)
    # The information of Bernoulli log-odds about 1/T is N g^2 r (1 - r).
    expected = calibrator.temperature_**2 / np.sqrt(10 * 25 * 0.16)
    assert calibrator.temperature_error_ == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_a_calibrated_log_odds_in_one_column_has_temperature_1(shape):
    rng = np.random.default_rng(0)
    log_odds = 2 * rng.standard_normal(20_000)
    labels = rng.random(20_000) < 1 / (1 + np.exp(-log_odds))
    calibrator = TemperatureScaling().fit(log_odds.reshape(shape), labels)
    assert abs(calibrator.temperature_ - 1) < 3 * calibrator.temperature_error_ < 0.1
    two = TemperatureScaling().fit(np.stack([np.zeros_like(log_odds), log_odds], axis=1), labels)
    assert calibrator.temperature_ == two.temperature_
    assert calibrator.predict_proba(log_odds.reshape(shape)).shape == (20_000, 2)
    probs = 1 / (1 + np.exp(-log_odds))
    from_probs = TemperatureScaling(input="probs").fit(probs.reshape(shape), labels)
    assert from_probs.temperature_ == pytest.approx(calibrator.temperature_, rel=1e-6)


def test_probabilities_and_their_logits_give_the_same_fit():
    logits, labels = draw_calibrated(600, 5)
    probs = np.exp(log_softmax(3 * logits, axis=1))
    a, b = TemperatureScaling(input="probs").fit(probs, labels), TemperatureScaling().fit(3 * logits, labels)
    assert a.temperature_ == pytest.approx(b.temperature_, rel=1e-7)
    np.testing.assert_allclose(a.predict_proba(probs), b.predict_proba(3 * logits), rtol=1e-6)
    zeros = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]], dtype=np.float32)
    fitted = TemperatureScaling(input="probs").fit(zeros, [1, 0, 2])  # a label that was given probability 0
    assert np.isfinite(fitted.temperature_)
    assert np.all(fitted.predict_proba(zeros) > 0)


# --- the other objectives


def test_focal_objective_then_posterior_recovers_probabilities():
    logits, labels = draw_focal(20_000, 4, gamma=3.0, temperature=1.6)
    calibrator = TemperatureScaling(objective="focal", gamma=3.0, apply_posterior=True).fit(logits, labels)
    assert calibrator.temperature_ == pytest.approx(1.6, rel=0.05)
    raw = TemperatureScaling(objective="focal", gamma=3.0).fit(logits, labels)
    assert raw.temperature_ == calibrator.temperature_
    assert mean_nll(calibrator, logits, labels) < mean_nll(raw, logits, labels) - 0.05


def test_focal_objective_is_minimized_and_gamma_0_is_the_likelihood():
    logits, labels = draw_calibrated(400, 3)
    plain, zero = TemperatureScaling().fit(logits, labels), TemperatureScaling(objective="focal").fit(logits, labels)
    assert zero.temperature_ == plain.temperature_

    def risk(temperature, gamma=2.0):
        p = np.exp(log_softmax(logits / temperature, axis=1))[np.arange(400), labels]
        return np.mean(-((1 - p) ** gamma) * np.log(p))

    found = TemperatureScaling(objective="focal", gamma=2.0).fit(logits, labels).temperature_
    assert all(risk(found) <= risk(other) + 1e-12 for other in [*np.geomspace(0.05, 20, 300), found * 1.01])


@pytest.mark.parametrize(("classes", "gamma", "spread"), [(2, 5.0, 1.0), (3, 3.0, 6.0), (3, 20.0, 2.0), (99, 5.0, 0.3)])
def test_a_focal_objective_may_ask_for_a_temperature_far_from_the_most_likely_one(classes, gamma, spread):
    logits, labels = draw_calibrated(1000, classes, spread=spread)

    def risk(temperature):
        log_p = log_softmax(logits / temperature, axis=1)[np.arange(1000), labels]
        return np.mean(-((-np.expm1(log_p)) ** gamma) * log_p)

    found = TemperatureScaling(objective="focal", gamma=gamma).fit(logits, labels).temperature_
    assert risk(found) <= min(risk(other) for other in np.geomspace(0.02, 100, 500)) * (1 + 1e-9)


@pytest.mark.parametrize(("objective", "bins"), [("ece", equal_width_bins), ("adaptive_ece", equal_mass_bins)])
def test_calibration_error_over_the_published_grid(objective, bins):
    logits, labels = draw_calibrated(600, 4)
    correct = logits.argmax(axis=1) == labels

    def error(temperature):
        confidence = np.exp(log_softmax(2 * logits / temperature, axis=1)).max(axis=1)
        return bins(confidence, correct, bins=15).expected_calibration_error

    calibrator = TemperatureScaling(objective=objective).fit(2 * logits, labels)
    errors = [error(t) for t in PUBLISHED_TEMPERATURES]
    assert calibrator.temperature_ == PUBLISHED_TEMPERATURES[np.argmin(errors)]
    assert np.isinf(calibrator.temperature_error_)
    fine = TemperatureScaling(objective=objective, temperature_grid="continuous").fit(2 * logits, labels)
    assert error(fine.temperature_) <= min(errors) + 0.002
    own = TemperatureScaling(objective=objective, temperature_grid=[1.5, 2.0]).fit(2 * logits, labels)
    assert own.temperature_ in (1.5, 2.0)


# --- data that determine little


def test_separable_data_end_at_the_documented_bound():
    logits = np.array([[3.0, 0.0, 0.0], [0.0, 2.0, 1.0], [0.0, 0.0, 5.0]])
    calibrator = TemperatureScaling().fit(logits, [0, 1, 2])
    assert calibrator.at_bound_
    assert calibrator.temperature_ == pytest.approx(3 / 1e4)  # 3, 1 and 5 are the distances of the two largest
    assert np.isinf(calibrator.temperature_error_)
    np.testing.assert_allclose(calibrator.predict_proba(logits), np.eye(3), atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_all_separable_data_end_at_the_bound(dtype):
    """The search must not stop before the bound because the NLL or its slope has become rounding noise."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        logits = (rng.choice([0.5, 5, 30]) * rng.standard_normal((rng.choice([5, 30]), 3))).astype(dtype)
        calibrator = TemperatureScaling().fit(logits, logits.argmax(axis=1))
        assert calibrator.at_bound_
        ordered = np.sort(logits, axis=1)
        lead = np.median(ordered[:, -1] - ordered[:, -2])
        assert calibrator.temperature_ == pytest.approx(lead / 1e4, rel=1e-5)
        assert FocalTemperatureScaling().fit(logits, logits.argmax(axis=1)).at_bound_


def test_predictions_all_wrong_end_uniform():
    logits, _ = draw_calibrated(100, 4)
    calibrator = TemperatureScaling().fit(logits, logits.argmin(axis=1))
    assert calibrator.at_bound_
    np.testing.assert_allclose(calibrator.predict_proba(logits), 0.25, atol=1e-3)


def test_constant_logits_leave_temperature_1():
    calibrator = TemperatureScaling().fit(np.full((5, 3), 7.0), [0, 1, 2, 0, 1])
    assert calibrator.temperature_ == 1
    assert np.isinf(calibrator.temperature_error_)
    np.testing.assert_allclose(calibrator.predict_proba(np.full((1, 3), 7.0)), 1 / 3)


def test_errors_name_the_argument():
    logits, labels = draw_calibrated(20, 3)
    for settings, message in [
        ({"objective": "mse"}, "objective must be one of .*got 'mse'"),
        ({"gamma": 2.0}, 'gamma and apply_posterior belong to objective="focal"'),
        ({"objective": "focal", "gamma": -0.5}, "gamma must be at least 0"),
        ({"objective": "ece", "temperature_grid": [1.0, 0.0]}, "temperature_grid must be a sequence of positive"),
        ({"objective": "ece", "temperature_grid": "fine"}, 'temperature_grid must be "continuous", .* got .fine.'),
        ({"input": "scores"}, "input must be one of .*got 'scores'"),
    ]:
        with pytest.raises(ValueError, match=message):
            TemperatureScaling(**settings).fit(logits, labels)
    with pytest.raises(ValueError, match="sample_weight needs an objective that is a mean over samples"):
        TemperatureScaling(objective="ece").fit(logits, labels, np.ones(20))
    with pytest.raises(ValueError, match="rows of probs must sum to 1"):
        TemperatureScaling(input="probs").fit(logits - logits.min(), labels)
    with pytest.raises(ValueError, match=r"probs must lie in .* \(for logits, pass input='logits'\), got .* row \d"):
        TemperatureScaling(input="probs").fit(logits[:, 0] + 9, labels % 2)
