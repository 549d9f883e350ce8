"""How to apply the result, and the settings that made the page."""

from __future__ import annotations

import dataclasses
import html
import re
import shlex

import numpy as np
import pytest

import refocal
from refocal.cli import main
from refocal.report.apply_box import build_apply_box, build_settings


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    logits = 4 * rng.standard_normal((600, 3))
    return logits, np.argmax(logits / 3 + rng.gumbel(size=logits.shape), axis=1)


@pytest.fixture(scope="module")
def fitted(data):
    return refocal.calibrate(*data, gamma=2.0, label_smoothing=0.1, weight=[1, 2, 3], method="temperature").report(
        *data, source="new scores.csv"
    )


def read_boxes(report):
    found = re.findall(r"<h3>(.*?)</h3><pre tabindex='0'><code>(.*?)</code>", build_apply_box(report), flags=re.S)
    return {title: html.unescape(code) for title, code in found}


def test_python_lines_run_as_they_stand(data, fitted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"report": fitted, "scores": data[0]}
    exec(read_boxes(fitted)["Python"], names)
    np.testing.assert_array_equal(names["probs"], fitted.calibrator.predict_proba(data[0]))


def test_onnx_lines_run_as_they_stand(data, fitted, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    fitted.calibrator.save("cal.json")
    code = read_boxes(fitted)["ONNX"]
    assert main(shlex.split(code.splitlines()[0])[2:]) == 0
    names = {"scores": data[0]}
    exec(code, names)
    np.testing.assert_allclose(names["probs"], fitted.calibrator.predict_proba(data[0]), rtol=1e-4, atol=1e-6)


def test_command_lines_run_as_they_stand(data, fitted, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    fitted.calibrator.save("cal.json")
    refocal.predictions.Predictions(data[0], input="logits", labels=data[1]).write("new.csv")
    command = read_boxes(fitted)["Command line"]
    assert main(shlex.split(command.replace("\\\n", " "))[1:]) == 0
    assert (tmp_path / "calibrated.csv").exists()


def test_a_command_is_repeated_with_save_unless_it_saved(fitted):
    made = {**fitted.settings, "command": "refocal calibrate val.npz"}
    first = read_boxes(dataclasses.replace(fitted, settings=made))["Command line"].splitlines()
    assert first[:2] == ["refocal calibrate val.npz \\", "  --force --save cal.json"]
    saved = read_boxes(dataclasses.replace(fitted, settings={**made, "calibrator": "my cal.json"}))
    assert saved["Command line"].startswith("refocal apply 'my cal.json' new.csv")
    assert "save" not in saved["Python"]
    assert "'my cal.onnx'" in saved["ONNX"]


def test_without_a_fit_the_box_says_how_to_fit(data):
    boxes = read_boxes(refocal.evaluate(*data))
    assert boxes["Command line"].startswith("refocal calibrate val.npz --test test.npz")
    assert "refocal.calibrate(val_scores, val_labels)" in boxes["Python"]


@pytest.mark.parametrize(("input", "words"), [("logits", "softmax of the scores"), ("probs", "probabilities as given")])
def test_scores_recommended_as_given_need_nothing(fitted, input, words):
    kept = tuple(dataclasses.replace(method, chosen=method.given) for method in fitted.methods)
    text = build_apply_box(dataclasses.replace(fitted, methods=kept, settings={"input": input}))
    assert "Nothing has to be applied." in text
    assert words in text


def test_settings_list_what_made_the_report(fitted):
    shown = dict(re.findall(r"<dt>(.*?)</dt><dd><bdi>(.*?)</bdi></dd>", build_settings(fitted)))
    assert shown.pop("Versions").startswith("refocal ")
    assert shown == {
        "Data": "new scores.csv, 600 samples, 3 classes",
        "Scores": "logits",
        "Confidence level": "0.95",
        "Resamples": "1,000",
        "Seed of the resamples": "0",
        "Method asked for": "temperature",
        "γ of the training loss": "2",
        "Class weights of the training loss": "1, 2, 3",
        "Label smoothing of the training loss": "0.1",
        "Samples fitted to": "600",
    }


def test_long_lists_are_cut(fitted):
    text = build_settings(dataclasses.replace(fitted, settings={"class_weights": [1.5] * 1000}))
    assert "1.5, … (1,000 values)" in text


def test_the_command_is_recorded(tmp_path, monkeypatch, capsys, data):
    monkeypatch.chdir(tmp_path)
    refocal.predictions.Predictions(data[0], input="logits", labels=data[1]).write("val.npz")
    assert main(["calibrate", "val.npz", "--method", "temperature", "--save", "c.json", "--report", "r.html"]) == 0
    assert main(["evaluate", "val.npz", "--report", "e.html"]) == 0
    capsys.readouterr()
    assert "refocal calibrate val.npz --method temperature --save c.json --report r.html" in (
        tmp_path / "r.html"
    ).read_text(encoding="utf-8")
    assert "refocal evaluate val.npz --report e.html" in (tmp_path / "e.html").read_text(encoding="utf-8")
