"""A report in a notebook, as text, and the exports that it has at hand."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
from test_page import Outline

import refocal
import sample
from refocal.calibrators import TemperatureScaling, load
from refocal.metrics import CalibrationAccumulator
from refocal.report.selection import Candidate
from refocal.report.sums import report_sums


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    logits = 4 * rng.standard_normal((800, 3))
    return logits, np.argmax(logits / 3 + rng.gumbel(size=logits.shape), axis=1)


@pytest.fixture(scope="module")
def fitted(data):
    return refocal.calibrate(*data, method="temperature").report(*data)


@pytest.mark.parametrize("string", sample.NASTY)
def test_html_escapes_every_string(string):
    report = sample.sample_report(100)
    plain = Outline(sample.poisoned(report, "plain")._repr_html_())
    poisoned = Outline(sample.poisoned(report, string)._repr_html_())
    assert [tag for tag, _ in poisoned.elements] == [tag for tag, _ in plain.elements]
    assert poisoned.scripts == plain.scripts
    assert re.sub("[\x00-\x08\ud800-\udfff]", "\ufffd", string) in "".join(poisoned.shown)


def test_html_is_self_contained_and_says_the_answer(fitted):
    html = fitted._repr_html_()
    outline = Outline(html)
    tags = [tag for tag, _ in outline.elements]
    assert tags[0] == "div"
    assert tags.count("svg") == tags.count("table") == 1
    assert "script" not in tags
    assert not any({"src", "href", "style"} & set(attributes) for _, attributes in outline.elements)
    assert not re.search(r"url\(|@import", html)
    assert fitted.verdict.sentences[0] in "".join(outline.shown)
    assert html.count("{") == html.count("}")
    assert len(html) < 40_000


def test_ids_differ_between_the_outputs_of_a_notebook(data, fitted):
    other = refocal.evaluate(*data)
    assert not set(Outline(other._repr_html_()).ids) & set(Outline(fitted._repr_html_()).ids)


def test_html_of_sums_has_no_diagram(data):
    logits, labels = data
    sums = CalibrationAccumulator()
    sums.update(logits, labels, input="logits")
    report = report_sums(sums.compute(), samples=800, classes=3, class_names=None, source="many files")
    assert "<svg" not in report._repr_html_()
    assert str(report).startswith("Measured block by block")


def test_text_is_a_short_plain_table(fitted):
    lines = str(fitted).splitlines()
    assert lines[0] == fitted.verdict.sentences[0]
    assert lines[1] == "test data: 800 samples, 3 classes"
    assert lines[3].split() == ["method", "NLL", "Brier", "ECE,", "debiased", "Error", "p-value"]
    assert len({len(line) for line in lines[3:-1]}) == 1
    assert f"{fitted.chosen.measures['nll'].value:.4f}" in next(line for line in lines if " * " in line)
    assert lines[-1] == "* recommended"


def test_text_cannot_command_the_terminal():
    assert "\x1b" not in str(sample.poisoned(sample.sample_report(100), "\x1b]0;title\x07"))


def test_repr_is_one_line(fitted):
    assert repr(fitted) == ("<Report on 'test data': 800 samples, 3 classes, recommended: 'Temperature scaling'>")


def test_the_calibrator_is_at_hand_and_not_written(data, fitted, tmp_path):
    logits, _ = data
    assert isinstance(fitted.calibrator, TemperatureScaling)
    assert "calibrator" not in json.loads(fitted.to_json())
    fitted.calibrator.save(tmp_path / "cal.json")
    np.testing.assert_array_equal(
        load(tmp_path / "cal.json").predict_proba(logits), fitted.calibrator.predict_proba(logits)
    )
    assert dataclasses.replace(fitted, calibrator=None) == fitted


def test_a_report_of_sums_has_its_calibrator(data):
    logits, labels = data
    calibrator = TemperatureScaling().fit(logits, labels)
    sums = CalibrationAccumulator()
    sums.update(logits, labels, input="logits")
    measured = (Candidate.of(calibrator), sums.compute())
    report = report_sums(sums.compute(), measured, samples=800, classes=3, class_names=None, source="many files")
    assert report.calibrator is calibrator


def test_exports_give_the_probabilities_of_the_calibrator(data, fitted, tmp_path):
    torch, onnxruntime = pytest.importorskip("torch"), pytest.importorskip("onnxruntime")
    scores = data[0].astype(np.float32)
    expected = fitted.calibrator.predict_proba(scores)
    np.testing.assert_allclose(fitted.to_torch()(torch.as_tensor(scores)).numpy(), expected, rtol=1e-4, atol=1e-6)
    fitted.to_onnx(tmp_path / "cal.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "cal.onnx"))
    np.testing.assert_allclose(session.run(None, {"logits": scores})[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("export", [lambda report: report.to_torch(), lambda report: report.to_onnx("cal.onnx")])
def test_without_a_fit_an_export_says_why_it_cannot_be(data, export):
    report = refocal.evaluate(*data)
    assert report.calibrator is None
    with pytest.raises(ValueError, match=r"no calibrator to export, because nothing was fitted: fit one with r"):
        export(report)
