"""Calibrators that treat each class by itself: Platt, beta, quadratic, isotonic and histogram."""

from __future__ import annotations

import json

import numpy as np
import pytest
from labeled_logits import draw_calibrated, mean_nll
from scipy.optimize import minimize
from scipy.special import expit, log_expit, softmax
from sklearn.base import clone
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression

from refocal.calibrators import (
    BetaCalibration,
    FocalPosterior,
    HistogramBinning,
    IsotonicCalibration,
    PlattScaling,
    QuadraticScaling,
    TemperatureScaling,
    files,
    load,
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


def exact_quadratic(s, ends, slopes, bias):
    """The map of quadratic scaling as a polynomial."""
    (low, high), (first, last) = ends, slopes
    s = min(max(s, low), high)
    return expit(bias + first * (s - low) + (last - first) / (2 * (high - low)) * (s - low) ** 2)


# the logit of P(y = 1) given s: rising slopes, falling ones, one that would turn down and one that would turn up
CURVES = {
    "convex": lambda s: 0.8 * s + 0.03 * s**2,
    "concave": lambda s: 0.3 + 0.6 * s - 0.04 * s**2,
    "turns down": lambda s: 1 + 0.5 * s - 0.3 * s**2,
    "turns up": lambda s: -2 + 0.5 * s + 0.3 * s**2,
    "falls": lambda s: 0.5 - s,
}


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("weighted", [False, True])
def test_quadratic_against_a_general_optimizer(curve, weighted):
    rng = np.random.default_rng(4)
    log_odds = 2 * rng.standard_normal(1500) - 1
    labels = (rng.random(1500) < expit(CURVES[curve](log_odds))).astype(int)
    weights = rng.integers(1, 4, 1500) if weighted else np.ones(1500)
    fitted = QuadraticScaling().fit(log_odds, labels, weights if weighted else None)
    total, own = weights.sum(), weights[labels == 1].sum()
    targets = np.where(labels, (own + 1) / (own + 2), 1 / (total - own + 2))
    ends = fitted.range_[:, 0]
    ordered = np.sort(log_odds)
    gap = (ordered[-2] - ordered[1]) / (len(ordered) - 3)
    np.testing.assert_allclose(ends, [max(ordered[0], ordered[1] - gap), min(ordered[-1], ordered[-2] + gap)])

    def nll(x):
        p = np.clip([exact_quadratic(s, ends, x[:2], x[2]) for s in log_odds], 1e-300, 1 - 1e-16)
        return -np.average(targets * np.log(p) + (1 - targets) * np.log1p(-p), weights=weights)

    best = minimize(nll, [1.0, 1.0, ends[0]], bounds=[(0, None), (0, None), (None, None)], options={"ftol": 1e-13})
    found = [*fitted.slopes_[:, 0], fitted.bias_[0]]
    assert nll(found) <= best.fun + 1e-9
    np.testing.assert_allclose(found, best.x, atol=5e-3)
    assert (min(found[:2]) == 0) == (curve in ("turns down", "turns up", "falls"))
    points = np.linspace(-15, 15, 601)
    probs = fitted.predict_proba(points)[:, 1]
    np.testing.assert_allclose(probs, [exact_quadratic(s, ends, found[:2], found[2]) for s in points], rtol=1e-9)
    assert np.all(np.diff(probs) >= 0)
    assert fitted.n_parameters_ == 3


def test_quadratic_scaling_with_equal_slopes_is_platt_scaling():
    log_odds, labels = draw_two_classes()
    platt, quadratic = PlattScaling().fit(log_odds, labels), QuadraticScaling().fit(log_odds, labels)
    assert mean_nll(quadratic, log_odds, labels) <= mean_nll(platt, log_odds, labels) + 1e-4
    inside = np.linspace(*quadratic.range_[:, 0], 100)
    quadratic.slopes_ = np.full((2, 1), platt.weights_[0])
    quadratic.bias_ = platt.bias_ + platt.weights_ * quadratic.range_[0]
    np.testing.assert_allclose(quadratic.predict_log_proba(inside), platt.predict_log_proba(inside), rtol=1e-12)
    ends = quadratic.predict_proba(inside[[0, -1]])
    np.testing.assert_array_equal(quadratic.predict_proba(np.array([-1e6, 1e6])), ends)


@pytest.mark.parametrize("levels", [3, 8, 20])
def test_quadratic_scaling_is_not_stretched_by_exact_0_and_1(levels):
    """A vote of few models is often 0 or 1, whose log-odds are far from those of the others."""
    rng = np.random.default_rng(5)
    truth = rng.random(8000)
    probs = rng.binomial(levels - 1, truth) / (levels - 1)
    labels = (rng.random(8000) < truth).astype(int)
    fitted = QuadraticScaling(input="probs").fit(probs, labels)
    exact = (probs * (levels - 1) + 1) / (levels + 1)  # the rule of succession
    assert np.mean(np.abs(fitted.predict_proba(probs)[:, 1] - exact)) < 0.02
    assert np.all(np.diff(fitted.predict_proba(np.unique(probs))[:, 1]) > 0)
    platt = PlattScaling(input="probs").fit(probs, labels)
    assert mean_nll(fitted, probs, labels) < mean_nll(platt, probs, labels) + 1e-5


def test_the_range_of_quadratic_scaling():
    for scores, ends in [
        ([-700.0, -1.0, 0.0, 1.0, 2.0, 40.0], [-2.0, 3.0]),
        ([-1.1, -1.0, 0.0, 1.0, 2.0, 2.2], [-1.1, 2.2]),
        ([-700.0, 1.0, 4.0], [-2.0, 4.0]),
        ([-300.0, 40.0], [-300.0, 40.0]),
        ([-700.0, 40.0], [-400.0, 40.0]),  # 10 spreads
        ([3.0], [3.0, 3.0]),
    ]:
        labels = np.append(np.zeros(len(scores)), 1).astype(int)
        fitted = QuadraticScaling().fit(np.array([*scores, scores[-1]]), labels)
        np.testing.assert_allclose(fitted.range_[:, 0], ends, rtol=1e-9)


def test_beta_drops_coefficients_that_would_be_negative():
    rng = np.random.default_rng(0)
    log_odds = 2 * rng.standard_normal(2000)
    labels = (rng.random(2000) < expit(np.abs(log_odds) - 1)).astype(int)  # decreases, then increases
    fitted = BetaCalibration().fit(log_odds, labels)
    assert np.all(fitted.weights_ >= 0)
    assert np.any(fitted.weights_ == 0)
    count = labels.sum()
    targets = np.where(labels, (count + 1) / (count + 2), 1 / (len(labels) - count + 2))

    def nll(x):
        score = x[0] * log_expit(log_odds) - x[1] * log_expit(-log_odds) + x[2]
        return -np.mean(targets * log_expit(score) + (1 - targets) * log_expit(-score))

    best = minimize(nll, [1.0, 1.0, 0.0], bounds=[(0, None), (0, None), (None, None)], options={"ftol": 1e-14})
    assert nll([*fitted.weights_[:, 0], fitted.bias_[0]]) <= best.fun + 1e-10
    wrong = BetaCalibration().fit(log_odds, (log_odds < 0).astype(int))
    assert np.all(wrong.weights_ == 0)
    np.testing.assert_allclose(wrong.predict_proba(log_odds)[:, 1], wrong.predict_proba(log_odds)[0, 1])


@pytest.mark.parametrize(
    "calibrator",
    [PlattScaling(), BetaCalibration(), QuadraticScaling(), IsotonicCalibration(), HistogramBinning()],
)
def test_one_column_and_two_columns_give_the_same(calibrator):
    log_odds, labels = draw_two_classes(500)
    one = calibrator.fit(log_odds, labels).predict_proba(log_odds)
    two = np.stack([-0.5 * log_odds, 0.5 * log_odds], axis=1)
    np.testing.assert_allclose(calibrator.fit(two, labels).predict_proba(two), one, atol=1e-9)
    np.testing.assert_allclose(one.sum(axis=1), 1)


LOGISTIC = (PlattScaling, BetaCalibration, QuadraticScaling)
MULTICLASS = [
    PlattScaling(),
    BetaCalibration(),
    QuadraticScaling(),
    IsotonicCalibration(),
    IsotonicCalibration(method="top_label"),
    HistogramBinning(),
    HistogramBinning(method="one_vs_rest"),
]
TOP_LABEL = [IsotonicCalibration(method="top_label"), HistogramBinning()]


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
    share = 0.95 if isinstance(calibrator, LOGISTIC) else 0.3
    assert raw - after > share * (raw - right)


@pytest.mark.parametrize("calibrator", [kind() for kind in LOGISTIC], ids=str)
def test_equal_scores_get_no_slope(calibrator):
    """The mean of equal numbers differs from them by rounding. This is not a spread to scale by."""
    rng = np.random.default_rng(1)
    for classes in (2, 3, 7):
        logits = np.tile(5 * rng.standard_normal(classes), (30, 1))
        labels = np.arange(30) % classes
        fitted = clone(calibrator).fit(logits, labels)
        slopes = fitted.slopes_ if isinstance(fitted, QuadraticScaling) else fitted.weights_
        assert np.abs(slopes).max() < 1e-12
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
        assert np.all(probs > 0) or "one_vs_rest" not in str(calibrator.get_params())
        assert np.all(np.isfinite(fitted.predict_log_proba(np.concatenate([logits, 900 * np.eye(3)]))))
        np.testing.assert_allclose(probs.sum(axis=1), 1)


def test_isotonic_against_scikit_learn():
    log_odds, labels = draw_two_classes(400)
    weights = np.random.default_rng(2).random(400)
    fitted = IsotonicCalibration().fit(log_odds, labels, weights)
    floor = 1 / (weights.sum() ** 2 / (weights**2).sum() + 2)
    regression = IsotonicRegression(y_min=floor, y_max=1 - floor, out_of_bounds="clip")
    regression.fit(log_odds, labels, sample_weight=weights)
    points = np.linspace(-12, 12, 1001)
    np.testing.assert_allclose(fitted.predict_proba(points)[:, 1], regression.predict(points), atol=1e-12)
    assert np.all(np.diff(fitted.predict_proba(points)[:, 1]) >= 0)


def fit_below_the_top(logits, labels):
    """Temperature scaling of the other classes, in the rows whose label is one of them."""
    rows, top = np.arange(len(logits)), logits.argmax(axis=1)
    others = logits.copy()
    others[rows, top] = -np.inf
    return TemperatureScaling().fit(others[top != labels], labels[top != labels])


@pytest.mark.parametrize("calibrator", TOP_LABEL, ids=str)
def test_top_label_keeps_proportions_after_scaling(calibrator):
    logits, labels = draw_calibrated(3000, 5)
    fitted = clone(calibrator).fit(3 * logits, labels)
    assert fitted.temperature_ == pytest.approx(fit_below_the_top(3 * logits, labels).temperature_, rel=1e-6)
    logits = 3 * logits / fitted.temperature_
    probs = fitted.predict_proba(fitted.temperature_ * logits)
    top = logits.argmax(axis=1)
    others = np.arange(5) != top[:, None]
    raw = np.exp(logits - logits.max(axis=1, keepdims=True))
    first = raw[others].reshape(-1, 4)
    first /= first.sum(axis=1, keepdims=True)
    second = probs[others].reshape(-1, 4)
    np.testing.assert_allclose(second / second.sum(axis=1, keepdims=True), first, atol=1e-9)
    confidence = probs[np.arange(3000), top]
    assert np.mean(confidence) == pytest.approx(np.mean(top == labels), abs=0.01)
    assert np.array_equal(np.argmax(probs, axis=1), top)
    with pytest.raises(ValueError, match="method must be one of 'one_vs_rest', 'top_label', got 'all'"):
        clone(calibrator).set_params(method="all").fit(logits, labels)


def test_top_label_histogram_against_a_loop():
    """Each row gets the frequency of its bin, but at least 1.001 times the probability of the runner-up."""
    logits, labels = draw_calibrated(400, 6, spread=0.8)
    fitted = HistogramBinning(bins=5).fit(3 * logits, labels)
    scaled = softmax(3 * logits / fitted.temperature_, axis=1)
    top, rows = scaled.argmax(axis=1), np.arange(400)
    right = top == labels
    place = np.argsort(np.argsort(scaled[rows, top])) // 80
    kept = 0
    for row, found in enumerate(fitted.predict_proba(3 * logits)):
        own = right[place == place[row]]
        confidence = (own.sum() + (right.sum() + 1) / 402) / 81
        expected = scaled[row] * (1 - confidence) / (1 - scaled[row, top[row]])
        expected[top[row]] = confidence
        if expected.argmax() != top[row]:
            next_best = np.sort(scaled[row])[-2] / (1 - scaled[row, top[row]])
            confidence, kept = 1.001 * next_best / (1 + 1.001 * next_best), kept + 1
            expected = scaled[row] * (1 - confidence) / (1 - scaled[row, top[row]])
            expected[top[row]] = confidence
        assert found == pytest.approx(expected, abs=1e-9)
    assert 10 < kept < 200
    assert fitted.n_parameters_ == 5 + 1


@pytest.mark.parametrize("calibrator", TOP_LABEL, ids=str)
def test_top_label_keeps_accuracy_and_improves_log_loss_of_100_classes(calibrator):
    logits, labels = draw_calibrated(5000, 100)
    new_logits, new_labels = draw_calibrated(5000, 100, seed=1)
    fitted = clone(calibrator).fit(2.5 * logits, labels)
    predicted = np.argmax(new_logits, axis=1)
    assert np.array_equal(fitted.predict(2.5 * new_logits), predicted)
    raw, right = (mean_nll(FocalPosterior(gamma=0), factor * new_logits, new_labels) for factor in (2.5, 1.0))
    assert mean_nll(fitted, 2.5 * new_logits, new_labels) < right + 0.03 * (raw - right)
    rest = HistogramBinning(method="one_vs_rest").fit(2.5 * logits, labels)
    assert rest.score(2.5 * new_logits, new_labels) < np.mean(predicted == new_labels) - 0.05


@pytest.mark.parametrize("calibrator", TOP_LABEL, ids=str)
def test_top_label_treats_tied_classes_alike(calibrator):
    logits, labels = draw_calibrated(500, 4)
    probs = clone(calibrator).fit(logits, labels).predict_proba([[3.0, 3.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    assert probs[0, 0] == probs[0, 1]
    assert probs[1] == pytest.approx(0.25)


def test_two_classes_have_bins_of_the_second_class():
    log_odds, labels = draw_two_classes(500)
    default, rest, top = (HistogramBinning(method=m).fit(log_odds, labels) for m in (None, "one_vs_rest", "top_label"))
    np.testing.assert_array_equal(default.predict_proba(log_odds), rest.predict_proba(log_odds))
    assert np.array_equal(top.predict(log_odds), (log_odds > 0).astype(int))
    assert (default.temperature_, rest.temperature_) == (1.0, 1.0)


def test_files_without_a_method_load_as_they_were_fitted(tmp_path):
    """Earlier files of HistogramBinning have no method and no temperature, but one row of bins per class."""
    logits, labels = draw_calibrated(300, 4)
    fitted = HistogramBinning(method="one_vs_rest").fit(logits, labels)
    body = files._record(fitted)
    del body["parameters"]["method"], body["learned"]["temperature_"]
    content = {"format": files.CALIBRATOR.format, "schema": 1, "digest": files._digest(body), "calibrator": body}
    (tmp_path / "earlier.json").write_text(json.dumps(content), encoding="utf-8")
    loaded = load(tmp_path / "earlier.json")
    assert loaded.method == "one_vs_rest"
    np.testing.assert_array_equal(loaded.predict_proba(logits), fitted.predict_proba(logits))


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


@pytest.mark.parametrize("calibrator", [HistogramBinning(bins=7, method="one_vs_rest"), IsotonicCalibration()], ids=str)
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
