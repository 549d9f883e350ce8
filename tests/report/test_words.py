"""How numbers are written."""

from __future__ import annotations

import dataclasses
import html
import io
import json
import math
import re

import numpy as np
import pytest
from rich.console import Console

import refocal
from refocal import metrics
from refocal.calibrators import Refinement, refinement
from refocal.metrics.diagnosis import RangeGap
from refocal.report import markup, verdict, words
from refocal.report.page import render_page
from refocal.report.record import Diagram, Estimate
from refocal.report.svg import format_short_count
from refocal.report.table import build_table


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (words.format_number(0.25), "0.2500"),
        (words.format_number(2e-6), "2.0e−06"),
        (words.format_number(-0.5), "−0.5000"),
        (words.format_number(0.0), "0.0000"),
        (words.format_number(math.inf), "∞"),
        (words.format_number(math.nan), "–"),
        (words.format_percent(0.1234), "12.3%"),
        (words.format_percent(math.nan), "–"),
        (words.format_measure("ece", 0.01234), "1.23%"),
        (words.format_measure("nll", 0.01234), "0.0123"),
        (words.format_interval("error", Estimate(0.2, 0.1, 0.3)), "10.00% to 30.00%"),
        (words.format_interval("error", Estimate(0.2, math.nan, math.nan)), ""),
        (words.format_p_value(0.0004), "< 0.001"),
        (words.format_p_value(0.04), "0.040"),
        (words.format_p_value(math.nan), "–"),
        (words.format_seconds(None), "–"),
        (words.format_seconds(0.001), "< 0.01 s"),
        (words.format_seconds(2.0), "2.00 s"),
        (words.format_count(1234), "1,234"),
        (words.format_count(1234.56), "1,234.6"),
        (
            words.format_parameters({"gamma": -0.5, "temperature": 1.23456, "bias": 2.0}),
            "γ = −0.5, T = 1.235, bias = 2",
        ),
        (words.describe_measure("own_measure").label, "own measure"),
        (words.lower_title("Beta calibration"), "beta calibration"),
        (words.lower_title("Platt scaling"), "Platt scaling"),
        (words.lower_title("Dirichlet calibration"), "Dirichlet calibration"),
        (words.lower_title(""), ""),
        (format_short_count(9999), "9999"),
        (format_short_count(12_345), "12.3k"),
        (format_short_count(4_000_000), "4M"),
        (format_short_count(2.5e9), "2.5G"),
    ],
)
def test_numbers_are_written_for_people(written, expected):
    assert written == expected


def test_a_diagram_is_described_in_words():
    diagram = Diagram((100, 300), (0.5, 0.9), (0.8, 0.9), (0.4, 0.85), (0.6, 0.95))
    assert words.describe_diagram(diagram) == (
        "400 samples in 2 bins, 1 outside the consistency band. "
        "Mean predicted probability 80.0%, observed frequency 87.5%."
    )
    assert words.diagram_means(diagram) == pytest.approx((0.8, 0.875))


@pytest.fixture(scope="module")
def binary():
    """A report on P(y = 1) of an overconfident classifier, with slices, before and after."""
    rng = np.random.default_rng(0)
    odds = rng.normal(-1, 1.5, 1600)
    labels = (rng.random(1600) < 1 / (1 + np.exp(-odds))).astype(int)
    selection = refocal.calibrate(2 * odds[:800], labels[:800], method="platt", class_names=("stays", "leaves"))
    return selection.report(2 * odds[800:], labels[800:], slices={"site": np.arange(800) % 2})


def read_page(report):
    body = re.sub(r"<(style|script).*?</\1>", "", render_page(report), flags=re.S)
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", body)).replace("\u00a0", " ").split())


def test_a_binary_page_does_not_speak_of_confidence_and_accuracy(binary):
    shown = read_page(binary)
    assert "P(y = 1) Observed If calibrated Samples" in shown
    assert "ECE mean distance between P(y = 1) and the observed frequency over bins" in shown
    assert "in tests of the mean of P(y = 1), of its ranges and of its bins" in shown
    assert "each class" not in shown
    assert "accuracy" not in shown


def test_p_values_are_not_probabilities_of_being_calibrated(binary):
    shown = read_page(binary)
    assert "p-value: how often a calibrated slice would look at least this far off by chance" in shown
    assert "that the slice is calibrated" not in shown
    assert "a larger one does not prove calibration" in shown


def test_the_band_is_said_to_hold_each_dot_with_95_percent(binary):
    shown = read_page(binary)
    assert "each dot of a calibrated model lies in the gray band with a probability of 95%" in shown
    assert "A dot is filled if it lies outside its 95% range, as about one dot in 20 does by chance alone." in shown
    assert "The gray band joins the ranges of after ." in shown  # a tag stands before the stop
    assert "than chance allows" not in shown


def test_headline_numbers_are_those_of_the_verdict(binary):
    tiles = markup.build_tiles(binary.given, binary.chosen, event=markup.name_event(binary))
    labels = re.findall("<dt>(.*?)</dt>", tiles)
    event = f"<bdi>{binary.class_names[1]}</bdi>"
    assert labels == ["ECE, debiased", "NLL", f"Mean probability of {event}", f"Frequency of {event}"]
    assert tiles.count("→") == 3  # no method changes the frequency
    for method in (binary.given, binary.chosen):
        assert words.format_percent(method.measures["debiased_ece"].value) in " ".join(binary.verdict.sentences)


