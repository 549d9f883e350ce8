"""How to apply the result, and the settings that made the page."""

from __future__ import annotations

import dataclasses
import html
import re
import shlex

import numpy as np
import pytest
from scipy.special import expit, softmax

import refocal
from refocal.calibrators.conversion import scores_to_probs
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
    return find_boxes(build_apply_box(report))


def find_boxes(page):
    found = re.findall(r"<h3>(.*?)</h3><pre tabindex='0'><code>(.*?)</code>", page, flags=re.S)
    return {title: html.unescape(code) for title, code in found}


def as_given(data):
    """Logits (N, 3), logits (N,), probabilities (N, 3) and probabilities (N,), with labels."""
    logits, labels = data
    odds = logits[:, 1] - logits[:, 0]
    two = (labels == 1).astype(int)
    return {
        "logits": (logits, labels, None),
        "one column of logits": (odds, two, None),
        "probabilities": (softmax(logits, axis=1), labels, "probs"),
        "one column of probabilities": (expit(odds / 4), two, "probs"),  # not so close to 1 that float32 rounds
    }


KINDS = ("logits", "one column of logits", "probabilities", "one column of probabilities")


@pytest.fixture(scope="module", params=KINDS)
def case(request, data):
    scores, labels, input = as_given(data)[request.param]
    method = "temperature" if labels.max() > 1 else "platt"
    report = refocal.calibrate(scores, labels, input=input, method=method).report(scores, labels, source="new.csv")
    return scores, report


def test_python_lines_run_as_they_stand(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scores, report = case
    names = {"report": report, "scores": scores}
    exec(read_boxes(report)["Python"], names)
    np.testing.assert_array_equal(names["probs"], report.calibrator.predict_proba(scores))


def test_onnx_lines_run_as_they_stand(case, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    scores, report = case
    report.calibrator.save("cal.json")
    code = read_boxes(report)["ONNX"]
    assert main(shlex.split(code.splitlines()[0])[2:]) == 0
    names = {"scores": scores}
    exec(code, names)
    np.testing.assert_allclose(names["probs"], report.calibrator.predict_proba(scores), rtol=1e-3, atol=1e-5)


def run_lines(command):
    """Run the commands of a box, each of which may have several lines."""
    for line in command.replace("\\\n", " ").splitlines():
        assert main(shlex.split(line)[1:]) == 0


def test_command_lines_run_as_they_stand(case, tmp_path, monkeypatch, capsys):
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    scores, report = case
    report.calibrator.save("cal.json")
    refocal.predictions.Predictions(scores, input=report.settings["input"]).write("new.csv")
    run_lines(read_boxes(report)["Command line"])
    assert (tmp_path / "calibrated.csv").exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.thorough
def test_lines_that_fit_run_as_they_stand(data, kind, tmp_path, monkeypatch, capsys):
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    scores, labels, input = as_given([each[:150] for each in data])[kind]
    report = refocal.evaluate(scores, labels, input=input, by_class=False, source="test.csv")
    boxes = read_boxes(report)
    for name in ("val.csv", "test.csv"):
        refocal.predictions.Predictions(scores, input=report.settings["input"], labels=labels).write(name)
    run_lines(boxes["Command line"])
    assert (tmp_path / "cal.json").exists()
    given = {
        f"{name}_{what}": value
        for name in ("val", "test", "new")
        for what, value in zip(("scores", "labels"), (scores, labels), strict=True)
    }
    exec(boxes["Python"], given)
    assert given["probs"].shape == (len(labels), labels.max() + 1)


def test_boxes_repeat_the_columns_that_the_command_named(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(f"{'yes' if i % 3 else 'no'},{0.2 + 0.6 * (i % 2)},{i}" for i in range(60))
    for name in ("val.csv", "test.csv", "new.csv"):
        (tmp_path / name).write_text(f"left?,my score,id\n{rows}", encoding="utf-8")
    named = ["--label", "left?", "--prob", "my score", "--ignore", "id"]
    assert main(["evaluate", "test.csv", *named, "--report", "e.html"]) == 0
    command = find_boxes((tmp_path / "e.html").read_text(encoding="utf-8"))["Command line"]
    assert command.endswith("--label 'left?' --prob 'my score' --ignore id")
    run_lines(command.replace("--save", "--method temperature --save"))
    assert main(["calibrate", "val.csv", *named, "--method", "platt", "--report", "c.html", "--save", "cal2.json"]) == 0
    command = find_boxes((tmp_path / "c.html").read_text(encoding="utf-8"))["Command line"]
    run_lines(command)
    assert (tmp_path / "calibrated.csv").exists()


@pytest.mark.thorough
def test_a_command_is_repeated_with_save_unless_it_saved(fitted):
    made = {**fitted.settings, "command": "refocal calibrate val.npz"}
    first = read_boxes(dataclasses.replace(fitted, settings=made))["Command line"].splitlines()
    assert first[:2] == ["refocal calibrate val.npz \\", "  --force --save cal.json"]
    forced = {**made, "command": "refocal calibrate val.npz --report 'a b.html' --force"}
    again = read_boxes(dataclasses.replace(fitted, settings=forced))["Command line"].splitlines()
    assert again[:2] == ["refocal calibrate val.npz --report 'a b.html' --force \\", "  --save cal.json"]
    saved = read_boxes(dataclasses.replace(fitted, settings={**made, "calibrator": "my cal.json"}))
    assert saved["Command line"].startswith("refocal apply 'my cal.json' new.csv")
    assert "save" not in saved["Python"]
    assert "report." not in read_boxes(dataclasses.replace(fitted, settings=made))["Python"]
    assert "'my cal.onnx'" in saved["ONNX"]


def test_without_a_fit_the_box_says_how_to_fit(data):
    boxes = read_boxes(refocal.evaluate(*data))
    assert boxes["Command line"].startswith("refocal calibrate val.npz \\\n  --test test.npz")
    assert "refocal.calibrate(val_scores, val_labels)" in boxes["Python"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (KINDS[0], "the softmax of the scores"),
        (KINDS[1], "the sigmoid of the scores"),
        (KINDS[2], "the probabilities as given"),
        (KINDS[3], "the probabilities as given"),
    ],
)
def test_scores_recommended_as_given_need_nothing(data, fitted, kind, words):
    scores, labels, input = as_given(data)[kind]
    given = refocal.evaluate(scores, labels, input=input, by_class=False)
    kept = tuple(dataclasses.replace(method, chosen=method.given) for method in fitted.methods)
    report = dataclasses.replace(fitted, methods=kept, settings=given.settings)
    text = build_apply_box(report)
    assert "Nothing has to be applied." in text
    assert words in text
    if input is None:
        names = {"scores": scores}
        exec(read_boxes(report)["Python"], names)
        probs = names["probs"] if scores.ndim > 1 else np.stack([1 - names["probs"], names["probs"]], axis=1)
        np.testing.assert_allclose(probs, scores_to_probs(scores, input="logits"))


def test_settings_list_what_made_the_report(fitted):
    shown = dict(re.findall(r"<dt>(.*?)</dt><dd><bdi>(.*?)</bdi></dd>", build_settings(fitted)))
    assert shown.pop("Versions").startswith("refocal ")
    assert shown == {
        "Data": "new scores.csv, 600 samples, 3 classes",
        "Scores": "logits",
        "Columns of scores": "3",
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


@pytest.mark.thorough
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
