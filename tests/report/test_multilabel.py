"""Multi-label reports: each class is a binary task, and all of them are judged together."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import refocal
from refocal import calibrate_multilabel, evaluate_multilabel, sigmoid_posterior
from refocal.calibrators import load
from refocal.metrics.diagnosis import correct_together, diagnose
from refocal.report import cross_calibrate_multilabel, multilabel_verdict, verdict
from refocal.stats.calibrated_sums import adjust_holm

NAMES = ("fine", "rare", "sure", "high")


def draw(rows=2000, seed=0, classes=4):
    """Logits: of "rare" hardly any is positive, "sure" is too extreme, "high" too high; the others are calibrated."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((rows, classes)) * 1.5
    logits[:, 1] -= 7.5
    labels = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(int)
    logits[:, 2] *= 3
    logits[:, 3] += 1
    return logits, labels


@pytest.fixture(scope="module")
def calibration():
    return calibrate_multilabel(*draw(), class_names=NAMES)


@pytest.fixture(scope="module")
def report(calibration):
    return calibration.report(*draw(seed=1), source="scans")


def test_only_errors_that_would_have_been_seen_are_corrected_for_good(report, monkeypatch):
    monkeypatch.setattr(verdict, "_TOO_MUCH", 1.0)
    written = multilabel_verdict.write_multilabel_verdict(report.reports, NAMES, tried=True, unfitted=())
    assert written.sentences[0].endswith("; calibration turns them into probabilities that you can use.")


def test_means_of_a_rare_class_have_digits_that_tell_them_apart():
    found = evaluate_multilabel(np.full((50_000, 1), 1e-4), np.arange(50_000)[:, None] < 20, input="probs")
    assert "; 0.01% predicted on average, 0.04% observed" in found.verdict.sentences[1]


def test_the_verdict_names_the_classes_that_fail(report):
    assert report.verdict.regime == "miscalibrated"
    words = report.verdict.sentences
    assert words[0] == (
        "The probabilities of 2 of 4 classes cannot be trusted: high and sure; calibration corrects them as "
        "far as 2,000 samples can show."
    )
    assert words[1].startswith("The worst is high: its probabilities are too high, ")
    assert "with a debiased ECE of " in words[1]
    text = " ".join(words)
    assert "The data cannot tell for fine: an error of up to " in text
    assert "Too rare to tell: rare (" in text
    assert "corrected for 4 classes (Holm): if all classes are calibrated, the probability that any of" in text
    assert "Calibrators were chosen for 2 classes: " in text
    assert "After it, no sign of miscalibration is left in any class (p = " in text
    assert "Nothing was fitted to rare, which has too few positives or negatives." in text
    assert {*report.ranking[:2]} == {2, 3}
    assert [each.verdict.regime for each in report.reports][1:] == ["unclear", "overconfident", "too high"]
    assert report.reports[1].verdict.sentences[0].startswith("No sign of miscalibration, but ")


def test_each_class_has_its_binary_report(report):
    logits, labels = draw(seed=1)
    alone = refocal.evaluate(logits[:, 2], labels[:, 2])
    own = report.reports[2]
    assert own.task == "binary"
    assert own.class_names == ("not sure", "sure")
    for name in ("ece", "debiased_ece", "nll"):
        assert own.given.measures[name] == alone.given.measures[name]
    assert own.slider is None
    assert own.given.p_value >= alone.given.p_value  # corrected for the number of classes
    assert report.samples == 2000
    assert report.class_names == NAMES
    assert report.source == "scans"


def test_p_values_are_corrected_by_holm():
    rng = np.random.default_rng(0)
    p = rng.random((400, 6))
    found = [diagnose(p[:, k], rng.random(400) < p[:, k] ** (1 + k / 9), task="binary") for k in range(6)]
    corrected = correct_together(found)
    assert [each.p_value for each in corrected] == pytest.approx(
        adjust_holm(np.array([each.p_value for each in found]))
    )
    for before, after in zip(found, corrected, strict=True):
        factor = after.p_value / before.p_value
        for raw, own in zip(before.checks, after.checks, strict=True):
            assert own.p_value == pytest.approx(min(1, raw.p_value * factor))
        assert min(check.p_value for check in after.checks) == after.p_value
    one = diagnose(p[:, 0], rng.random(400) < p[:, 0], task="binary")
    many = diagnose(p[:, 0], rng.random(400) < p[:, 0], task="binary", among=100)
    assert many.detectable > one.detectable
    assert many.detectable_frequency > one.detectable_frequency


def test_errors_that_only_bins_show_are_found_among_many_classes():
    rng = np.random.default_rng(0)
    p = rng.random(10_000)
    labels = rng.random(10_000) < np.clip(p + 0.06 * np.where(np.floor(15 * p) % 2, 1, -1), 0, 1)
    found = diagnose(p, labels, task="binary", among=40)
    assert [check.name for check in found.checks if 40 * check.p_value <= 0.05] == ["bins"]
    assert 40 * diagnose(p, labels, task="binary").p_value > 0.05  # a thousand simulations do not tell