def test_a_fit_that_is_not_recommended_is_not_called_so(binary):
    assert "it is not the recommended method" in read_page(binary)
    chosen = tuple(dataclasses.replace(method, chosen=method.name == "focal-temperature") for method in binary.methods)
    assert "it is not the recommended method" not in read_page(dataclasses.replace(binary, methods=chosen))


def test_few_samples_do_not_show_that_a_fit_is_right(binary):
    assert "Platt scaling corrects them as far as 800 samples can show." in binary.verdict.sentences[0]
    assert re.search("only an error above .* points would have been seen reliably", binary.verdict.sentences[-1])


@pytest.mark.parametrize(("factor", "clause"), [(1.02, ""), (1.1, ""), (1.3, " (1.3 times)"), (1 / 3, " (3.0 times)")])
def test_a_factor_near_one_is_left_out(factor, clause):
    found = metrics.diagnose(np.full(50, 0.02), np.arange(50) < 1, task="binary")
    assert verdict._say_factor(dataclasses.replace(found, predicted=0.02 * factor, observed=0.02)) == clause


@pytest.mark.parametrize(
    ("predicted", "size"), [(0.0202, "0.02 points too high"), (0.05, "2.5 times too high"), (0.01, "2.0 times too low")]
)
def test_a_range_that_is_off_by_little_is_told_in_points(predicted, size):
    gap = RangeGap(low=0.01, high=0.1, predicted=predicted, observed=0.02, p_value=0.001)
    assert size in verdict._say_range("fraud", gap)


def test_numbers_stay_with_their_names():
    together = words.keep_together("They fail (p < 0.001) with γ = 3, T = 1.2: p = 0.04, if p is small.")
    assert together == (
        "They fail (p\u00a0<\u00a00.001) with γ\u00a0=\u00a03, T\u00a0=\u00a01.2: p\u00a0=\u00a00.04, if p is small."
    )


def draw_overconfident(classes):
    """Logits that are three times too large, and labels."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((600, classes))
    return 3 * logits, np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)


@pytest.mark.parametrize("classes", [2, 4])
def test_both_losses_are_split_in_the_table_the_json_and_the_page(classes):
    logits, labels = draw_overconfident(classes)
    report = refocal.evaluate(logits, labels, input="logits")
    unit = {"nll": 1.0, "brier": 0.5 if classes == 2 else 1.0}  # that of P(y = 1) is half that of two classes
    for parts in (report.refinement, report.brier_refinement):
        expected = dataclasses.asdict(refinement(logits, labels, score=parts.score))
        assert parts.total == pytest.approx(report.given.measures[parts.score].value)
        assert parts.method == expected.pop("method")
        found = {name: getattr(parts, name) for name in expected if name != "score"}
        assert found == pytest.approx({name: unit[parts.score] * expected[name] for name in found}, rel=1e-6)
    nll, brier = (
        f"{parts.calibration:.4f} (standard error {parts.calibration_error:.4f})"
        for parts in (report.refinement, report.brier_refinement)
    )
    sentence = (
        f"Of the log loss of {report.refinement.total:.4f} as given, {nll} is miscalibration that post-hoc calibration "
        f"removes; of the Brier score of {report.brier_refinement.total:.4f}, {brier}."
    )
    assert words.explain_refinement(report) == sentence
    assert sentence in render_page(report)
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(build_table(report))
    assert sentence in console.export_text()
    written = json.loads(report.to_json())
    assert written["refinement"]["calibration"] == pytest.approx(report.refinement.calibration)
    assert written["brier_refinement"]["calibration"] == pytest.approx(report.brier_refinement.calibration)


def test_a_loss_that_cannot_be_split_is_not_mentioned():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([1, 1, 1], size=150)
    labels = rng.integers(3, size=150)
    few = refocal.evaluate(probs[:99], labels[:99], input="probs")
    assert few.refinement is None
    assert few.brier_refinement is None
    assert words.explain_refinement(few) == ""
    logits = np.log(probs)
    logits[0, labels[0]] = -np.inf  # a masked class that came true
    infinite = refocal.evaluate(logits, labels, input="logits")
    assert infinite.given.measures["nll"].value == np.inf
    assert infinite.refinement is None
    assert words.explain_refinement(infinite).startswith("Of the Brier score of ")
    for report in (few, infinite):
        assert "log loss of" not in render_page(report)


def test_a_loss_that_calibration_does_not_clearly_lower():
    """The sentence does not deny that a calibrator fitted to other samples lowers it."""
    report = refocal.evaluate(*draw_overconfident(4), input="logits")
    same = Refinement("nll", 0.5, 0.5, 0.0, 0.1, 0.1, 0.0, "none")
    start = "Calibrators cross-fitted to these samples alone do not clearly lower the "
    neither = dataclasses.replace(report, refinement=same, brier_refinement=dataclasses.replace(same, total=0.25))
    assert words.explain_refinement(neither) == f"{start}log loss of 0.5000 or the Brier score of 0.2500 as given."
    only = dataclasses.replace(report, brier_refinement=dataclasses.replace(same, total=0.25))
    removed, kept = words.explain_refinement(only).split(". ")
    assert removed.endswith("is miscalibration that post-hoc calibration removes")
    assert kept == f"{start}Brier score of 0.2500 as given."
