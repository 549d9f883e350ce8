"""The command line: every command, its files, its errors and its exit status."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import refocal
from few_digits import load_few_digits
from help_texts import check_defaults, find_default, heavy_modules, list_parsers
from refocal import cli, report
from refocal.calibrators import load
from refocal.cli import explain
from refocal.cli.defaults import read_default
from refocal.cli.parser import build_parser
from refocal.predictions import Predictions
from refocal.scale.file_names import name_files

SIGMOID = ("--loss", "sigmoid-focal", "--gamma", "2")


@pytest.fixture(scope="module")
def data():
    return load_few_digits()


@pytest.fixture
def files(data, tmp_path, monkeypatch):
    """val.npz, test.npz and both.npz in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    for split in ("val", "test"):
        data.select(split).write(f"{split}.npz")
    data.write("both.npz")
    return tmp_path


def run(capsys, *arguments):
    """The exit status, the standard output and the standard error."""
    status = cli.main([str(argument) for argument in arguments])
    return status, *capsys.readouterr()


def test_evaluate_one_file(files, capsys):
    status, shown, _ = run(capsys, "evaluate", "test.npz")
    assert status == 0
    assert "underconfident" in shown
    status, shown, _ = run(capsys, "evaluate", "test.npz", "--json", "--report", "page.html")
    content = json.loads(shown)
    assert content["methods"][0]["measures"]["ece"]["value"] == pytest.approx(
        refocal.evaluate(Predictions.read("test.npz").scores, Predictions.read("test.npz").labels)
        .given.measures["ece"]
        .value
    )
    assert "<html" in Path("page.html").read_text(encoding="utf-8")
    assert "classwise_ece" in content["methods"][0]["measures"]
    shown = run(capsys, "evaluate", "test.npz", "--json")[1]  # the measures of the table
    assert "classwise_ece" not in json.loads(shown)["methods"][0]["measures"]
    assert run(capsys, "evaluate", "both.npz", "--split", "test", "--json")[1] == shown.replace("test.npz", "both.npz")


def test_evaluate_files_side_by_side(files, capsys):
    test = Predictions.read("test.npz")
    Predictions(test.scores.astype(np.float64) * 2, input="logits", labels=test.labels).write("sharper.npz")
    status, shown, _ = run(capsys, "evaluate", "test.npz", "sharper.npz")
    assert status == 0
    assert "differs from the first" in shown
    content = json.loads(run(capsys, "evaluate", "test.npz", "sharper.npz", "--json")[1])
    assert [test["measure"] for test in content["paired"]] == ["nll", "ece"]
    assert all(test["p_value"] < 0.01 for test in content["paired"])
    status, _, trouble = run(capsys, "evaluate", "test.npz", "val.npz")
    assert status == 1
    assert "same samples" in trouble


def test_evaluate_block_by_block(files, capsys):
    """The rows fit in memory, whatever --memory says: the analysis is the same."""
    little = ("--json", "--memory", "10K")
    _, shown, told = run(capsys, "evaluate", "both.npz", "--split", "test", *little)
    assert json.loads(shown) == json.loads(run(capsys, "evaluate", "both.npz", "--split", "test", "--json")[1])
    assert "refocal: reading block by block: both.npz would take about" in told
    assert "more than --memory 10.0K" in told
    log_odds = np.linspace(-4, 4, 300)
    labels = (np.sin(37 * log_odds) + log_odds > 0).astype(int)
    Predictions(log_odds, input="logits", labels=labels).write("two.npz")
    content = json.loads(run(capsys, "evaluate", "two.npz", *little, "--report", "x.html")[1])
    for name, measured in refocal.evaluate(log_odds, labels).given.measures.items():
        assert content["methods"][0]["measures"][name]["value"] == pytest.approx(measured.value), name
    assert "<html" in Path("x.html").read_text(encoding="utf-8")
    arguments = ("calibrate", "both.npz", "--gamma", 3, "--method", "vector")
    _, shown, told = run(capsys, *arguments, *little)
    assert strip_seconds(shown) == strip_seconds(run(capsys, *arguments, "--json")[1])
    assert "refocal: reading block by block: both.npz would take about" in told
    told = run(capsys, *arguments, "--out", "x.npz", *little)[2]
    assert "--out needs all rows in memory, but both.npz would take about" in told