def test_evaluate_fits_nothing():
    logits, labels = draw(rows=600)
    report = evaluate_multilabel(logits[:, [0, 3]], labels[:, [0, 3]])
    assert report.calibrator is None
    assert [len(each.methods) for each in report.reports] == [1, 1]
    assert report.verdict.sentences[0] == "The probabilities of 1 of 2 classes cannot be trusted: class 1."
    with pytest.raises(ValueError, match=r"nothing was fitted: fit one with refocal\.calibrate_multilabel"):
        report.to_torch()


def test_trusted_classes_and_too_few_data():
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((20_000, 2))
    labels = rng.random(logits.shape) < 1 / (1 + np.exp(-logits))
    report = evaluate_multilabel(logits, labels)
    assert report.verdict.regime == "calibrated"
    assert report.verdict.sentences[0] == (
        "These probabilities can be trusted: no sign of miscalibration in 2 classes and 20,000 samples."
    )
    assert report.verdict.sentences[1].startswith("In each class, an error above ")
    few = evaluate_multilabel(logits[:100], labels[:100])
    assert few.verdict.regime == "unclear"
    assert few.verdict.sentences[0] == (
        "No sign of miscalibration, but the data are too few to rule it out in 2 classes."
    )
    mixed = logits.copy()
    mixed[:, 1] -= 9
    answers = rng.random(logits.shape) < 1 / (1 + np.exp(-mixed))
    both = evaluate_multilabel(mixed, answers)
    assert both.verdict.sentences[0] == (
        "No sign of miscalibration: the probabilities of 1 of 2 classes can be trusted, and for 1 the data cannot tell."
    )
    assert both.verdict.sentences[1].startswith("In the class that can be trusted, an error above ")


def test_predictions_files_and_exports(calibration, report, tmp_path):
    logits, _ = draw(seed=1)
    probs = calibration.predict_proba(logits)
    assert probs.shape == logits.shape
    np.testing.assert_array_equal(report.calibrator.predict_proba(logits), probs)
    for k, own in enumerate(calibration.selections):
        np.testing.assert_array_equal(own.predict_proba(logits[:, k])[:, 1], probs[:, k])
    calibration.save(tmp_path / "cal.json")
    np.testing.assert_array_equal(load(tmp_path / "cal.json").predict_proba(logits), probs)
    np.testing.assert_allclose(report.to_torch()(torch.tensor(logits)).numpy(), probs, atol=1e-9)
    report.to_onnx(tmp_path / "cal.onnx")
    assert (tmp_path / "cal.onnx").stat().st_size > 1000


def test_json(report, tmp_path):
    report.save(tmp_path / "report.json")
    content = json.loads((tmp_path / "report.json").read_text(encoding="ascii"))
    assert content["schema"] == 1
    assert content["task"] == "multilabel"
    assert content["class_names"] == list(NAMES)
    assert content["verdict"]["sentences"] == list(report.verdict.sentences)
    assert len(content["reports"]) == 4
    assert "calibrator" not in content
    assert len(json.dumps(content)) < 100_000
    with pytest.raises(FileExistsError):
        report.save(tmp_path / "report.json")
    with pytest.raises(ValueError, match=r"path must end in .*\.json, got"):
        report.save(tmp_path / "report.txt")


def test_text_and_repr(report):
    text = str(report)
    assert text.startswith(report.verdict.sentences[0])
    assert "scans: 2,000 samples, 4 classes (multi-label)" in text
    lines = text.splitlines()
    assert lines[3].split()[:3] == ["class", "mean", "frequency"]
    assert lines[4].split()[0] == NAMES[report.ranking[0]]
    assert repr(report) == "<MultilabelReport on 'scans': 2,000 samples, 4 classes, 2 of them not calibrated>"


def test_sigmoid_focal_loss_is_undone():
    rng = np.random.default_rng(0)
    truth = rng.beta(0.8, 2, (3000, 2))
    labels = rng.random(truth.shape) < truth
    scores = refocal.sigmoid_minimizer(truth, gamma=2.0, alpha=0.25)
    logits = np.log(scores / (1 - scores))
    found = calibrate_multilabel(logits, labels, gamma=2.0, alpha=0.25)
    assert [own.chosen.name for own in found.selections] == ["posterior", "posterior"]
    np.testing.assert_allclose(found.predict_proba(logits), truth, atol=1e-6)
    assert found.settings["alpha"] == 0.25
    each = calibrate_multilabel(logits, labels, gamma=[2.0, 1.0], alpha=[0.25, 0.5], method="posterior")
    expected = sigmoid_posterior(logits, gamma=[2.0, 1.0], alpha=[0.25, 0.5])
    np.testing.assert_allclose(each.predict_proba(logits), expected, rtol=1e-9)
    assert each.settings["gamma"] == [2.0, 1.0]


