"""The commands with multi-label files: each class is a yes-or-no question."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from refocal import cli, sigmoid_posterior
from refocal.calibrators import MultilabelCalibrator, TemperatureScaling, load
from refocal.predictions import ColumnChoice, Predictions
from tables import write_table

ROWS = 200
NAMES = ("cat", "dog")
TASK = "task: multi-label, each class is a yes-or-no question"
SIGMOID = ("--loss", "sigmoid-focal", "--gamma", "2", "--alpha", ".25")


def draw(seed=0, rows=ROWS):
    """Log-odds of two classes, the second of which is overconfident, and labels."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((rows, 2))
    labels = rng.random((rows, 2)) < 1 / (1 + np.exp(-logits))
    return logits * [1, 4], labels.astype(int)


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


def write(path, seed=0, **more):
    """Write a file: npz, or columns of labels in another order than those of scores."""
    logits, labels = draw(seed)
    if str(path).endswith(".npz"):
        np.savez(path, logits=logits, labels=labels, class_names=np.array(NAMES), **more)
        return
    columns = {"id": [f"{row:04d}" for row in range(ROWS)], **more}
    columns |= {f"label_{name}": labels[:, k].tolist() for k, name in reversed([*enumerate(NAMES)])}
    columns |= {f"prob_{name}": sigmoid(logits[:, k]).tolist() for k, name in enumerate(NAMES)}
    write_table(path, columns)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *arguments):
    status = cli.main([str(argument) for argument in arguments])
    shown, said = capsys.readouterr()
    assert status == 0, said
    return shown, said