def strip_seconds(shown):
    """The JSON of a report without what differs from run to run."""
    content = json.loads(shown)
    del content["settings"]["command"]
    for method in content["methods"]:
        del method["fit_seconds"]
    return content


def test_evaluate_each_split_of_a_file(files, capsys):
    status, shown, _ = run(capsys, "evaluate", "both.npz")
    assert status == 0
    assert re.search(r"both.npz: test ┃ *both.npz: val", shown)
    content = json.loads(run(capsys, "evaluate", "both.npz", "--json")[1])
    assert content["paired"] == []
    for report_of_split, split in zip(content["files"], ("test", "val"), strict=True):
        alone = json.loads(run(capsys, "evaluate", f"{split}.npz", "--json")[1])
        assert {**report_of_split, "source": ""} == {**alone, "source": ""}
        assert report_of_split["source"] == f"both.npz: {split}"
    in_blocks = json.loads(run(capsys, "evaluate", "both.npz", "--json", "--engine", "local")[1])
    assert in_blocks == content
    for more in ([], ["--engine", "local"]):
        told = run(capsys, "evaluate", "both.npz", "--report", "x.html", *more)[2]
        assert "--report takes one split, got both.npz: test, both.npz: val: choose one with --split" in told


def test_splits_of_two_files_are_compared_in_pairs(files, capsys):
    both = Predictions.read("both.npz")
    Predictions(2 * both.scores.astype(float), input="logits", labels=both.labels, split=both.split).write(
        "sharper.npz"
    )
    content = json.loads(run(capsys, "evaluate", "both.npz", "sharper.npz", "--json")[1])
    assert [(test["first"], test["second"]) for test in content["paired"]] == [(0, 2), (0, 2), (1, 3), (1, 3)]
    shown = run(capsys, "evaluate", "both.npz", "sharper.npz")[1]
    row = next(line for line in shown.splitlines() if "NLL" in line and "p-value" not in line)
    assert row.count("│") == 6
    many = Predictions(both.scores[:50], input="logits", labels=both.labels[:50], split=[f"s{i}" for i in range(50)])
    many.write("many.npz")
    told = run(capsys, "evaluate", "many.npz")[2]
    assert "many.npz has 50 splits, more than 20: choose one with --split" in told


def test_compared_files_have_the_shortest_distinct_names(files, capsys):
    for name in ("a", "b"):
        Path("runs", name).mkdir(parents=True)
        shutil.copy("test.npz", f"runs/{name}/test.npz")
    shutil.copy("test.npz", "runs/b/other.npz")
    given = ("runs/a/test.npz", "runs/b/test.npz", "runs/b/other.npz")
    content = json.loads(run(capsys, "evaluate", *given, "--json")[1])
    assert [each["source"] for each in content["files"]] == ["a/test.npz", "b/test.npz", "other.npz"]
    assert name_files(["test.npz", "./test.npz"]) == ["test.npz"] * 2


def test_calibrate_then_apply_and_export(files, capsys):
    arguments = ["calibrate", "val.npz", "--test", "test.npz", "--gamma", 3]
    status, shown, _ = run(capsys, *arguments, "--save", "cal.json", "--out", "probs.npz", "--report", "report.html")
    assert status == 0
    assert "underconfident" in shown
    assert "γ = 3" in shown
    assert "report: report.html" in shown
    probs = Predictions.read("probs.npz")
    assert probs.input == "probs"
    assert np.array_equal(probs.labels, Predictions.read("test.npz").labels)
    assert probs.class_names == Predictions.read("test.npz").class_names

    assert run(capsys, "apply", "cal.json", "test.npz", "--out", "again.npz")[0] == 0
    np.testing.assert_array_equal(Predictions.read("again.npz").scores, probs.scores)
    assert json.loads(run(capsys, "apply", "cal.json", "test.npz", "--out", "again.csv", "--json")[1]) == {
        "rows": len(probs),
        "out": "again.csv",
    }
    np.testing.assert_allclose(Predictions.read("again.csv").scores, probs.scores, rtol=1e-12)

    assert run(capsys, "export", "cal.json", "--onnx", "head.onnx")[0] == 0
    runtime = pytest.importorskip("onnxruntime").InferenceSession("head.onnx")
    logits = Predictions.read("test.npz").scores.astype(np.float32)
    np.testing.assert_allclose(runtime.run(None, {"logits": logits})[0], probs.scores, atol=1e-6)


