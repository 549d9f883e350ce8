"""Reports measured from sums: the same measures as from rows, and nothing that sums do not give."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pytest
from rich.console import Console

import refocal
from refocal.calibrators import AutoCalibrator, FocalPosterior, IsotonicCalibration, TemperatureScaling
from refocal.metrics import CalibrationAccumulator
from refocal.report import build_table, render_page
from refocal.report.selection import Candidate
from refocal.report.sums import report_sums
from refocal.report.table import compare_reports
from refocal.report.verdict import write_verdict

NAMES = ("<b>a</b>", "b", "c")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((2000, 3))
    return logits, np.argmax(logits / 2 + rng.gumbel(size=logits.shape), axis=1)


@pytest.fixture(scope="module")
def report(data):
    logits, labels = data
    calibrator = TemperatureScaling().fit(logits, labels)
    given, calibrated = CalibrationAccumulator(), CalibrationAccumulator()
    given.update(logits, labels, input="logits")
    calibrated.update(calibrator.predict_proba(logits), labels)
    measured = (Candidate.of(calibrator), calibrated.compute())
    return report_sums(given.compute(), measured, samples=2000, classes=3, class_names=NAMES, source="many files")


def test_measures_are_those_of_a_report_on_rows(data, report):
    logits, labels = data
    rows = refocal.evaluate(logits, labels, class_names=NAMES)
    of_rows = {name: measured for name, measured in rows.given.measures.items() if name != "debiased_ece"}
    assert list(report.given.measures)[:6] == list(of_rows)
    for name, estimate in of_rows.items():
        found = report.given.measures[name]
        assert found.value == pytest.approx(estimate.value, rel=1e-9, abs=1e-3 if name == "adaptive_ece" else 0)
        assert (found.low, found.high) == (None, None)
    assert (report.samples, report.total_weight, report.classes) == (rows.samples, rows.total_weight, rows.classes)
    assert report.class_names == rows.class_names


def test_json_has_the_same_keys_and_null_for_what_is_missing(data, report):
    logits, labels = data
    written = json.loads(report.to_json())
    rows = json.loads(refocal.evaluate(logits, labels).to_json())
    assert list(written) == list(rows)
    assert list(written["methods"][0]) == list(rows["methods"][0])
    assert written["verdict"] is written["slider"] is None
    for method in written["methods"]:
        assert method["p_value"] is method["diagram"] is method["histogram"] is None
        assert method["measures"]["nll"]["low"] is None


def test_the_table_says_what_is_missing(report):
    console = Console(file=io.StringIO(), width=120)
    console.print(build_table(report))
    text = console.file.getvalue()
    assert "many files: 2,000 samples, 3 classes" in text
    assert "Confidence intervals, p-values and a verdict need all rows in memory." in text
    assert "Temperature scaling: T = " in text
    assert "p-value │" not in text
    assert "recommended" not in text


def test_the_table_has_no_line_for_a_method_without_parameters(data):
    logits, labels = data
    summary = CalibrationAccumulator()
    summary.update(logits, labels, input="logits")
    measured = (Candidate.of(IsotonicCalibration().fit(logits, labels)), summary.compute())
    report = report_sums(summary.compute(), measured, samples=2000, classes=3, class_names=None, source="files")
    console = Console(file=io.StringIO(), width=120)
    console.print(build_table(report))
    assert "Isotonic calibration:" not in console.file.getvalue()


def test_reports_of_both_kinds_stand_side_by_side(data, report):
    logits, labels = data
    rows = refocal.evaluate(logits, labels, source="rows")
    console = Console(file=io.StringIO(), width=120)
    console.print(compare_reports([rows, report], ("more", "1", "2")))
    text = console.file.getvalue()
    assert "calibrated? p-value" in text
    assert text.count("more") >= 1


def test_the_page_shows_the_methods_alone(report):
    page = render_page(report)
    sections = page.split("<main")[1]
    assert re.findall('<section id="(.*?)"', sections) == ["methods", "apply", "settings"]
    assert page.count('<a href="#') == 3
    assert "nan" not in page.split("<script")[0].split("</style>")[1].replace("data-value='nan'", "")
    assert "None" not in page.split("<script")[0].replace("session.run(None, inputs)", "")
    assert "Confidence intervals, p-values and a verdict need all rows in memory." in page
    assert "&lt;b&gt;" not in page  # class names have no place on it


def test_a_verdict_needs_a_test(report):
    settings = {"samples": 9, "changed": 0.0, "gamma": None, "below": None, "alone": False}
    with pytest.raises(ValueError, match="a verdict needs the diagnosis of 'given'"):
        write_verdict(report.given, report.chosen, class_names=NAMES, **settings)


def test_calibrators_are_named_as_in_a_selection(data):
    logits, labels = data
    few = [TemperatureScaling(), IsotonicCalibration()]
    assert Candidate.of(AutoCalibrator(candidates=few, combine="select").fit(logits, labels)).name == "temperature"
    assert Candidate.of(AutoCalibrator(candidates=few).fit(logits, labels)).title == "Mixture of calibrators"
    assert Candidate.of(FocalPosterior(gamma=2.0)).title == "Closed-form posterior"
    assert Candidate.of(IsotonicCalibration().fit(logits, labels)).title == "Isotonic calibration"