def reject(capsys, message, *arguments):
    assert cli.main([str(argument) for argument in arguments]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert message in said


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_evaluate_recognizes_the_task_and_says_so(suffix, capsys):
    write(f"a.{suffix}")
    shown, said = run(capsys, "evaluate", f"a.{suffix}", "--json", "--report", "a.json")
    columns = "label columns: label_cat, label_dog; not used: id; "
    assert said == f"refocal: a.{suffix}: {'' if suffix == 'npz' else columns}{TASK}\n"
    report = json.loads(shown)
    assert (report["task"], report["class_names"], report["samples"]) == ("multilabel", list(NAMES), ROWS)
    assert "cannot be trusted: dog" in report["verdict"]["sentences"][0]
    saved = json.loads(Path("a.json").read_text(encoding="utf-8"))
    assert saved["settings"]["command"] == f"refocal evaluate a.{suffix} --json --report a.json"


def test_evaluate_each_split(capsys):
    write("a.csv", split=["val", "test"] * (ROWS // 2))
    chosen = ("--label", "label_*", "--prob", "prob_*", "--ignore", "id")
    shown, said = run(capsys, "evaluate", "a.csv", *chosen)
    assert said == f"refocal: a.csv: {TASK}\n"
    assert [f"a.csv: {split}: 100 samples, 2 classes (multi-label)" in shown for split in ("val", "test")] == [True] * 2
    reject(capsys, "--report takes one split, got a.csv: test, a.csv: val", "evaluate", "a.csv", "--report", "a.html")


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_calibrate_and_apply(suffix, capsys):
    write(f"val.{suffix}", 1)
    write(f"test.{suffix}", 2)
    outputs = ("--save", "cal.json", "--out", f"out.{suffix}", "--report", "page.html")
    shown, _ = run(
        capsys, "calibrate", f"val.{suffix}", "--test", f"test.{suffix}", *SIGMOID, "--method", "posterior", *outputs
    )
    assert f"test.{suffix}: 200 samples, 2 classes (multi-label)" in shown
    assert "calibrator: cal.json" in shown
    assert "dog" in Path("page.html").read_text(encoding="utf-8")
    logits, labels = draw(2)
    expected = sigmoid_posterior(logits, gamma=2.0, alpha=0.25)
    _, said = run(capsys, "apply", "cal.json", f"test.{suffix}", "--out", f"applied.{suffix}")
    assert TASK not in said
    for name in (f"out.{suffix}", f"applied.{suffix}"):
        found = Predictions.read(name, columns=ColumnChoice(task="multilabel", ignore="id" if suffix == "csv" else ()))
        assert (found.task, found.class_names) == ("multilabel", NAMES)
        np.testing.assert_allclose(found.scores, expected, rtol=1e-6)
        np.testing.assert_array_equal(found.labels, labels)
    if suffix == "csv":
        lines = Path("applied.csv").read_text(encoding="utf-8").splitlines()
        assert lines[0] == "id,label_dog,label_cat,prob_cat,prob_dog"
        assert lines[-1].startswith('"0199",')


@pytest.mark.parametrize(
    ("more", "options", "rows", "protocol"),
    [
        ({}, (), 200, "Cross-fitting in 5 folds"),
        ({}, ("--holdout", "0.25"), 50, "Measured on 50 rows held out at random, 25% of all"),
        ({"split": np.array(["val", "test"])[np.arange(ROWS) % 2]}, (), 100, ""),
    ],
)
def test_one_file(more, options, rows, protocol, capsys):
    write("both.npz", **more)
    shown, _ = run(capsys, "calibrate", "both.npz", "--method", "temperature", *options, "--out", "out.npz", "--json")
    report = json.loads(shown)
    assert report["samples"] == rows
    assert protocol in report["protocol"]
    assert bool(protocol) == bool(report["protocol"])
    assert report["written"] == {"predictions": "out.npz"}
    found = Predictions.read("out.npz", columns=ColumnChoice(task="multilabel"))
    assert (len(found), found.input, found.task) == (rows, "probs", "multilabel")


@pytest.fixture
def calibrator():
    """A calibrator that halves the log-odds of cat, and divides those of dog by four."""
    parts = [TemperatureScaling().fit(*fitted_to(factor)) for factor in (2.0, 4.0)]
    for part, temperature in zip(parts, (2.0, 4.0), strict=True):
        part.temperature_ = temperature
    MultilabelCalibrator.join(parts, input="logits", classes=NAMES).save(Path("cal.json"))


def fitted_to(factor):
    logits = np.linspace(-3, 3, 40)
    return factor * logits[:, None], (logits + np.tile([-2, 2], 20) > 0).astype(int)


@pytest.mark.usefixtures("calibrator")
def test_apply_to_files_without_labels(capsys):
    logits, _ = draw()
    expected = sigmoid(logits / [2, 4])
    np.savez("new.npz", logits=logits)
    run(capsys, "apply", "cal.json", "new.npz", "--out", "out.npz")
    np.testing.assert_allclose(np.load("out.npz")["probs"], expected)
    backwards = {"id": list(range(ROWS)), "logit_dog": logits[:, 1].tolist(), "logit_cat": logits[:, 0].tolist()}
    for number in range(2):
        write_table(f"{number}.csv", backwards)
    run(capsys, "apply", "cal.json", "0.csv", "1.csv", "--out", "folder")
    for number in range(2):
        with open(f"folder/{number}.csv", encoding="utf-8") as file:
            found = list(csv.DictReader(file))
        np.testing.assert_allclose([[float(row["prob_cat"]), float(row["prob_dog"])] for row in found], expected)
        assert [row["id"] for row in found] == [str(row) for row in range(ROWS)]


@pytest.mark.usefixtures("calibrator")
def test_apply_rejects_other_classes_and_tasks(capsys):
    write("val.npz")
    message = "the calibrator is for multi-label scores, got --task multiclass: leave --task out, or use another"
    reject(capsys, message, "apply", "cal.json", "val.npz", "--out", "out.npz", "--task", "multiclass")
    named = ("apply", "cal.json", "val.npz", "--out", "out.npz", "--classes", "cat,dog")
    message = "the calibrator is for multi-label scores, whose columns name the classes: leave --classes out"
    reject(capsys, message, *named)
    message = "--classes does not work with multi-label predictions, whose columns name the classes: leave it out"
    reject(capsys, message, *named, "--task", "multilabel")
    write_table("other.csv", {"logit_cat": [0.5, 1.5], "logit_cow": [2.5, -3.5]})
    message = "other.csv has scores of cat, cow, but the calibrator was fitted to cat, dog: name the columns alike"
    reject(capsys, message, "apply", "cal.json", "other.csv", "--out", "out.csv")
    np.savez("three.npz", logits=np.zeros((2, 3)))
    reject(capsys, "three.npz has 3 columns of scores", "apply", "cal.json", "three.npz", "--out", "out.npz")
    TemperatureScaling().fit(*fitted_to(2.0)).save(Path("one.json"))
    message = "the calibrator is for one class per row, got --task multilabel"
    reject(capsys, message, "apply", "one.json", "val.npz", "--out", "out.npz", "--task", "multilabel")


TASKS = [(), ("--task", "multilabel")]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evaluate a.csv --slice id", "--slice does not work with multi-label predictions: leave it out, or name the"),
        ("calibrate a.csv --slice id", "--slice does not work with multi-label predictions: leave it out, or name the"),
        ("evaluate a.csv --classes cat,dog", "--classes does not work with multi-label predictions, whose columns"),
        ("calibrate a.csv --classes cat,dog", "--classes does not work with multi-label predictions, whose columns"),
        ("calibrate a.csv --costs costs.json", "--costs does not work with multi-label predictions: leave it out"),
        ("evaluate a.csv --memory 1K", "multi-label predictions must be in memory, but a.csv would take about"),
        ("calibrate a.csv --memory 1K", "more than --memory 1.0K: raise it, or give fewer rows or classes"),
        ("calibrate a.csv --loss focal --gamma 2", "--loss focal is about a softmax, but each class of multi-label"),
        (
            "calibrate a.csv --gamma 2",
            "--gamma alone is about a softmax, but each class of multi-label",
        ),
        ('calibrate a.csv --loss {"gamma":2}', "own sigmoid: use --loss sigmoid-focal with --gamma and --alpha"),
        ("calibrate a.csv --loss sigmoid-focal --gamma 2", "--loss sigmoid-focal needs --gamma and --alpha"),
    ],
)
def test_what_does_not_work_is_rejected_before_any_work(words, message, task, capsys, monkeypatch):
    write("a.csv")
    Path("costs.json").write_text("[[0, 1], [1, 0]]", encoding="utf-8")
    monkeypatch.setattr("refocal.predictions.reader.check_blocks", lambda *_, **__: map(pytest.fail, ["a row is read"]))
    reject(capsys, message, *words.split(), *task)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("command", ["evaluate", "calibrate"])
def test_engines_are_rejected_before_they_start(command, task, capsys, monkeypatch):
    write("a.npz", split=np.array(["val", "test"])[np.arange(ROWS) % 2])
    monkeypatch.setattr("refocal.scale.engines.LocalEngine", lambda _: pytest.fail("an engine starts"))
    message = (
        "--engine does not work with multi-label predictions" if task else "a.npz is multi-label, which is not read"
    )
    reject(capsys, message, command, "a.npz", "--engine", "local", *task)


def test_classes_of_val_and_test_are_matched_by_name(capsys):
    write("val.npz", 1)
    logits, labels = draw(2)
    words = ("calibrate", "val.npz", "--test", "test.npz", "--method", "posterior", *SIGMOID, "--json")
    found = []
    for order in ([0, 1], [1, 0]):
        names = np.array(NAMES)[order]
        np.savez("test.npz", logits=logits[:, order], labels=labels[:, order], class_names=names)
        shown, _ = run(capsys, *words, "--out", "out.npz", "--force")
        found.append([json.loads(shown)[name] for name in ("class_names", "reports")])
        expected = sigmoid_posterior(logits, gamma=2.0, alpha=0.25)
        np.testing.assert_allclose(np.load("out.npz")["probs"], expected)
        assert np.load("out.npz")["class_names"].tolist() == list(NAMES)
    assert found[0] == found[1]
    np.savez("test.npz", logits=logits, labels=labels, class_names=np.array(["cat", "cow"]))
    message = "val.npz and test.npz must have the same classes, got cat, dog and cat, cow: name the columns alike"
    reject(capsys, message, *words)


def test_files_of_different_tasks_are_rejected(capsys):
    write("a.npz")
    logits, labels = draw()
    np.savez("b.npz", logits=logits, labels=labels[:, 0])
    message = "a.npz is multi-label, but b.npz is not: choose with --task"
    reject(capsys, message, "evaluate", "a.npz", "b.npz")
    reject(capsys, message, "calibrate", "a.npz", "--test", "b.npz")


def test_odd_files(capsys):
    logits, labels = draw()
    for name, content, message in (
        ("two.npz", {"logits": logits, "labels": 2 * labels}, "labels, class 0, row 0: must be 0 or 1, got 2"),
        ("nan.npz", {"logits": logits, "labels": np.where(labels, np.nan, 0)}, "must be 0 or 1, got nan"),
        ("wide.npz", {"logits": logits, "labels": labels[:, [0, 1, 0]]}, "labels: must have shape (200, 2) like the"),
        ("empty.npz", {"logits": logits[:0], "labels": labels[:0]}, "there are no rows"),
    ):
        np.savez(name, **content)
        reject(capsys, message, "evaluate", name)
    write_table("empty.csv", {"label_cat": [], "label_dog": [], "prob_cat": [], "prob_dog": []})
    reject(capsys, "there are no rows", "evaluate", "empty.csv")
    write_table("lost.csv", {"label_cat": [0], "label_cow": [1], "prob_cat": [0.5], "prob_dog": [0.5]})
    message = "labels and scores must have the same classes, got labels of cat, cow and scores of cat, dog: name each"
    reject(capsys, message, "evaluate", "lost.csv")


def test_one_class_and_a_class_that_never_occurs(capsys):
    logits, labels = draw()
    write_table("one.csv", {"label_cat": labels[:, 0].tolist(), "logit_cat": logits[:, 0].tolist()})
    shown, _ = run(capsys, "evaluate", "one.csv", "--task", "multilabel")
    assert "one.csv: 200 samples, 1 class" in shown
    np.savez("never.npz", logits=logits, labels=labels * [1, 0])
    shown, _ = run(capsys, "calibrate", "never.npz", "--method", "temperature", "--save", "never.json")
    assert load("never.json").predict_proba(logits).shape == (ROWS, 2)


def test_one_hot_labels(capsys):
    logits, labels = draw()
    probs = sigmoid(logits[:, :1])
    np.savez("hot.npz", probs=np.hstack([1 - probs, probs]), labels=np.eye(2)[labels[:, 0]])
    _, said = run(capsys, "evaluate", "hot.npz", "--json")
    assert said.startswith(
        f"refocal: hot.npz: {TASK}; but each row has one label, as if only one class could be true: "
    )
    assert said.endswith("choose with --task multiclass, in Python ColumnChoice(task='multiclass')\n")
    shown, said = run(capsys, "evaluate", "hot.npz", "--task", "multiclass", "--json")
    np.savez("plain.npz", probs=np.hstack([1 - probs, probs]), labels=labels[:, 0])
    plain, _ = run(capsys, "evaluate", "plain.npz", "--json")
    assert said == ""
    assert json.loads(shown)["methods"] == json.loads(plain)["methods"]


def test_several_small_files_are_one_data_set(capsys):
    for seed in range(2):
        write(f"part-{seed}.npz", seed)
    shown, said = run(capsys, "evaluate", "part-*.npz", "--json")
    assert json.loads(shown)["samples"] == 2 * ROWS
    assert TASK in said
