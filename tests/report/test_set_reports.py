"""Prediction sets in reports, and the width of Venn-Abers intervals."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rich.console import Console

import refocal
from refocal.conformal import PredictionSets
from refocal.report import build_table
from refocal.report.prediction_sets import measure_sets


def draw(rows, classes, *, seed=0):
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.standard_normal((rows, classes))
    return logits, np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)


def softmax(logits):
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    return probs / probs.sum(axis=1, keepdims=True)


def show(report):
    console = Console(width=300)
    with console.capture() as captured:
        console.print(build_table(report))
    return captured.get()


@pytest.fixture(scope="module")
def selection():
    logits, labels = draw(2000, 4)
    return refocal.calibrate(3 * logits, labels, method="temperature")


def test_sets_of_each_fold_come_from_the_others():
    logits, labels = draw(503, 4)
    probs = softmax(logits)
    found = measure_sets([probs], labels, None, 0.9)
    member = np.empty(probs.shape, dtype=bool)
    for fold in np.array_split(np.random.default_rng(0).permutation(503), 5):
        others = np.setdiff1d(np.arange(503), fold)
        member[fold] = PredictionSets(input="probs").fit(probs[others], labels[others]).predict_set(probs[fold])
    hit, size = member[np.arange(503), labels], member.sum(axis=1)
    assert found.given.coverage.value == pytest.approx(hit.mean())
    assert found.given.size.value == pytest.approx(size.mean())
    assert found.given.sizes == tuple(np.sum(size == k) for k in range(1, size.max() + 1))
    rates = [hit[labels == k].mean() for k in range(4)]
    assert found.given.worst_class == int(np.argmin(rates))
    assert found.given.worst_coverage.value == pytest.approx(min(rates))
    assert found.chosen is None
    half = 1.96 * np.sqrt(max(hit.var(), 0.09) / 503)
    assert found.given.coverage.high - found.given.coverage.low == pytest.approx(2 * half, rel=1e-3)


def test_weights_and_classes_that_do_not_occur():
    logits, labels = draw(400, 3)
    kept = labels < 2
    weights = np.random.default_rng(0).integers(1, 4, kept.sum())
    found = measure_sets([softmax(logits[kept])], labels[kept], weights, 0.9).given
    assert sum(found.sizes) == weights.sum()
    assert found.worst_class < 2
    few = measure_sets([softmax(logits[:6])], labels[:6], None, 0.9).given
    assert few.coverage.value == pytest.approx(1)
    assert few.coverage.low < 0.8
    assert few.sizes[-1] == 6


@pytest.mark.thorough
def test_a_report_measures_sets_before_and_after(selection):
    logits, labels = draw(1500, 4, seed=1)
    report = selection.report(3 * logits, labels, sets=0.9)
    for outcome in (report.sets.given, report.sets.chosen):
        assert outcome.coverage.low < 0.9 < outcome.coverage.high
    assert report.sets.chosen.size.value < report.sets.given.size.value
    shown = show(report)
    assert "Prediction sets for a coverage of 90.0%, before: " in shown
    assert "Prediction sets for a coverage of 90.0%, after: " in shown
    assert "The threshold for each of 5 parts of the rows comes from the other parts." in shown
    content = json.loads(report.to_json())["sets"]
    assert content["target"] == 0.9
    assert content["chosen"]["size"]["value"] == report.sets.chosen.size.value
    from refocal.report.page import render_page

    page = render_page(report)
    assert 'id="sets"' in page
    assert "Prediction sets, before and after" in page
    assert "The class that is covered least" in page
    assert 'id="sets"' not in render_page(selection.report(3 * logits, labels))


def test_evaluate_measures_sets_as_given_and_says_if_rows_are_few():
    logits, labels = draw(40, 3)
    report = refocal.evaluate(logits, labels, sets=0.99)
    assert report.sets.chosen is None
    assert report.sets.given.size.value == pytest.approx(3)
    assert "There are too few rows for this coverage, so every set has all classes." in show(report)
    assert "as given" in show(report)
    with pytest.raises(ValueError, match="sets must lie strictly between 0 and 1, got 90"):
        refocal.evaluate(logits, labels, sets=90)


def test_cross_fitting_measures_sets():
    from refocal.report.cross_fitting import cross_calibrate

    logits, labels = draw(600, 3)
    report = cross_calibrate(2 * logits, labels, method="temperature", sets=0.8).report
    assert report.sets.chosen.coverage.low < 0.8 < report.sets.chosen.coverage.high
    with pytest.raises(ValueError, match=r"sets must lie strictly between 0 and 1, got 1\.5"):
        cross_calibrate(2 * logits, labels, sets=1.5)


def test_a_report_shows_the_mean_width_of_intervals():
    logits, labels = draw(800, 2)
    log_odds = logits[:, 1] - logits[:, 0]
    selection = refocal.calibrate(log_odds, labels, method="venn-abers")
    calibrator = selection.chosen.calibrator
    low, high = calibrator.predict_interval(log_odds)[:, 1].T
    assert selection.chosen.parameters == {"width": pytest.approx(np.mean(high - low))}
    assert selection.chosen.title == "Venn-Abers calibration"
    report = selection.report(log_odds, labels)
    assert f"width = {calibrator.width_:.4g}" in show(report)
    assert report.slider.temperature != 1  # the sliders begin with a map of their own form