def test_splits_of_one_file_and_methods(files, capsys):
    content = json.loads(run(capsys, "calibrate", "both.npz", "--method", "focal-temperature", "--json")[1])
    chosen = next(method for method in content["methods"] if method["chosen"])
    fitted = refocal.calibrate(
        Predictions.read("val.npz").scores, Predictions.read("val.npz").labels, method="focal-temperature"
    )
    assert chosen["parameters"] == pytest.approx(fitted.chosen.parameters)
    settings = json.dumps({"gamma": 3, "label_smoothing": 0.05})
    Path("loss.json").write_text(settings, encoding="utf-8")
    for loss in (settings, "loss.json"):
        content = json.loads(run(capsys, "calibrate", "both.npz", "--loss", loss, "--method", "posterior", "--json")[1])
        assert next(method for method in content["methods"] if method["chosen"])["name"] == "posterior"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrate", "thirds.npz"], "thirds.npz must have rows of the splits val and test, .* got 'a', 'b'"),
        (["calibrate", "unlabeled.npz"], "unlabeled.npz has no labels"),
        (["calibrate", "masked.npz"], "masked.npz, logits, row 0: must be finite"),
        (["calibrate", "none.npz", "--holdout", "1.5"], "--holdout must lie strictly between 0 and 1, got 1.5"),
        (["calibrate", "none.npz", "--holdout", "1"], "--holdout must lie strictly between 0 and 1, got 1.0"),
        (["calibrate", "none.npz", "--holdout", "0"], "--holdout must lie strictly between 0 and 1, got 0.0"),
        (["calibrate", "none.npz", "--holdout", "nan"], "--holdout must lie strictly between 0 and 1, got nan"),
        (["calibrate", "none.npz", "--test", "test.npz", "--holdout", "0.3"], "--holdout is only for"),
        (["calibrate", "none.npz", "--seed", "-1"], "--seed must be at least 0, got -1"),
        (["evaluate", "none.npz", "--seed", "-1"], "--seed must be at least 0, got -1"),
        (["calibrate", "both.npz", "--holdout", "0.3"], "--holdout is only for predictions without --test and without"),
        (["calibrate", "test.npz", "--test", "test.npz"], "there are no rows of 'val'; the splits are 'test'"),
        (["calibrate", "none.npz", "--method", "magic"], "--method must be one of"),
        (["calibrate", "both.npz", "--method", "posterior"], "needs gamma"),
        (["calibrate", "both.npz", "--loss", "{"], "--loss must be .*JSON"),
        (
            ["calibrate", "both.npz", "--loss", '{"focus": 3}'],
            "--loss must be an object with gamma and, optionally, detached, label_smoothing, weight, got {'focus': 3}",
        ),
        (["calibrate", "both.npz", "--loss", '{"gamma": null}'], "--loss must be an object with gamma"),
        (["calibrate", "both.npz", "--loss", '{"gamma": 3, "detached": "no"}'], "detached .* must be true or false"),
        (["calibrate", "both.npz", "--loss", "val.npz"], "--loss must be .*JSON .* got 'val.npz'"),
        (["calibrate", "both.npz", "--loss", ""], "--loss must be .*JSON .* got ''"),
        (
            ["calibrate", "none.npz", "--loss", "foo"],
            'must be focal, sigmoid-focal, JSON such as {"gamma": 3}, or a file .* got .foo.* did you mean focal\\?',
        ),
        (["calibrate", "none.npz", "--loss", "Sigmoid_Focal"], "no such file: did you mean sigmoid-focal\\?"),
        (["calibrate", "none.npz", "--loss", "mse"], "got 'mse', and there is no such file$"),
        (["calibrate", "both.npz", "--gamma", "-2"], "gamma"),
        (["calibrate", "both.npz", "--loss", "focal"], "--loss focal needs --gamma"),
        (["calibrate", "both.npz", "--gamma", "3", "--alpha", "0.5"], "--alpha is only for --loss sigmoid-focal"),
        (
            ["calibrate", "both.npz", "--gamma", "3", "--loss", '{"gamma": 3}'],
            "give --gamma or --loss with JSON, not both",
        ),
        (["calibrate", "both.npz", "--loss", "sigmoid-focal", "--gamma", "2"], "needs --gamma and --alpha"),
        (["calibrate", "both.npz", *SIGMOID, "--alpha", "1"], "alpha must lie strictly between 0 and 1, got 1.0"),
        (["calibrate", "both.npz", *SIGMOID, "--alpha", ".25"], "sigmoid-focal is for scores of one column, .* got 4"),
        (["calibrate", "both.npz", *SIGMOID, "--alpha", ".25", "--engine", "local"], "is for scores of one column"),
        (["explain", *SIGMOID], "--loss sigmoid-focal needs --alpha"),
        (["explain", *SIGMOID, "--alpha", "0"], "alpha must lie strictly between 0 and 1, got 0"),
        (["explain", *SIGMOID, "--alpha", "0.5", "--classes", "3"], "--classes is not for --loss sigmoid-focal"),
        (["explain", "--gamma", "2", "--alpha", "0.5"], "--alpha is only for --loss sigmoid-focal"),
        (["evaluate", "none.npz"], "^refocal: none.npz: No such file"),
        (["evaluate", "test.npz", "--split", "train"], "no rows of 'train'; the splits are 'test'"),
        (["evaluate", "unlabeled.npz"], "no labels"),
        (
            ["apply", "test.npz", "cal.json", "--out", "x.npz"],
            r"test.npz is not a calibrator file \(.json\): name the calibrator first, then the predictions",
        ),
        (["apply", "cal.json", "probs.npz", "--out", "x.npz"], "takes logits, but probs.npz holds probs"),
        (["apply", "cal.json", "test.npz", "--out", "val.npz"], "val.npz exists"),
        (
            ["apply", "cal.json", "val.npz", "--out", "./val.npz", "--force"],
            "--out must not name another file of this command",
        ),
        (["export", "cal.json", "--onnx", "val.npz"], "--onnx must end in .onnx"),
        (["calibrate", "both.npz", "--save", "cal.json"], "cal.json exists"),
        (["calibrate", "both.npz", "--save", "new.json", "--report", "report.txt"], "must end in .html or .json"),
        (
            ["calibrate", "both.npz", "--save", "new.json", "--report", "new.json"],
            "--report must not name another file of this command",
        ),
        (["calibrate", "both.npz", "--save", "none/new.json"], "in a folder that exists"),
        (["evaluate", "test.npz", "--report", "folder.html", "--force"], "--report must be a file, got the folder"),
        (["calibrate", "both.npz", "--out", "both.npz", "--force"], "--out must not name another file of this command"),
        (["calibrate", "plain.npz", "--test", "plain.npz"], "both fitted to and measured on"),
        (["calibrate", "val.npz", "--test", "renamed.npz"], "same class names"),
        (["calibrate", "masked.npz", "--test", "plain.npz"], "masked.npz, logits, row 0: must be finite"),
        (["calibrate", "probs.npz", "--test", "few.npz"], "needs at least 10 samples, got 3"),
        (["calibrate", "same.npz", "--test", "plain.npz"], "labels must have two classes or more, got only class 3"),
        (["calibrate", "same.npz"], "labels must have two classes or more, got only class 3"),
        (["calibrate", "plain.npz", "--test", "probs.npz"], "must hold the same kind of scores"),
        (["apply", "cal.json", "two.npz", "--out", "x.npz"], "has 2 columns of scores, but the calibrator"),
        (["apply", "deep.json", "test.npz", "--out", "x.npz"], "deep.json .* it is nested too deeply"),
        (["evaluate", "few.npz", "heavy.npz"], "same weights"),
        (["evaluate", "few.npz", "plain.npz"], "labels differ; if they are parts of one data set, add --engine local"),
        (["evaluate", "[/x].npz"], r"\[/x\].npz"),
        (["explain", "--gamma", "1e308"], "gamma must be at most 1e.300, got 1e.308"),
        (["explain", "--gamma", "3", "--classes", "1"], "classes must be 2 to 100000"),
    ],
)
def test_errors_are_one_line(files, capsys, arguments, message):
    test = Predictions.read("test.npz")
    Predictions(test.scores, input="logits").write("unlabeled.npz")
    Predictions(test.scores[:50], input="logits", labels=np.full(50, 3)).write("same.npz")
    Predictions(np.full((3, 4), 0.25), input="probs", labels=[0, 1, 2]).write("probs.npz")
    Predictions(np.full((3, 4), 0.25), input="probs", labels=[0, 1, 2]).write("few.npz")
    Predictions(np.full((3, 4), 0.25), input="probs", labels=[0, 1, 2], sample_weight=[1, 2, 3]).write("heavy.npz")
    Predictions(test.scores, input="logits", labels=test.labels).write("plain.npz")
    names = tuple(reversed(test.class_names))
    Predictions(test.scores, input="logits", labels=test.labels, class_names=names).write("renamed.npz")
    masked = np.where(np.arange(4) == 3, -np.inf, test.scores)
    Predictions(masked, input="logits", labels=np.minimum(test.labels, 2)).write("masked.npz")
    Predictions(np.zeros((3, 2)), input="logits").write("two.npz")
    Predictions(np.eye(3), input="probs", labels=[0, 1, 2], split=["a", "b", "a"]).write("thirds.npz")
    Path("deep.json").write_text("[" * 100_000, encoding="utf-8")
    Path("folder.html").mkdir()
    refocal.calibrate(test.scores, test.labels, method="temperature").save("cal.json")
    before = sorted(os.listdir())
    status, shown, trouble = run(capsys, *arguments)
    assert status == 1
    assert not shown
    assert trouble.startswith("refocal: ")
    assert trouble.count("\n") == 1
    assert re.search(message, trouble)
    assert sorted(os.listdir()) == before


