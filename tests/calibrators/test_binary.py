"""Calibrators that treat each class by itself: Platt, beta, isotonic and histogram."""

from __future__ import annotations

import numpy as np
import pytest
from labeled_logits import draw_calibrated, mean_nll
from scipy.optimize import minimize
from scipy.special import expit, log_expit
from sklearn.base import clone
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression

from refocal.calibrators import (
    BetaCalibration,
    FocalPosterior,
    HistogramBinning,
    IsotonicCalibration,
    PlattScaling,
    TemperatureScaling,
)


def draw_two_classes(rows=3000, *, slope=0.6, bias=0.4):
    """Draw log-odds of class 1, and labels from a known logistic map of them."""
    rng = np.random.default_rng(0)
    log_odds = 3 * rng.standard_normal(rows)
    return log_odds, (rng.random(rows) < expit(slope * log_odds + bias)).astype(int)


def test_platt_against_scikit_learn():
    log_odds, labels = draw_two_classes()
    ours, theirs = PlattScaling().fit(log_odds, labels), _SigmoidCalibration().fit(log_odds, labels)
    assert ours.weights_[0] == pytest.approx(-theirs.a_, rel=1e-4)
    assert ours.bias_[0] == pytest.approx(-theirs.b_, rel=1e-3)
    np.testing.assert_allclose(ours.predict_proba(log_odds)[:, 1], theirs.predict(log_odds), atol=1e-5)
    assert ours.n_parameters_ == 2


def test_beta_against_a_general_optimizer():
    log_odds, labels = draw_two_classes()
    fitted = BetaCalibration().fit(log_odds, labels)
    count = labels.sum()
    targets = np.where(labels, (count + 1) / (count + 2), 1 / (len(labels) - count + 2))

    def nll(x):
        score = x[0] * log_expit(log_odds) - x[1] * log_expit(-log_odds) + x[2]
        return -np.mean(targets * log_expit(score) + (1 - targets) * log_expit(-score))

    best = minimize(nll, [1.0, 1.0, 0.0], bounds=[(0, None), (0, None), (None, None)], options={"ftol": 1e-14})
    found = [*fitted.weights_[:, 0], fitted.bias_[0]]
    assert nll(found) <= best.fun + 1e-10
    np.testing.assert_allclose(found, best.x, atol=2e-3)


def test_beta_drops_coefficients_that_would_be_negative():
    rng = np.random.default_rng(0)
    log_odds = 2 * rng.standard_normal(2000)
    labels = (rng.random(2000) < expit(np.abs(log_odds) - 1)).astype(int)  # decreases, then increases
    fitted = BetaCalibration().fit(log_odds, labels)
    assert np.all(fitted.weights_ >= 0)
    assert np.any(fitted.weights_ == 0)
    wrong = BetaCalibration().fit(log_odds, (log_odds < 0).astype(int))
    assert np.all(wrong.weights_ == 0)
    np.testing.assert_allclose(wrong.predict_proba(log_odds)[:, 1], wrong.predict_proba(log_odds)[0, 1])


@pytest.mark.parametrize("calibrator", [PlattScaling(), BetaCalibration(), IsotonicCalibration(), HistogramBinning()])
def test_one_column_and_two_columns_give_the_same(calibrator):
    log_odds, labels = draw_two_classes(500)
    one = calibrator.fit(log_odds, labels).predict_proba(log_odds)
    two = np.stack([-0.5 * log_odds, 0.5 * log_odds], axis=1)
    np.testing.assert_allclose(calibrator.fit(two, labels).predict_proba(two), one, atol=1e-9)
    np.testing.assert_allclose(one.sum(axis=1), 1)


MULTICLASS = [
    PlattScaling(),
    BetaCalibration(),
    IsotonicCalibration(),
    IsotonicCalibration(method="top_label"),
    HistogramBinning(),
]


@pytest.mark.parametrize("calibrator", MULTICLASS, ids=str)
def test_calibrated_input_hardly_changes(calibrator):
    logits, labels = draw_calibrated(20_000, 4)
    fitted = calibrator.fit(logits, labels)
    plain = TemperatureScaling().fit(logits, labels)
    assert mean_nll(fitted, logits, labels) < mean_nll(plain, logits, labels) + 0.05
    frequencies = fitted.predict_proba(logits).mean(axis=0)
    np.testing.assert_allclose(frequencies, np.bincount(labels) / 20_000, atol=0.02)


@pytest.mark.parametrize("calibrator", MULTICLASS, ids=str)
def test_many_classes_and_few_samples_do_not_break(calibrator):
    logits, labels = draw_calibrated(5000, 100)
    test_logits, test_labels = draw_calibrated(5000, 100, seed=1)
    right = mean_nll(TemperatureScaling().fit(logits, labels), test_logits, test_labels)
    raw = mean_nll(FocalPosterior(gamma=0), 2.5 * test_logits, test_labels)
    after = mean_nll(calibrator.fit(2.5 * logits, labels), 2.5 * test_logits, test_labels)
    # A method that changes only the top class, or that counts in bins, cannot undo everything.
    share = 0.95 if isinstance(calibrator, PlattScaling | BetaCalibration) else 0.3
    assert raw - after > share * (raw - right)