def test_classes_that_are_too_rare_are_not_fitted():
    logits, labels = draw(rows=400)
    labels[:, 1] = 0
    found = calibrate_multilabel(logits, labels, method="isotonic")
    assert found.unfitted == (1,)
    assert found.selections[1].chosen.name == "given"
    known = calibrate_multilabel(logits, labels, gamma=1.0, method="isotonic")
    assert known.selections[1].chosen.name == "posterior"
    assert known.selections[0].chosen.name == "isotonic"
    assert np.all(found.predict_proba(logits)[:, 1] > 0)


def test_cross_fitting_measures_held_out_rows():
    logits, labels = draw(rows=500)
    crossed = cross_calibrate_multilabel(logits[:, [0, 2]], labels[:, [0, 2]], folds=3, method="platt")
    assert crossed.report.protocol.startswith("Cross-fitting in 3 folds: each row is measured by calibrators")
    alone = refocal.report.cross_calibrate(logits[:, 2], labels[:, 2], folds=3, method="platt", input="logits")
    np.testing.assert_allclose(crossed.probs[:, 1], alone.probs[:, 1], rtol=1e-12)
    assert not np.array_equal(crossed.probs, crossed.selection.predict_proba(logits[:, [0, 2]]))
    own = crossed.report.reports[1]
    assert own.chosen.measures["nll"].value == pytest.approx(alone.report.chosen.measures["nll"].value)
    assert crossed.report.calibrator.classes_.tolist() == ["0", "1"]
    with pytest.raises(ValueError, match="folds must be"):
        cross_calibrate_multilabel(logits, labels, folds=1)


def test_containers_and_weights():
    logits, labels = draw(rows=60, classes=4)
    logits, labels = logits[:, [0, 2]], labels[:, [0, 2]]
    expected = evaluate_multilabel(logits, labels, class_names=("a", "b"))
    frame = pd.DataFrame(logits, columns=["a", "b"])
    assert evaluate_multilabel(frame, pd.DataFrame(labels == 1)).class_names == ("a", "b")
    assert evaluate_multilabel(logits.tolist(), pl.DataFrame(labels, schema=["a", "b"])) == expected
    assert evaluate_multilabel(torch.tensor(logits, requires_grad=True), torch.tensor(labels).float()).samples == 60
    weights = np.where(np.arange(60) < 30, 2.0, 0.0)
    heavy = evaluate_multilabel(logits, labels, sample_weight=weights)
    half = evaluate_multilabel(logits[:30], labels[:30])
    assert (heavy.samples, heavy.total_weight) == (30, 60)
    nll = [each.reports[0].given.measures["nll"].value for each in (heavy, half)]
    assert nll[0] == pytest.approx(nll[1])
    with pytest.raises(ValueError, match="the columns of labels must be in the order 'a', 'b', got 'b', 'a'"):
        evaluate_multilabel(frame, pd.DataFrame(labels, columns=["b", "a"]))


def test_errors():
    logits, labels = draw(rows=40)
    probs = 1 / (1 + np.exp(-logits))
    for options, message in [
        ({"method": "best"}, "method must be one of"),
        ({"alpha": 0.25}, "alpha describes a sigmoid focal loss whose gamma must be given, too: 0 for cross-entropy"),
        ({"method": "posterior"}, "method='posterior' needs gamma"),
        ({"gamma": -2}, "gamma must be"),
        ({"gamma": 1, "alpha": 1.5}, "alpha must lie strictly between 0 and 1"),
        ({"gamma": [1, 2]}, "gamma"),
        ({"class_names": ["a"]}, "class_names must have one name for each of 4 classes, got 1"),
        ({"sample_weight": np.ones(3)}, r"sample_weight must have shape \(40,\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            calibrate_multilabel(logits, labels, **options)
    with pytest.raises(ValueError, match=r"scores look like probabilities: every value lies in \[0, 1\]"):
        evaluate_multilabel(probs, labels)
    with pytest.raises(ValueError, match=r"scores must lie in \[0, 1\]"):
        evaluate_multilabel(logits, labels, input="probs")
    found = calibrate_multilabel(logits[:, :2], labels[:, :2], method="platt")
    with pytest.raises(ValueError, match="class_names must have one name for each of 4 classes, got 2"):
        found.report(logits, labels)
    with pytest.raises(ValueError, match="scores must have 2 columns, one per fitted class, got 4"):
        found.report(logits, labels, class_names=NAMES)


@pytest.mark.parametrize("function", [refocal.evaluate, refocal.calibrate])
@pytest.mark.parametrize("kind", [int, bool, float])
def test_one_label_per_class_points_to_the_multilabel_task(function, kind):
    logits, labels = draw(rows=40)
    with pytest.raises(ValueError, match=r"if a row can have several labels, use refocal\.evaluate_multilabel or ref"):
        function(logits, labels.astype(kind))