def test_force_replaces(files, capsys):
    Path("report.html").write_text("old", encoding="utf-8")
    assert run(capsys, "demo", "--report", "report.html")[0] == 1
    assert Path("report.html").read_text(encoding="utf-8") == "old"
    assert run(capsys, "evaluate", "test.npz", "--report", "report.html")[0] == 1
    assert Path("report.html").read_text(encoding="utf-8") == "old"
    assert run(capsys, "evaluate", "test.npz", "--report", "report.html", "--force")[0] == 0
    assert "<html" in Path("report.html").read_text(encoding="utf-8")


def test_names_are_not_markup(files, capsys):
    test = Predictions.read("test.npz")
    refocal.calibrate(test.scores, test.labels, method="temperature").save("cal.json")
    status, shown, _ = run(capsys, "apply", "cal.json", "test.npz", "--out", "[bold]o.npz")
    assert status == 0
    assert "[bold]o.npz" in shown
    assert Path("[bold]o.npz").exists()


def test_warnings_for_programmers_are_not_shown(files, capsys, monkeypatch, recwarn):
    def warns(*_):
        warnings.warn("a library will change", FutureWarning, stacklevel=1)

    monkeypatch.setattr(explain, "run", warns)
    assert run(capsys, "explain", "--gamma", "3") == (0, "", "")
    assert not recwarn.list


BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize("arguments", ["explain --gamma 3", "explain --gamma 3 --json", "--help"])
def test_a_closed_pipe_is_no_failure(arguments):
    command = f"{shlex.quote(sys.executable)} -m refocal {arguments} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, encoding="utf-8", check=False, env=BUFFERED
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
def test_an_output_that_cannot_be_written_is_one_line():
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "refocal", "explain", "--gamma", "3", "--json"]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, encoding="utf-8", check=False, env=BUFFERED
        )
    assert (done.returncode, done.stderr) == (1, "refocal: No space left on device\n")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_characters_that_the_terminal_lacks_are_spelled_out(files, monkeypatch, encoding):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    for arguments in (
        ["calibrate", "both.npz", "--loss", '{"gamma": 3}', "--method", "posterior"],
        ["explain", "--gamma", "2"],
    ):
        assert cli.main(arguments) == 0
    shown = written.getvalue().decode(encoding)
    assert "gamma = 3" in shown
    assert "<- recommended" in shown
    assert "ooo" in shown
    assert "?" not in shown


def test_test_rows_are_not_fitted_to(files, capsys):
    alone = json.loads(run(capsys, "calibrate", "both.npz", "--method", "temperature", "--json")[1])
    beside = json.loads(
        run(capsys, "calibrate", "both.npz", "--test", "both.npz", "--method", "temperature", "--json")[1]
    )
    for content in (alone, beside):
        del content["settings"]["command"]
        for method in content["methods"]:
            del method["fit_seconds"]
    assert alone == beside