@pytest.mark.parametrize("calibrator", [PlattScaling(), BetaCalibration()], ids=str)
def test_equal_scores_get_no_slope(calibrator):
    """The mean of equal numbers differs from them by rounding. This is not a spread to scale by."""
    rng = np.random.default_rng(1)
    for classes in (2, 3, 7):
        logits = np.tile(5 * rng.standard_normal(classes), (30, 1))
        labels = np.arange(30) % classes
        fitted = clone(calibrator).fit(logits, labels)
        assert np.abs(fitted.weights_).max() < 1e-12
        frequency = np.bincount(labels, minlength=classes) / 30
        assert fitted.predict_proba(logits[:1] + rng.standard_normal((1, classes)))[0] == pytest.approx(
            frequency, abs=0.02
        )


@pytest.mark.parametrize("calibrator", MULTICLASS, ids=str)
def test_few_data_give_finite_probabilities(calibrator):
    for logits, labels in [
        (np.array([[2.0, 0.0, 1.0]]), [1]),
        (np.zeros((4, 3)), [0, 1, 2, 0]),
        (500 * np.eye(3), [0, 1, 2]),
        (5 * np.eye(3), [1, 2, 0]),
        (np.random.default_rng(0).standard_normal((50, 3)), [0] * 50),
    ]:
        fitted = calibrator.fit(logits, labels)
        probs = fitted.predict_proba(np.concatenate([logits, 900 * np.eye(3)]))
        assert np.all(np.isfinite(probs))
        assert np.all(probs > 0) or isinstance(calibrator, PlattScaling | BetaCalibration) or "top" in str(calibrator)
        np.testing.assert_allclose(probs.sum(axis=1), 1)


def test_isotonic_against_scikit_learn():
    log_odds, labels = draw_two_classes(400)
    weights = np.random.default_rng(2).random(400)
    fitted = IsotonicCalibration().fit(log_odds, labels, weights)
    floor = 1 / (weights.sum() + 2)
    regression = IsotonicRegression(y_min=floor, y_max=1 - floor, out_of_bounds="clip")
    regression.fit(log_odds, labels, sample_weight=weights)
    points = np.linspace(-12, 12, 1001)
    np.testing.assert_allclose(fitted.predict_proba(points)[:, 1], regression.predict(points), atol=1e-12)
    assert np.all(np.diff(fitted.predict_proba(points)[:, 1]) >= 0)


def test_top_label_isotonic_keeps_proportions():
    logits, labels = draw_calibrated(3000, 5)
    fitted = IsotonicCalibration(method="top_label").fit(3 * logits, labels)
    probs = fitted.predict_proba(3 * logits)
    top = logits.argmax(axis=1)
    others = np.arange(5) != top[:, None]
    raw = np.exp(3 * logits - 3 * logits.max(axis=1, keepdims=True))
    first = raw[others].reshape(-1, 4)
    first /= first.sum(axis=1, keepdims=True)
    second = probs[others].reshape(-1, 4)
    np.testing.assert_allclose(second / second.sum(axis=1, keepdims=True), first, atol=1e-9)
    confidence = probs[np.arange(3000), top]
    assert np.mean(confidence) == pytest.approx(np.mean(top == labels), abs=0.01)
    with pytest.raises(ValueError, match="method must be one of"):
        IsotonicCalibration(method="all").fit(logits, labels)


def test_histogram_against_a_loop():
    log_odds, labels = draw_two_classes(100)
    log_odds[10:30] = log_odds[10]  # ties stay in one bin
    fitted = HistogramBinning(bins=4).fit(log_odds, labels)
    order = np.sort(log_odds)
    edges = [order[24], order[49], order[74]]
    prior = (labels.sum() + 1) / 102
    for x, p in zip(log_odds, fitted.predict_proba(log_odds)[:, 1], strict=True):
        low = max([e for e in edges if e < x], default=-np.inf)
        high = min([e for e in edges if e >= x], default=np.inf)
        inside = labels[(log_odds > low) & (log_odds <= high)]
        assert p == pytest.approx((inside.sum() + prior) / (len(inside) + 1))
    outside = fitted.predict_proba(np.array([-1e6, 1e6]))[:, 1]
    assert outside[0] == fitted.predict_proba(log_odds)[np.argmin(log_odds), 1]
    assert outside[1] == fitted.predict_proba(log_odds)[np.argmax(log_odds), 1]
    with pytest.raises(ValueError, match="bins must be at least 1, got 0"):
        HistogramBinning(bins=0).fit(log_odds, labels)
    for bins in (1.5, True, "3"):
        with pytest.raises(TypeError, match="bins must be a whole number, at least 1, got"):
            HistogramBinning(bins=bins).fit(log_odds, labels)


@pytest.mark.parametrize("calibrator", [HistogramBinning(bins=7), IsotonicCalibration()], ids=str)
def test_the_order_of_the_classes_does_not_matter(calibrator):
    """The log-odds of a class do not depend on the order of the others. The rounding of their sum does."""
    rng = np.random.default_rng(0)
    logits = rng.integers(-3, 4, (2000, 5)) / 3
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    fitted = clone(calibrator).fit(logits, labels)
    found = fitted.predict_proba(logits)
    for _ in range(3):
        order = np.append(0, 1 + rng.permutation(4))
        again = clone(calibrator).fit(logits[:, order], np.argsort(order)[labels]).predict_proba(logits[:, order])
        np.testing.assert_allclose(again[:, 0], found[:, 0], rtol=1e-6)


def test_histogram_counts_weights_as_repetitions():
    log_odds, labels = draw_two_classes(200)
    counts = np.random.default_rng(0).integers(1, 4, 200)
    weighted = HistogramBinning().fit(log_odds, labels, counts).predict_proba(log_odds)
    repeated = HistogramBinning().fit(np.repeat(log_odds, counts), np.repeat(labels, counts)).predict_proba(log_odds)
    np.testing.assert_allclose(weighted, repeated)
