"""Fitting, choosing and reporting in one call."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
from scipy import special

import refocal
from few_digits import load_few_digits
from refocal import metrics, scale
from refocal.calibrators import FocalPosterior, TemperatureScaling, folded
from refocal.calibrators.conversion import scores_to_probs
from refocal.predictions import Predictions
from refocal.report import METHODS, calibrate, cross_calibrate, evaluate, measure
from refocal.report.evaluation import _slider


@pytest.fixture(scope="module")
def digits():
    data = load_few_digits()
    return data.select("val"), data.select("test")


def logits_of(rng, rows, classes=4, *, sharpness=1.0):
    """Draw logits whose softmax is calibrated for sharpness 1, and labels from it."""
    logits = 2 * rng.standard_normal((rows, classes))
    return sharpness * logits, np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)


def test_measures_are_those_of_the_metrics(digits):
    val, test = digits
    calibration = calibrate(val.scores, val.labels, gamma=3.0)
    report = calibration.report(test.scores, test.labels, class_names=test.class_names)
    probs = {fitted.name: fitted.calibrator.predict_proba(test.scores) for fitted in calibration.candidates}
    for method in report.methods:
        for name, measured in method.measures.items():
            measure = functools.partial(metrics.ece, debias=True) if name == "debiased_ece" else getattr(metrics, name)
            assert measured.value == pytest.approx(measure(probs[method.name], test.labels), abs=1e-12)
        assert method.diagnosis == metrics.diagnose(probs[method.name], test.labels)
        assert method.p_value == method.diagnosis.p_value
        assert sum(method.histogram) == len(test)
    assert report.methods[0].given
    nlls = [method.measures["nll"].value for method in report.methods[1:]]
    assert nlls == sorted(nlls)
    assert report.chosen.name == calibration.chosen.name
    change = report.changes[0]
    before, after = probs["given"][change.row], probs[report.chosen.name][change.row]
    assert (change.before, change.after) == (before[change.predicted], after[change.predicted])
    assert change.predicted == np.argmax(after)
    assert change.label == test.labels[change.row]


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("wrong", [0, 1])
def test_a_probability_of_zero_that_came_true_has_infinite_nll(tmp_path, columns, dtype, wrong):
    labels = np.array([wrong, 0, 1, 1] * 5)
    p = np.array([1 - wrong, 0.25, 0.5, 1] * 5, dtype=dtype)
    probs = np.column_stack([1 - p, p, 0 * p][:columns]) if columns > 1 else p
    report = evaluate(probs, labels, input="probs")
    assert report.given.measures["nll"].value == np.inf
    assert report.refinement is None
    Predictions(probs, input="probs", labels=labels).write(tmp_path / "test.npz")
    assert scale.evaluate([str(tmp_path / "test.npz")]).given.measures["nll"].value == np.inf
    right = evaluate(probs[labels != np.round(1 - p)], labels[labels != np.round(1 - p)], input="probs")
    assert np.isfinite(right.given.measures["nll"].value)


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("wrong", [0, 1])
def test_log_odds_of_two_classes_count_alike_on_both_sides(tmp_path, columns, wrong):
    """A score of 40 is P(y = 1) = 1 - 4e-18, which is 1 in float64; -40 is 4e-18."""
    scores, labels = np.array([40.0, -40.0, 1.0, -1.0] * 5), np.array([1, 0, 1, 0] * 5)
    labels[wrong] = wrong
    rows = scores if columns == 1 else np.column_stack([0 * scores, scores])
    report = evaluate(rows, labels, input="logits")
    expected = metrics.nll(scores, labels, input="logits", task="binary")
    assert report.given.measures["nll"].value == pytest.approx(expected, rel=1e-12)
    assert expected > 2
    assert report.given.diagnosis.certain is None
    Predictions(rows, input="logits", labels=labels).write(tmp_path / "test.npz")
    streamed = scale.evaluate([str(tmp_path / "test.npz")])
    assert streamed.given.measures["nll"].value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("calibrator", [None, FocalPosterior(gamma=0.0, input="probs")])
@pytest.mark.parametrize("wrong", [0, 1])
def test_files_of_probabilities_near_0_and_1_count_alike_on_both_sides(tmp_path, calibrator, wrong):
    scores, labels = np.array([40.0, -40.0, 1.0, -1.0] * 5), np.array([1, 0, 1, 0] * 5)
    labels[wrong] = wrong
    probs, weights = special.expit(np.column_stack([-scores, scores])), np.arange(20.0) + 1
    Predictions(probs, input="probs", labels=labels, sample_weight=weights).write(tmp_path / "test.npz")
    streamed = scale.evaluate([str(tmp_path / "test.npz")], calibrator=calibrator)
    expected = evaluate(probs, labels, input="probs", sample_weight=weights).given.measures
    for method in streamed.methods:
        found = {name: method.measures[name].value for name in ("nll", "brier", "ece", "error")}
        assert found == pytest.approx({name: expected[name].value for name in found}, rel=1e-12)


@pytest.mark.parametrize("wrong", [0, 1])
def test_log_odds_beyond_the_smallest_number_count_alike_in_memory_and_in_files(tmp_path, wrong):
    scores, labels = np.array([760.0, -760.0, 1.0, -1.0] * 5), np.array([1, 0, 1, 0] * 5)
    labels[wrong] = wrong
    Predictions(scores, input="logits", labels=labels).write(tmp_path / "test.npz")
    streamed = scale.evaluate([str(tmp_path / "test.npz")])
    for report in (evaluate(scores, labels, input="logits"), streamed):
        assert report.given.measures["nll"].value == np.inf


@pytest.mark.parametrize(
    ("sharpness", "regime"), [(0.5, "underconfident"), (1.0, "calibrated"), (2.5, "overconfident")]
)
@pytest.mark.thorough
def test_the_verdict_says_what_the_data_are(sharpness, regime):
    rng = np.random.default_rng(1)  # one calibrated data set in twenty fails the test; this one passes
    # trust needs many samples, an alarm does not
    logits, labels = logits_of(rng, 9000 if regime == "calibrated" else 3000, sharpness=sharpness)
    calibration = calibrate(logits[:1000], labels[:1000])
    report = calibration.report(logits[1000:], labels[1000:], by_class=False)
    assert report.verdict.regime == regime
    assert report.verdict.sentences[0].startswith(
        "These probabilities can be trusted" if regime == "calibrated" else f"These scores are {regime}"
    )
    if regime == "calibrated":
        assert report.chosen.given
        assert report.changes == ()
    else:
        assert calibration.chosen.name == "temperature"
        assert report.slider.temperature == pytest.approx(sharpness, rel=0.1)


def test_a_known_gamma_is_a_candidate_and_wins_if_it_is_true():
    rng = np.random.default_rng(2)
    logits, labels = logits_of(rng, 3000)
    focal = np.log(refocal.minimizer(scores_to_probs(logits, input="logits"), gamma=4.0))
    calibration = calibrate(focal[:2000], labels[:2000], gamma=4.0)
    assert calibration.chosen.name == "posterior"
    report = calibration.report(focal[2000:], labels[2000:], by_class=False)
    assert "γ = 4" in " ".join(report.verdict.sentences)
    assert report.verdict.regime == "underconfident"


def test_a_loss_with_class_weights_differs_from_the_scores_as_given():
    rng = np.random.default_rng(5)
    logits, labels = logits_of(rng, 2000, classes=3)
    weight = np.array([8.0, 1.0, 1.0])
    calibration = calibrate(logits + np.log(weight), labels, gamma=0.0, weight=weight)
    assert calibration.chosen.name == "posterior"
    report = calibration.report(logits + np.log(weight), labels, by_class=False)
    assert report.chosen.measures["nll"].value < report.given.measures["nll"].value


def test_verdicts_without_a_clear_answer():
    rng = np.random.default_rng(6)
    sure = np.repeat([0.6, 0.9], 5000)
    labels = (rng.random(10_000) < 0.25).astype(int)  # 75% correct at either confidence
    report = evaluate(np.stack([sure, 1 - sure], axis=1), labels, input="probs")
    assert report.verdict.regime == "overconfident"  # 10% and 40% where 25% is true
    few = evaluate(np.array([[0.7, 0.3]] * 5), np.array([0, 0, 0, 1, 1]), input="probs")
    assert few.verdict.regime == "unclear"
    assert "too few to rule it out" in few.verdict.sentences[0]
    logits, labels = logits_of(rng, 3000, sharpness=2.0)
    worse = calibrate(logits, labels, gamma=3.0, method="posterior").report(logits, labels, by_class=False)
    assert "does not make them better" in worse.verdict.sentences[0]
    assert "The data show the opposite" in " ".join(worse.verdict.sentences)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "posterior"])
def test_every_method_by_name(digits, method):
    val, test = digits
    calibration = calibrate(val.scores, val.labels, method=method)
    if method != "auto":
        assert calibration.chosen.name == method
    probs = calibration.predict_proba(test.scores)
    np.testing.assert_allclose(probs.sum(axis=1), 1)


def test_every_candidate_is_fitted_to_all_rows_once(monkeypatch):
    logits, labels = logits_of(np.random.default_rng(9), 200)
    fits, fit = [], folded.fit_temperature

    def count(data, **settings):
        fits.append(data.samples)
        return fit(data, **settings)

    monkeypatch.setattr(folded, "fit_temperature", count)
    calibrate(logits, labels)
    assert fits == [200] + 5 * [160]  # all rows, and one per fold, also for the linear maps


def test_probabilities_and_one_column_mean_the_same_as_logits():
    rng = np.random.default_rng(3)
    log_odds = 3 * rng.standard_normal(2000)
    labels = (rng.random(2000) < 1 / (1 + np.exp(-log_odds / 2))).astype(int)
    two = np.stack([np.zeros(2000), log_odds], axis=1)
    probs = 1 / (1 + np.exp(-log_odds))
    forms = [(two, "logits"), (log_odds, "logits"), (log_odds[:, None], "logits"), (probs, "probs")]
    reports = [evaluate(scores, labels, input=kind) for scores, kind in forms]
    for report in reports[1:]:
        assert report.classes == 2
        assert report.given.measures["nll"].value == pytest.approx(reports[0].given.measures["nll"].value)
        assert report.given.measures["ece"].value == pytest.approx(reports[0].given.measures["ece"].value)
    fits = [calibrate(scores, labels, method="temperature", input=kind).chosen.parameters for scores, kind in forms]
    for fit in fits[1:]:
        assert fit == pytest.approx(fits[0], rel=1e-5)


def test_rows_of_weight_0_count_as_absent(tmp_path):
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((300, 3))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    weights = rng.integers(0, 3, 300).astype(float)
    groups, used = np.arange(300) % 2, np.flatnonzero(weights)
    selection = calibrate(2 * logits, labels, sample_weight=weights, method="temperature")
    assert selection.settings["fitted_samples"] == len(used)
    found = selection.report(2 * logits, labels, sample_weight=weights, slices={"g": groups}, costs=1 - np.eye(3))
    expected = selection.report(
        2 * logits[used], labels[used], sample_weight=weights[used], slices={"g": groups[used]}, costs=1 - np.eye(3)
    )
    changes = tuple(replace(change, row=int(used[change.row])) for change in expected.changes)
    assert found == replace(expected, changes=changes)
    Predictions(2 * logits, input="logits", labels=labels, sample_weight=weights).write(tmp_path / "rows.npz")
    for sample in (None, 1000):
        of_files = scale.evaluate(tmp_path / "rows.npz", sample=sample)
        assert (of_files.samples, of_files.total_weight) == (found.samples, found.total_weight)
    with pytest.raises(ValueError, match="method='auto' needs at least 10 samples, got 9"):
        calibrate(logits, labels, sample_weight=(np.arange(300) < 9).astype(float))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.zeros(20), "sample_weight must not all be 0"),
        (np.where(np.arange(20) == 3, -1.0, 0.0), "sample_weight must be finite and not negative, got -1.0 in row 3"),
        (np.where(np.arange(20) == 3, np.nan, 1.0), "sample_weight must be finite and not negative, got nan in row 3"),
        (np.zeros(19), r"sample_weight must have shape \(20,\), one weight per label, got \(19,\)"),
    ],
)
def test_wrong_weights_are_named(weights, message):
    with pytest.raises(ValueError, match=message):
        evaluate(np.zeros((20, 3)), np.arange(20) % 3, sample_weight=weights)


@pytest.mark.parametrize("method", [method for method in METHODS if method != "posterior"])
def test_labels_of_one_class_are_refused(method):
    logits, _ = logits_of(np.random.default_rng(0), 40)
    labels = np.full(40, 2)
    for fit in (calibrate, cross_calibrate):
        with pytest.raises(
            ValueError, match="labels must have two classes or more, got only class 2: nothing can be fit"
        ):
            fit(logits, labels, method=method)
    labels[0] = 1
    with pytest.raises(ValueError, match="got only class 'c'"):
        calibrate(logits, labels, method=method, sample_weight=np.minimum(np.arange(40), 1), class_names=list("abcd"))


def test_a_closed_form_needs_no_second_class():
    logits, _ = logits_of(np.random.default_rng(0), 40)
    assert calibrate(logits, np.full(40, 2), method="posterior", gamma=2.0).chosen.parameters == {"gamma": 2.0}
    assert evaluate(logits, np.full(40, 2)).samples == 40


def test_weights_count_as_repeated_samples():
    rng = np.random.default_rng(4)
    logits, labels = logits_of(rng, 400, sharpness=2.0)
    weights = rng.integers(1, 4, 400)
    weighted = evaluate(logits, labels, sample_weight=weights).given.measures
    repeated = evaluate(np.repeat(logits, weights, axis=0), np.repeat(labels, weights)).given.measures
    for name, measured in weighted.items():
        if name not in ("adaptive_ece", "debiased_ece"):  # ties decide where bins end; repeats look like more data
            assert measured.value == pytest.approx(repeated[name].value), name


def test_save_by_suffix(digits, tmp_path):
    report = evaluate(digits[1].scores, digits[1].labels, by_class=False)
    report.save(tmp_path / "report.json")
    assert (tmp_path / "report.json").read_text(encoding="utf-8") == report.to_json()
    with pytest.raises(FileExistsError, match="exists"):
        report.save(tmp_path / "report.json")
    report.save(tmp_path / "report.html")
    with pytest.raises(ValueError, match=r"must end in \.html or \.json"):
        report.save(tmp_path / "report.txt")
    calibration = calibrate(digits[0].scores, digits[0].labels, method="temperature")
    calibration.save(tmp_path / "cal.json")
    assert isinstance(calibration.chosen.calibrator, TemperatureScaling)


def test_errors(digits):
    val, _ = digits
    with pytest.raises(ValueError, match="method must be one of"):
        calibrate(val.scores, val.labels, method="magic")
    with pytest.raises(ValueError, match="needs gamma"):
        calibrate(val.scores, val.labels, method="posterior")
    with pytest.raises(ValueError, match="class_names must have one name for each of 4 classes, got 2"):
        evaluate(val.scores, val.labels, class_names=("a", "b"))
    with pytest.raises(TypeError, match="class_names must be text, got 0"):
        evaluate(val.scores, val.labels, class_names=range(4))
    with pytest.raises(AttributeError, match="no attribute 'calibration_of'"):
        refocal.calibration_of  # noqa: B018
    with pytest.raises(ValueError, match="input must be one of"):
        evaluate(val.scores, val.labels, input="scores")


@pytest.mark.parametrize(("rows", "classes", "kept"), [(400_000, 3, 100_000), (1_000, 21_841, 18), (2, 400_001, 1)])
def test_the_slider_holds_as_many_rows_as_fit(rows, classes, kept):
    data = measure.TestData(np.zeros((rows, classes), dtype=np.float16), np.zeros(rows, dtype=int), None)
    slider = _slider(data, classes, {}, input="logits")
    assert len(slider.labels) == kept
    assert slider.rows().shape == (kept, classes)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (np.array([0, -1]), ValueError, r"labels must be from 0 to 2, got -1"),
        (np.array([0.0, 0.5]), ValueError, "labels must be class indices, whole numbers from 0 to 2, got 0.5 in row 1"),
        (np.array([0j, 1]), TypeError, "labels must have an integer dtype, got complex128"),
        (np.array([[0], [1]]), ValueError, r"labels must have shape \(2,\), one label per row, got \(2, 1\)"),
        (None, TypeError, "labels must be a list, an array, a tensor, a frame or a series, got None"),
    ],
)
def test_wrong_labels_are_named(labels, error, message):
    with pytest.raises(error, match=message):
        evaluate(np.zeros((2, 3)), labels)


def test_whole_floats_are_labels():
    logits, labels = logits_of(np.random.default_rng(1), 60, classes=3)
    assert evaluate(logits, labels.astype(float)).to_json() == evaluate(logits, labels).to_json()
    one, two = (calibrate(logits, each, method="temperature") for each in (labels, labels.astype(np.float32)))
    assert one.chosen.parameters == two.chosen.parameters


@pytest.mark.parametrize("given", [{"weight": [1.0, 2.0, 3.0]}, {"label_smoothing": 0.1}, {"detached": True}])
def test_settings_of_a_loss_are_not_ignored(given):
    logits, labels = logits_of(np.random.default_rng(1), 60, classes=3)
    with pytest.raises(
        ValueError, match="weight, label_smoothing and detached describe a training loss whose gamma must be given"
    ):
        calibrate(logits, labels, **given)


@pytest.mark.parametrize(
    ("gamma", "error", "message"),
    [
        ([1.0, 2.0, 3.0], ValueError, "gamma must be a single number, got 3 values"),
        ("fit", TypeError, "gamma must be a number"),
        (-1.0, ValueError, "gamma must be greater than -1"),
    ],
)
def test_the_gamma_of_a_report_is_one_number(gamma, error, message):
    logits, labels = logits_of(np.random.default_rng(1), 60, classes=3)
    with pytest.raises(error, match=message):
        calibrate(logits, labels, gamma=gamma)


def test_the_slider_stands_at_a_map_that_it_can_set():
    logits, labels = logits_of(np.random.default_rng(1), 200, classes=3)
    plain = calibrate(logits, labels, gamma=2.0, method="posterior").report(logits, labels, by_class=False)
    assert (plain.slider.gamma, plain.slider.temperature) == (2.0, 1.0)
    known = calibrate(logits, labels, gamma=2.0, weight=[1, 2, 3], method="posterior")
    weighted = known.report(logits, labels, by_class=False)
    near = next(method.parameters for method in weighted.methods if method.name == "focal-temperature")
    assert {"gamma": weighted.slider.gamma, "temperature": weighted.slider.temperature} == near


@pytest.mark.parametrize(("samples", "enough"), [(3, False), (58, False), (59, True)])
def test_a_few_certain_predictions_that_came_true_prove_little(samples, enough):
    labels = np.arange(samples) % 3
    answer = evaluate(np.eye(3)[labels], labels, input="probs").verdict.sentences[0]
    assert answer.startswith("These probabilities can be trusted") is enough
    assert ("too few to rule it out" in answer) is not enough


@pytest.mark.parametrize("shift", [-1, 1])
def test_labels_are_indices_not_names(shift):
    logits, labels = logits_of(np.random.default_rng(1), 60, classes=3)
    with pytest.raises(ValueError, match=r"labels must be from 0 to 2, got"):
        calibrate(logits, labels + shift)
    with pytest.raises(TypeError, match=r"labels must be a list.*, got None"):
        calibrate(logits, None)
    with pytest.raises(ValueError, match=r"labels must be from 0 to 1, got"):
        calibrate(logits[:, 0], np.minimum(labels, 1) + shift)