def test_one_file_without_splits_is_cross_fitted(files, capsys):
    """val.npz has one split: there are no other rows to measure on."""
    some = ("--method", "temperature")
    status, shown, _ = run(capsys, "calibrate", "val.npz", *some, "--save", "cal.json", "--out", "probs.npz")
    val = Predictions.read("val.npz")
    assert status == 0
    assert "Cross-fitting in 5 folds" in shown
    found = report.cross_calibrate(val.scores, val.labels, method="temperature")
    np.testing.assert_array_equal(Predictions.read("probs.npz").scores, found.probs)
    assert load("cal.json").temperature_ == found.selection.chosen.calibrator.temperature_
    content = json.loads(run(capsys, "calibrate", "val.npz", *some, "--json")[1])
    assert content["samples"] == len(val)
    assert content["protocol"] == found.report.protocol
    other = json.loads(run(capsys, "calibrate", "val.npz", *some, "--seed", 1, "--json")[1])
    assert other["methods"][0]["measures"] == content["methods"][0]["measures"]
    assert other["methods"][1]["measures"] != content["methods"][1]["measures"]


def test_a_part_of_one_file_is_held_out(files, capsys):
    arguments = ("calibrate", "val.npz", "--method", "temperature", "--holdout", 0.3)
    status, shown, _ = run(capsys, *arguments, "--out", "probs.npz", "--report", "page.html")
    rows = len(Predictions.read("val.npz"))
    measured = round(0.3 * rows)
    assert status == 0
    assert f"Measured on {measured:,} rows held out at random, 30% of all (seed 0)" in shown
    assert "held out at random" in Path("page.html").read_text(encoding="utf-8")
    assert len(Predictions.read("probs.npz")) == measured
    assert json.loads(run(capsys, *arguments, "--json")[1])["samples"] == measured


def test_explain(capsys):
    content = json.loads(run(capsys, "explain", "--gamma", 3, "--json")[1])
    assert content["underconfident_above"] == pytest.approx(refocal.thresholds(3).tau_uc)
    at_80 = np.interp(0.8, content["scores"], content["posterior"])
    assert at_80 == pytest.approx(refocal.posterior(np.array([[0.8, 0.2]]), gamma=3)[0, 0], abs=1e-3)
    assert "cross-entropy" in run(capsys, "explain", "--gamma", 0)[1]
    assert "●" in run(capsys, "explain", "--gamma", 2, "--classes", 100)[1]


@pytest.mark.parametrize(("classes", "reachable"), [(11, False), (12, True)])
def test_explain_says_how_many_classes_overconfidence_takes(capsys, classes, reachable):
    assert (1 / classes < refocal.thresholds(3).tau_oc) is reachable
    shown = run(capsys, "explain", "--gamma", 3, "--classes", classes)[1]
    assert ("(possible with 12 classes or more)" in shown) is not reachable
    assert "and 4 classes, the most that this is computed for" in shown
    assert "computed for" not in run(capsys, "explain", "--gamma", 3)[1]


def test_a_plot_keeps_its_rows_on_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = run(capsys, "explain", "--gamma", 3)[1].splitlines()
    top = next(number for number, line in enumerate(lines) if line.startswith(" 1.00 │"))
    assert all(line[6] == "│" for line in lines[top : top + 16])
    assert lines[top + 16].startswith("      └")


