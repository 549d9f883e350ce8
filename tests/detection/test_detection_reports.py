"""Reports on detections, and calibrators of their scores."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pytest
from rich.console import Console

import refocal
from drawn_boxes import draw_boxes, draw_scored, draw_truth
from refocal import detection
from refocal.calibrators import FocalPosterior, PlattScaling, TemperatureScaling, load
from refocal.detection.table import build_detection_table

EVIL = "<script>alert(1)</script>[bold]\x1b[31m&"


@pytest.fixture(scope="module")
def low():
    """Scores that are the square of the probability: too low."""
    return draw_scored(np.random.default_rng(0), images=200, power=2)


@pytest.fixture(scope="module")
def report(low):
    return detection.evaluate(*low)


def test_the_record_holds_measures_and_the_standard_report(report, low):
    boxes, truth = low
    assert (report.images, report.detections, report.ignored) == (200, 800, 0)
    assert report.right == report.objects == len(truth["annotations"])
    assert report.precision == report.right / 800
    assert list(report.measures) == ["d_ece", "la_ece", "la_ece_0", "debiased_ece", "nll", "brier", "error"]
    matches = detection.match(boxes, truth)
    assert report.measures["d_ece"].value == detection.d_ece(matches)
    assert report.measures["la_ece"].value == detection.la_ece(matches)
    assert report.measures["la_ece_0"].value == detection.la_ece(detection.match(boxes, truth, iou=0))
    claim, right = matches.detections.scores, matches.matched
    assert report.measures["nll"].value == pytest.approx(-np.log(np.where(right, claim, 1 - claim)).mean())
    assert report.measures["brier"].value == pytest.approx(((claim - right) ** 2).mean())
    assert report.measures["error"].value == pytest.approx(((claim > 0.5) != right).mean())
    for estimate in report.measures.values():
        assert 0 <= estimate.low < estimate.high
    assert report.report.verdict.regime == "too low"
    assert "a right box" in report.report.verdict.sentences[0]
    assert [part.value for part in report.report.slices] == ["bird", "cat", "dog"]
    assert "Limits of D-ECE and LaECE resample images" in report.report.protocol


def test_thresholds_are_recorded(low):
    strict = detection.evaluate(*low, iou=0.9, min_score=0.25)
    assert (strict.iou, strict.min_score, strict.right) == (0.9, 0.25, 0)  # right boxes have IoU 0.8
    assert strict.detections == sum(box["score"] >= 0.25 for box in low[0])
    assert "scores from 0.25, 0 right at IoU 0.9" in strict.describe()
    assert (strict.report.settings["iou"], strict.report.settings["min_score"]) == (0.9, 0.25)


def test_it_is_shown_as_text(report):
    lines = str(report).splitlines()
    assert lines[0] == "The probabilities of a right box are too low."
    assert lines[1].startswith("results: 800 boxes in 200 images, ")
    assert lines[3].split() == ["method", "mean", "score", "D-ECE", "LaECE", "LaECE₀", "NLL"]
    assert repr(report).startswith("<DetectionReport on results: 800 boxes")
    assert "<svg" in report._repr_html_()


def test_it_is_saved_as_page_and_json(report, tmp_path):
    report.save(tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "D-ECE" in page
    assert "refocal calibrate boxes.json" in page
    report.save(tmp_path / "a.json")
    record = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert (record["schema"], record["task"], record["detections"]) == (1, "detection", 800)
    assert record["report"]["methods"][0]["measures"]["d_ece"]["value"] == report.measures["d_ece"].value
    with pytest.raises(ValueError, match=r"path must end in \.html or \.json"):
        report.save(tmp_path / "a.txt")


def test_names_of_categories_are_text_and_never_code(low, tmp_path):
    boxes, truth = low
    named = [{**each, "name": f"{EVIL}{each['id']}"} for each in truth["categories"]]
    found = detection.evaluate(boxes, {**truth, "categories": named}, source=EVIL)
    found.save(tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;[bold]" in page
    assert "\x1b" not in page
    assert "\x1b" not in str(found)
    shown = io.StringIO()
    Console(width=200, file=shown).print(build_detection_table(found))
    assert "[bold]" in shown.getvalue()
    assert "\x1b" not in shown.getvalue()


def test_rare_categories_are_measured_together():
    rng = np.random.default_rng(1)
    boxes, truth = draw_scored(rng, images=40)
    many = [{"id": each, "name": f"kind {each}"} for each in range(1, 60)]
    spread = [{**box, "category_id": 1 + row % 59} for row, box in enumerate(boxes)]
    found = detection.evaluate(spread, {**truth, "categories": many, "annotations": []})
    names = [part.value for part in found.report.slices]
    assert len(names) == 21
    assert "(other categories)" in names


def test_few_detections():
    box = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9], "score": 0.5}
    truth = {"images": [{"id": 1}], "categories": [{"id": 1}], "annotations": []}
    for boxes, count in (([], 0), ([box], 1)):
        with pytest.raises(ValueError, match=f"results: at least two detections must count, got {count}$"):
            detection.evaluate(boxes, truth)
    with pytest.raises(ValueError, match=r"at least two detections with scores from 0\.6 must count, got 0$"):
        detection.evaluate([box] * 5, truth, min_score=0.6)
    crowd = {**truth, "annotations": [{**box, "iscrowd": 1}]}
    with pytest.raises(ValueError, match="must count, got 0; 5 are ignored"):
        detection.evaluate([box] * 5, crowd)
    with pytest.raises(ValueError, match="min_score must be"):
        detection.evaluate([box] * 5, truth, min_score=float("nan"))
    with pytest.raises(ValueError, match="min_score must be from 0 to 1, got 30"):
        detection.evaluate([box] * 5, truth, min_score=30)
    found = detection.evaluate([box, {**box, "score": 1.0}], truth)  # a sure box that is wrong
    assert found.measures["nll"].value == np.inf
    assert json.loads(found.to_json())["report"]["methods"][0]["measures"]["nll"]["value"] is None


def test_ignored_detections_do_not_count():
    rng = np.random.default_rng(2)
    truth = draw_truth(rng, crowds=0.3)
    boxes = draw_boxes(rng, truth, decimals=3)
    matches = detection.match(boxes, truth)
    found = detection.evaluate(boxes, truth)
    assert found.ignored == matches.ignored.sum() > 0
    assert found.detections + found.ignored == len(boxes)
    kept = [box for box, ignored in zip(boxes, matches.ignored, strict=True) if not ignored]
    again = detection.evaluate(kept, truth)
    assert again.measures["d_ece"] == found.measures["d_ece"]


@pytest.fixture(scope="module")
def fitted(low):
    return detection.calibrate(*low)


def test_a_calibrator_gives_the_probability_back(fitted):
    other = draw_scored(np.random.default_rng(3), images=200, power=2)
    report = fitted.report(*other)
    assert report.report.chosen.measures["d_ece"].high < report.report.given.measures["d_ece"].low
    np.testing.assert_allclose(fitted.predict(np.array([0.04, 0.25, 0.64])), [0.2, 0.5, 0.8], atol=0.08)
    assert fitted.predict(np.zeros(0)).shape == (0,)
    ends = fitted.predict(np.array([0.0, 1.0]))
    assert np.isfinite(ends).all()


def test_it_is_an_ordinary_calibrator(fitted, low, tmp_path):
    fitted.save(tmp_path / "cal.json")
    scores = np.array([box["score"] for box in low[0]])
    np.testing.assert_array_equal(detection.apply(load(tmp_path / "cal.json"), scores), fitted.predict(scores))


def test_the_loss_of_the_detector_is_a_candidate(low):
    fitted = detection.calibrate(*low, gamma=2, alpha=0.25, method="posterior")
    scores = np.array([0.1, 0.5, 0.9])
    expected = refocal.sigmoid_posterior(np.log(scores) - np.log1p(-scores), gamma=2, alpha=0.25)
    np.testing.assert_allclose(fitted.predict(scores), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="alpha must lie strictly between 0 and 1"):
        detection.calibrate(*low, gamma=2, alpha=1.0)
    with pytest.raises(ValueError, match="method='posterior' needs gamma"):
        detection.calibrate(*low, method="posterior")


def test_cross_fitting_keeps_images_together(low):
    """The same numbers by hand: Platt scaling without the fold of each image."""
    boxes, truth = low
    found = detection.cross_calibrate(boxes, truth, method="platt", seed=3)
    assert found.report.report.protocol.startswith("Cross-fitting in 5 folds of images")
    matches = detection.match(boxes, truth)
    assert found.report.report.chosen.measures["d_ece"].value == detection.d_ece(matches, scores=found.scores)
    images, scores = matches.number_images(), matches.detections.scores
    folds = np.array_split(np.random.default_rng(3).permutation(200), 5)
    for fold in folds:
        inside = np.isin(images, fold)
        platt = PlattScaling(input="probs").fit(scores[~inside][:, None], matches.matched[~inside].astype(int))
        np.testing.assert_allclose(found.scores[inside], platt.predict_proba(scores[inside][:, None])[:, 1], rtol=1e-9)


def test_holding_images_out(low):
    boxes, truth = low
    found = detection.hold_out(boxes, truth, share=0.25, seed=2, method="platt")
    assert found.report.detections == len(found.scores) == 4 * 50
    assert "boxes of 50 images held out at random, 25% of all (seed 2)" in found.report.report.protocol
    held = set(found.detections.image_ids)
    rest = [box for box in boxes if box["image_id"] not in held]
    alone = detection.calibrate(rest, truth, method="platt")
    np.testing.assert_allclose(found.scores, alone.predict(found.detections.scores), rtol=1e-12)
    assert found.report.images == 50
    assert found.report.objects == sum(each["image_id"] in held for each in truth["annotations"])
    with pytest.raises(ValueError, match="share must lie strictly between 0 and 1"):
        detection.hold_out(boxes, truth, share=1.0)
    with pytest.raises(detection.CocoError, match="image_id 'new' is not among the images"):
        detection.hold_out([*boxes, {**boxes[0], "image_id": "new"}], truth, share=0.5)
    with pytest.raises(TypeError, match="unexpected keyword argument 'metod'"):
        detection.hold_out(boxes, truth, share=0.5, metod="platt")


def test_cross_fitting_needs_images(low):
    boxes, truth = low
    few = [box for box in boxes if box["image_id"] < 3]
    with pytest.raises(
        ValueError, match="cross-fitting needs boxes that count in 5 images or more, got 3: give --test"
    ):
        detection.cross_calibrate(few, truth)
    with pytest.raises(TypeError, match="seed must be a whole number"):
        detection.cross_calibrate(boxes, truth, seed=0.5)


def test_categories_with_equal_names_stay_apart(low):
    boxes, truth = low
    named = [{"id": 1, "name": "cat"}, {"id": 2, "name": "cat"}, {"id": 3, "name": "bird"}]
    found = detection.evaluate(boxes, {**truth, "categories": named})
    assert [part.value for part in found.report.slices] == ["bird", "cat (1)", "cat (2)"]


def test_one_object():
    box = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9], "score": 0.5}
    truth = {"images": [{"id": 1}], "categories": [{"id": 1}], "annotations": [box]}
    assert detection.evaluate([box, box], truth).describe().endswith("1 right at IoU 0.5; 1 object")


def test_wrong_boxes_alone_cannot_be_fitted_to(low):
    boxes, truth = low
    with pytest.raises(ValueError, match="got only class 'a wrong box'"):
        detection.calibrate(boxes, {**truth, "annotations": []})


@pytest.mark.parametrize(
    "calibrator",
    [
        TemperatureScaling().fit(np.eye(3)[[0, 1, 2, 0]] * 2.0, [0, 1, 2, 1]),
        PlattScaling(input="logits").fit(np.arange(-5.0, 5)[:, None], [0, 0, 0, 1, 0, 1, 0, 1, 1, 1]),
        PlattScaling().fit(np.arange(-5.0, 5)[:, None], [0, 0, 0, 1, 0, 1, 0, 1, 1, 1]),
        "cal.json",
    ],
    ids=["three classes", "logits", "logits by default", "text"],
)
def test_other_calibrators_are_rejected(calibrator):
    with pytest.raises(ValueError, match="the calibrator must map one column of probabilities"):
        detection.apply(calibrator, np.array([0.5]))


def test_scores_have_one_axis():
    with pytest.raises(ValueError, match=r"scores must have shape \(N,\), one per detection, got \(2, 2\)"):
        detection.apply(FocalPosterior(gamma=2.0, input="probs"), np.full((2, 2), 0.5))


def test_the_closed_form_can_be_applied_alone():
    found = detection.apply(FocalPosterior(gamma=2.0, weight=[0.75, 0.25], input="probs"), np.array([0.0, 0.4, 1.0]))
    assert found[0] < 1e-6
    assert found[1] == pytest.approx(0.5, abs=0.01)
    assert found[2] > 1 - 1e-6


def test_public_names_are_documented():
    for name in detection.__all__:
        doc = getattr(detection, name).__doc__
        assert len(doc) > 60, name
    for name in ("evaluate", "calibrate", "match", "d_ece", "la_ece"):
        assert re.search(r"Reference: .* \(\d{4}\)", getattr(detection, name).__doc__), name
