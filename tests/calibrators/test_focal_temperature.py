"""Focal temperature scaling and the posterior map of focal loss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from labeled_logits import draw_calibrated, draw_focal, mean_nll
from scipy.optimize import minimize

from refocal import posterior_from_logits
from refocal.calibrators import FocalPosterior, FocalTemperatureScaling, TemperatureScaling
from refocal.calibrators.focal_temperature import PUBLISHED_GAMMAS, PUBLISHED_TEMPERATURES, _line_search
from refocal.stats.binning import equal_mass_bins


def scale(logits, temperatures):
    """Divide logits by one temperature, or by each of several: (..., N, K)."""
    return logits.astype(np.float64) / np.asarray(temperatures)[..., None, None]


def compute_nll(logits, labels, gamma, temperatures):
    logs = posterior_from_logits(scale(logits, temperatures), gamma=gamma, log=True)
    return -np.mean(logs[..., np.arange(len(labels)), labels], axis=-1)


@pytest.mark.parametrize(("gamma", "temperature"), [(3.0, 1.0), (1.0, 2.5), (0.5, 0.2), (0.0, 1.0)])
def test_known_parameters_are_found_within_their_standard_errors(gamma, temperature):
    logits, labels = draw_focal(20_000, 6, gamma=gamma, temperature=temperature)
    fitted = FocalTemperatureScaling().fit(logits, labels)
    assert abs(fitted.gamma_ - gamma) < 3 * fitted.gamma_error_
    assert abs(fitted.temperature_ - temperature) < 3 * fitted.temperature_error_
    assert fitted.temperature_error_ < 0.1 * temperature
    assert fitted.n_parameters_ == 2


def test_standard_errors_match_the_spread_of_estimates():
    fits = [FocalTemperatureScaling().fit(*draw_calibrated(4000, 5, seed=seed)) for seed in range(100)]
    for name in ("gamma", "temperature"):
        spread = np.std([getattr(fit, f"{name}_") for fit in fits])
        assert np.mean([getattr(fit, f"{name}_error_") for fit in fits]) == pytest.approx(spread, rel=0.25)


@pytest.mark.parametrize("classes", [2, 3, 20])
@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0])
def test_the_fit_is_optimal_and_never_worse_than_temperature_scaling(classes, scale):
    logits, labels = draw_calibrated(600, classes)
    logits = scale * np.sign(logits) * np.abs(logits) ** 1.3  # not a member of the family
    fitted = FocalTemperatureScaling().fit(logits, labels)
    here = compute_nll(logits, labels, fitted.gamma_, fitted.temperature_)
    plain = TemperatureScaling().fit(logits, labels)
    assert here <= mean_nll(plain, logits, labels) + 1e-14
    if not fitted.at_bound_:
        for gamma_step in (-1e-3, 0, 1e-3):
            for factor in (0.999, 1, 1.001):
                other = compute_nll(logits, labels, fitted.gamma_ + gamma_step, fitted.temperature_ * factor)
                assert here <= other + 1e-13
    for gamma in PUBLISHED_GAMMAS:
        assert np.all(here <= compute_nll(logits, labels, gamma, PUBLISHED_TEMPERATURES[4::25]) + 1e-12)


def test_a_general_optimizer_finds_nothing_better():
    logits, labels = draw_focal(2000, 4, gamma=2.0, temperature=1.5)
    fitted = FocalTemperatureScaling().fit(logits, labels)
    found = minimize(
        lambda x: compute_nll(logits, labels, np.expm1(x[0]), np.exp(x[1])),
        [0.5, 0.0],
        method="Nelder-Mead",
        options={"xatol": 1e-7, "fatol": 1e-13, "maxiter": 2000},
    )
    assert fitted.gamma_ == pytest.approx(np.expm1(found.x[0]), rel=1e-3)
    assert compute_nll(logits, labels, fitted.gamma_, fitted.temperature_) <= found.fun + 1e-12


def test_float32_and_float64_give_the_same_fit():
    logits, labels = draw_focal(3000, 10, gamma=1.0)
    logits = logits.astype(np.float32)
    single, double = (FocalTemperatureScaling().fit(logits.astype(t), labels) for t in (np.float32, np.float64))
    assert single.gamma_ == pytest.approx(double.gamma_, abs=1e-4)
    assert single.temperature_ == pytest.approx(double.temperature_, rel=1e-4)
    assert abs(single.gamma_ - double.gamma_) < 1e-3 * double.gamma_error_


def test_weights_count_as_repetitions():
    logits, labels = draw_focal(500, 4, gamma=1.0)
    counts = np.random.default_rng(0).integers(0, 4, 500)
    weighted = FocalTemperatureScaling().fit(logits, labels, counts)
    repeated = FocalTemperatureScaling().fit(np.repeat(logits, counts, axis=0), np.repeat(labels, counts))
    assert weighted.gamma_ == pytest.approx(repeated.gamma_, abs=1e-6)
    assert weighted.gamma_error_ == pytest.approx(repeated.gamma_error_, rel=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_masked_classes_do_not_matter(dtype):
    """A class whose logit is -10,000 in every row does not affect the fit."""
    logits, labels = draw_focal(2000, 5, gamma=1.0)
    logits = logits.astype(dtype)
    masked = np.concatenate([logits, np.full((2000, 2), -1e4, dtype=dtype)], axis=1)
    for method in (TemperatureScaling, FocalTemperatureScaling):
        plain, other = method().fit(logits, labels), method().fit(masked, labels)
        assert other.temperature_ == pytest.approx(plain.temperature_, rel=1e-4)
        assert other.temperature_error_ == pytest.approx(plain.temperature_error_, rel=1e-2)
    assert other.gamma_ == pytest.approx(plain.gamma_, abs=1e-3)


def test_logits_too_far_apart_for_their_dtype():
    signs = np.array([[1.0, -1.0], [-1.0, 1.0], [1.0, -1.0]])
    with pytest.raises(ValueError, match="differences that are finite in float64, got logits of size"):
        FocalTemperatureScaling().fit(1.7e308 * signs, [0, 1, 1])
    for calibrator in (TemperatureScaling(), FocalTemperatureScaling()):
        assert calibrator.fit((3e38 * signs).astype(np.float32), [0, 1, 1]).temperature_ > 1e38


# --- grid and line


def compute_errors(logits, labels, gamma, temperatures):
    confidences = posterior_from_logits(scale(logits, temperatures), gamma=gamma).max(axis=-1)
    correct = logits.argmax(axis=1) == labels
    return [equal_mass_bins(each, correct, bins=15).expected_calibration_error for each in confidences]


def test_the_default_grid_is_the_published_one():
    assert PUBLISHED_GAMMAS.tolist() == [-0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1, 5]
    assert len(PUBLISHED_TEMPERATURES) == 500
    assert (PUBLISHED_TEMPERATURES[0], PUBLISHED_TEMPERATURES[-1]) == (0.01, 5.0)
    np.testing.assert_allclose(np.diff(PUBLISHED_TEMPERATURES), 0.01)
    logits, labels = draw_focal(80, 3, gamma=1.0)
    fitted = FocalTemperatureScaling(objective="adaptive_ece", search="grid").fit(logits, labels)
    assert fitted.evaluations_ == 4500
    least = min(min(compute_errors(logits, labels, gamma, PUBLISHED_TEMPERATURES)) for gamma in PUBLISHED_GAMMAS)
    (found,) = compute_errors(logits, labels, fitted.gamma_, [fitted.temperature_])
    assert found == pytest.approx(least, abs=1e-12)
    assert fitted.gamma_ in PUBLISHED_GAMMAS
    assert fitted.temperature_ in PUBLISHED_TEMPERATURES


def test_custom_grids():
    logits, labels = draw_focal(200, 3, gamma=1.0)
    fitted = FocalTemperatureScaling(search="grid", gamma_grid=[0.0, 1.0], temperature_grid=[0.9, 1.1])
    fitted.fit(logits, labels)
    pairs = {(g, t): compute_nll(logits, labels, g, t) for g in (0.0, 1.0) for t in (0.9, 1.1)}
    assert (fitted.gamma_, fitted.temperature_) == min(pairs, key=pairs.get)
    assert fitted.evaluations_ == 4


@pytest.mark.parametrize("gamma", [0.0, 1.0, 4.0])
def test_line_comes_within_a_tenth_of_a_point_of_the_grid(gamma):
    logits, labels = draw_focal(3000, 5, gamma=gamma, temperature=1.4)
    line = FocalTemperatureScaling(objective="adaptive_ece", search="line").fit(logits, labels)
    coarse = {"gamma_grid": PUBLISHED_GAMMAS, "temperature_grid": PUBLISHED_TEMPERATURES[50::3]}
    grid = FocalTemperatureScaling(objective="adaptive_ece", search="grid", **coarse).fit(logits, labels)
    (of_line,), (of_grid,) = (compute_errors(logits, labels, fit.gamma_, [fit.temperature_]) for fit in (line, grid))
    assert of_line <= of_grid + 0.001
    assert line.evaluations_ < 4500 / 50


@pytest.mark.parametrize("least_at", [-0.5, 0.3, 1.0, 1.5])
@pytest.mark.parametrize("offset", [-0.1, 0.2])
def test_line_follows_a_valley_with_a_bend(least_at, offset):
    """log T rises along log(1 + gamma) with slope 0.3, and with slope 0.6 above gamma = 1."""
    evaluations = []

    def height(u):
        return offset + (0.3 * u if u < np.log(2) else 0.3 * np.log(2) + 0.6 * (u - np.log(2)))

    def objective(gamma, temperature):
        evaluations.append(gamma)
        u = np.log1p(gamma)
        return abs(np.log(temperature) - height(u)) + 0.3 * abs(u - least_at)

    gamma, temperature = _line_search(objective, np.exp(offset))
    assert np.log1p(gamma) == pytest.approx(least_at, abs=0.05)
    assert np.log(temperature) == pytest.approx(height(np.log1p(gamma)), abs=0.01)
    assert len(evaluations) <= 80


def test_rows_with_equal_log_odds_cannot_tell_gamma_from_temperature():
    """Every (gamma, T) of a curve gives the class frequencies; the fit is one of them."""
    logits = np.array([[-1000.0, 0.001]] * 3 + [[-999.999, 0.0]] * 2)
    fitted = FocalTemperatureScaling().fit(logits, np.array([1, 1, 1, 0, 0]))
    np.testing.assert_allclose(fitted.predict_proba(logits)[:, 1], 0.6, rtol=1e-4)


def test_searches_count_evaluations_and_give_no_standard_errors():
    logits, labels = draw_focal(200, 3, gamma=1.0)
    tried = []
    _line_search(lambda gamma, temperature: tried.append(1) or abs(np.log(temperature)) + abs(gamma), 1.0)
    line = FocalTemperatureScaling(search="line").fit(logits, labels)
    grid = FocalTemperatureScaling(search="grid", gamma_grid=[0.0, 1.0], temperature_grid=[0.5, 1.0, 2.0])
    for fitted, evaluations in ((line, len(tried)), (grid.fit(logits, labels), 6)):
        assert fitted.evaluations_ == evaluations
        assert fitted.gamma_error_ == fitted.temperature_error_ == np.inf
        assert not fitted.at_bound_
        expected = posterior_from_logits(logits, gamma=fitted.gamma_, temperature=fitted.temperature_)
        np.testing.assert_allclose(fitted.predict_proba(logits), expected, rtol=1e-12)
    assert FocalPosterior(gamma=2.0).fit(logits, labels).gamma_error_ == 0


def test_line_by_likelihood_is_close_to_newton():
    logits, labels = draw_focal(3000, 5, gamma=1.0)
    line, newton = (FocalTemperatureScaling(search=search).fit(logits, labels) for search in ("line", "newton"))
    assert mean_nll(newton, logits, labels) <= mean_nll(line, logits, labels) + 1e-12
    assert mean_nll(line, logits, labels) <= mean_nll(newton, logits, labels) + 1e-3


# --- predicted classes


@settings(max_examples=150, deadline=None)
@given(
    arrays(np.float64, (4, 5), elements=st.floats(-1000, 1000)),
    st.floats(-0.96, 50),
    st.floats(0.01, 100),
)
def test_arg_max_never_changes(logits, gamma, temperature):
    calibrator = FocalTemperatureScaling(input="logits").fit(*draw_calibrated(50, 5))
    calibrator.gamma_, calibrator.temperature_ = gamma, temperature
    logs = calibrator.predict_log_proba(logits)
    top = np.take_along_axis(logs, logits.argmax(axis=1)[:, None], axis=1)[:, 0]
    # up to rounding
    assert np.all(top >= logs.max(axis=1) - 1e-12 * (1 + np.abs(top)))
    probs = calibrator.predict_proba(logits)
    assert np.all(np.isfinite(probs))
    np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-12)


def test_extreme_data_and_bad_settings():
    logits, labels = draw_calibrated(30, 3)
    held = FocalTemperatureScaling().fit(logits, logits.argmax(axis=1))  # separable
    assert held.at_bound_
    assert held.gamma_ == 0
    flat = FocalTemperatureScaling().fit(np.zeros((6, 3)), [0, 1, 2, 0, 1, 2])
    assert (flat.gamma_, flat.temperature_) == (0, 1)
    one = FocalTemperatureScaling().fit(np.array([[1.0, 2.0, 0.0]]), [0])
    assert np.isfinite(one.gamma_)
    assert np.isfinite(one.temperature_)
    for options, message in [
        ({"objective": "ece"}, 'search="newton" needs objective="nll"'),
        ({"search": "random"}, "search must be one of"),
        ({"gamma_grid": [0.0]}, 'gamma_grid and temperature_grid belong to search="grid"'),
        ({"search": "grid", "gamma_grid": [-1.0]}, "gamma must be greater than -1"),
        ({"search": "grid", "gamma_grid": []}, "gamma_grid must be a sequence"),
        ({"search": "grid", "gamma_grid": "fine"}, "gamma_grid must be a sequence of numbers, got 'fine'"),
        ({"search": "grid", "temperature_grid": ["a"]}, "temperature_grid must be a sequence of numbers, got"),
    ]:
        with pytest.raises(ValueError, match=message):
            FocalTemperatureScaling(**options).fit(logits, labels)


# --- FocalPosterior


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_posterior_with_a_fitted_gamma(gamma):
    logits, labels = draw_focal(20_000, 5, gamma=gamma)
    fitted = FocalPosterior(gamma="fit").fit(logits, labels)
    assert abs(fitted.gamma_ - gamma) < 3 * fitted.gamma_error_
    assert 0 < fitted.gamma_error_ < 0.2
    assert fitted.n_parameters_ == 1
    given_gamma = FocalPosterior(gamma=fitted.gamma_)
    np.testing.assert_allclose(given_gamma.predict_proba(logits[:9]), fitted.predict_proba(logits[:9]), rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_fitted_gamma_maximizes_the_likelihood_and_has_the_error_of_its_curvature(weighted):
    logits, labels = draw_focal(300, 4, gamma=1.5)
    times = np.random.default_rng(0).integers(1, 4, 300) if weighted else np.ones(300, int)
    fitted = FocalPosterior(gamma="fit").fit(logits, labels, times if weighted else None)
    repeated, answers = np.repeat(logits, times, axis=0), np.repeat(labels, times)
    gammas = fitted.gamma_ + np.array([-1e-2, 0.0, 1e-2])
    before, at, after = (float(compute_nll(repeated, answers, gamma, 1.0)) for gamma in gammas)
    curvature = (before - 2 * at + after) / 1e-4
    assert abs(after - before) / 2e-2 < 1e-4 * np.sqrt(curvature)  # no slope
    # Where the slope is 0, the curvature in log(1 + gamma) is (1 + gamma)^2 times that in gamma.
    assert fitted.gamma_error_ == pytest.approx(1 / np.sqrt(curvature * len(answers)), rel=5e-3)


def test_posterior_needs_no_fit_and_takes_every_setting():
    logits, _ = draw_calibrated(10, 3)
    settings = {"weight": [1.0, 2.0, 3.0], "label_smoothing": 0.1, "detached": True}
    calibrator = FocalPosterior(gamma=[0.5, 1.0, 2.0], **settings)
    expected = posterior_from_logits(logits, gamma=[0.5, 1.0, 2.0], **settings)
    np.testing.assert_allclose(calibrator.predict_proba(logits), expected, rtol=1e-12)
    assert calibrator.predict(logits).tolist() == expected.argmax(axis=1).tolist()
    assert FocalPosterior(gamma=1.0, classes=["a", "b", "c"]).predict(logits)[0] in ("a", "b", "c")
    with pytest.raises(ValueError, match='gamma must be a number greater than -1, one per class, or "fit"'):
        FocalPosterior(gamma="guess").predict_proba(logits)


@pytest.mark.parametrize("gamma", [45.0, -0.965])
def test_posterior_fit_near_the_end_of_the_range(gamma):
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((4000, 4)) / (1 + gamma)
    probs = posterior_from_logits(logits, gamma=gamma)
    labels = (probs.cumsum(axis=1) < rng.random((4000, 1))).sum(axis=1).clip(0, 3)
    fitted = FocalPosterior(gamma="fit").fit(logits, labels)
    tried = np.linspace(30, 50, 201) if gamma > 0 else np.linspace(-0.97, -0.9, 201)
    best = min(tried, key=lambda g: compute_nll(logits, labels, g, 1.0))
    assert compute_nll(logits, labels, fitted.gamma_, 1.0) <= compute_nll(logits, labels, best, 1.0)
    assert 0 < fitted.gamma_error_ < 3


def test_posterior_fit_at_the_end_of_the_range_has_no_finite_error():
    logits, _ = draw_calibrated(200, 3)
    fitted = FocalPosterior(gamma="fit").fit(logits, logits.argmax(axis=1))
    assert fitted.gamma_ == 50
    assert np.isinf(fitted.gamma_error_)