def test_sigmoid_focal_loss_is_undone(tmp_path, monkeypatch, capsys):
    """Scores that minimize the expected loss become the true probabilities, and are found to be the best."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    posterior = rng.beta(0.7, 1.5, size=3000)
    scores = refocal.sigmoid_minimizer(posterior, gamma=2.0, alpha=0.25)
    labels = (rng.random(3000) < posterior).astype(int)
    Predictions(scores, input="probs", labels=labels).write("a.npz")
    arguments = ("calibrate", "a.npz", *SIGMOID, "--alpha", 0.25, "--method", "posterior", "--json")
    found = json.loads(run(capsys, *arguments, "--save", "cal.json")[1])
    chosen = next(method for method in found["methods"] if method["chosen"])
    assert chosen["name"] == "posterior"
    assert chosen["p_value"] > 0.01
    assert found["methods"][0]["p_value"] < 0.001
    np.testing.assert_allclose(load("cal.json").predict_proba(scores)[:, 1], posterior, rtol=1e-6, atol=1e-12)
    blocks = json.loads(run(capsys, *arguments, "--engine", "local")[1])
    assert next(method for method in blocks["methods"] if method["chosen"])["name"] == "posterior"


def test_explain_sigmoid_focal_loss(capsys):
    status, shown, _ = run(capsys, "explain", *SIGMOID, "--alpha", 0.25)
    assert status == 0
    assert "too low from 0.342 to 1.000," in shown
    assert "too high from 0.000 to 0.342." in shown
    assert "A score of 0.5 stands for p(y=1|x) = 0.75." in shown
    content = json.loads(run(capsys, "explain", *SIGMOID, "--alpha", 0.25, "--json")[1])
    scores, posterior = np.array(content["scores"]), np.array(content["posterior"])
    expected = refocal.sigmoid_posterior(np.log(scores[1:-1]) - np.log1p(-scores[1:-1]), gamma=2.0, alpha=0.25)
    np.testing.assert_allclose(posterior[1:-1], expected)
    assert posterior[[0, -1]].tolist() == [0.0, 1.0]
    for start, end in content["too_low"]:
        inside = (scores > start) & (scores < end)
        assert (posterior[inside] > scores[inside]).all()
    for start, end in content["too_high"]:
        inside = (scores > start) & (scores < end)
        assert (posterior[inside] < scores[inside]).all()
    assert sum(end - start for start, end in (*content["too_low"], *content["too_high"])) == pytest.approx(1)
    same = json.loads(run(capsys, "explain", "--loss", "sigmoid-focal", "--gamma", 0, "--alpha", 0.5, "--json")[1])
    assert same["too_low"] == same["too_high"] == []
    assert "are cross-entropy: its sigmoid output" in run(capsys, "explain", *SIGMOID[:3], 0, "--alpha", 0.5)[1]


def test_binary_scores_of_one_column(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    log_odds = 2 * rng.standard_normal(2000)
    labels = rng.random(2000) < 1 / (1 + np.exp(-log_odds))
    split = np.where(np.arange(2000) % 2 == 0, "val", "test")
    Predictions(3 * log_odds, input="logits", labels=labels.astype(int), split=split).write("scores.npz")
    content = json.loads(run(capsys, "calibrate", "scores.npz", "--method", "temperature", "--json")[1])
    assert content["verdict"]["regime"] == "overconfident"
    assert content["classes"] == 2
    chosen = next(method for method in content["methods"] if method["chosen"])
    assert chosen["parameters"]["temperature"] == pytest.approx(3, rel=0.2)


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet"])
@pytest.mark.parametrize("shape", [(2000,), (2000, 2)])
@pytest.mark.thorough
def test_one_column_in_one_column_out(tmp_path, monkeypatch, capsys, suffix, shape):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    log_odds = rng.uniform(-6, 6, 2000)
    labels = (rng.random(2000) < 1 / (1 + np.exp(-log_odds / 2 - 1))).astype(int)
    split = np.where(np.arange(2000) % 2 == 0, "val", "test")
    scores = log_odds if len(shape) == 1 else np.stack([0 * log_odds, log_odds], axis=1)
    Predictions(scores, input="logits", labels=labels, split=split).write(f"scores{suffix}")
    made = ("--save", "cal.json", "--out", f"probs{suffix}", "--json")
    status, shown, _ = run(capsys, "calibrate", f"scores{suffix}", *made)
    assert status == 0
    assert json.loads(shown)["rule"].startswith("Platt scaling was chosen: ")
    assert run(capsys, "apply", "cal.json", f"scores{suffix}", "--out", f"all{suffix}")[0] == 0
    probs = load("cal.json").predict_proba(scores)
    expected = probs[:, 1] if len(shape) == 1 else probs
    for name, rows in (("probs", split == "test"), ("all", split != "")):
        found = Predictions.read(f"{name}{suffix}")
        assert found.input == "probs"
        np.testing.assert_allclose(found.scores.reshape(expected[rows].shape), expected[rows])


def test_a_missing_extra_is_named_with_its_command(files, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    test = Predictions.read("test.npz")
    refocal.calibrate(test.scores, test.labels, method="temperature").save("cal.json")
    status, _, trouble = run(capsys, "export", "cal.json", "--onnx", "head.onnx")
    assert status == 1
    assert "pip install 'refocal[onnx]'" in trouble


@pytest.mark.parametrize("command", ["evaluate", "calibrate", "apply", "export", "explain", "demo"])
def test_help_has_examples_and_exit_status(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert f"refocal {command}" in shown.split("examples:")[1]
    assert "exit status" in shown


def test_defaults_in_help_are_those_of_the_signatures():
    assert check_defaults(build_parser()) == 14


def test_help_lists_every_method():
    _, command = next(pair for pair in list_parsers(build_parser()) if pair[0] == "refocal calibrate")
    listed = next(action.help for action in command._actions if action.dest == "method").split(" (default")[0]
    assert set(listed.replace(" or ", ", ").replace("\n", " ").split(", ")) == set(report.METHODS)


def test_help_loads_nothing_heavy():
    assert heavy_modules("refocal") == []


@pytest.mark.parametrize(
    ("owner", "name", "default"),
    [("refocal.cli.explain:explain", "classes", 2), ("refocal.scale.measuring:evaluate", "engine", "local")],
)
def test_defaults_are_read_from_source(owner, name, default):
    assert read_default(owner, name) == find_default(owner, name) == default
    with pytest.raises(LookupError, match=r"refocal\.cli\.explain has no nothing"):
        read_default("refocal.cli.explain:nothing", "classes")


def test_wrong_usage_and_version(capsys):
    version = subprocess.run(
        [sys.executable, "-m", "refocal", "--version"], check=True, capture_output=True, text=True, encoding="utf-8"
    )
    assert version.stdout.strip() == f"refocal {refocal.__version__}"
    with pytest.raises(SystemExit) as stop:
        cli.main([])
    assert stop.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_output_without_a_terminal_has_no_colors_and_no_progress(files):
    command = [sys.executable, "-m", "refocal", "evaluate", "test.npz"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True, cwd=files)
    assert "underconfident" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_forced_colors_bring_no_progress_into_a_file(files):
    command = [sys.executable, "-m", "refocal", "evaluate", "test.npz"]
    forced = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm"}
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True, cwd=files, env=forced)
    assert "\x1b[" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("page", "named"),
    [
        ("README.md", {"evaluate", "calibrate", "apply"}),
        ("docs/how-to/check-predictions.md", {"evaluate", "calibrate", "apply", "export", "explain"}),
    ],
)
def test_commands_of_the_pages_run_as_printed(files, capsys, page, named):
    text = (Path(__file__).parents[1] / page).read_text(encoding="utf-8")
    # the commands of the other blocks are tested elsewhere
    block = next(part for part in text.split("```sh\n") if part.startswith("refocal evaluate")).split("```", 1)[0]
    commands = [line.split() for line in block.splitlines()]
    assert {command[1] for command in commands} == named
    Predictions.read("test.npz").write("new.npz")
    for command in commands:
        assert run(capsys, *command[1:])[0] == 0, command
