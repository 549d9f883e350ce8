"""The commands on many files, in this process: what they print, reject and write."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_sets import SIZES, predictions, write

from refocal import cli, scale
from refocal.calibrators import TemperatureScaling, load
from refocal.cli.parser import build_parser
from refocal.predictions import Predictions


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Folders val and test with five files each, and one file that holds both as splits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    write(Path("val"))
    write(Path("test"))
    some = predictions(400, 3)
    split = np.where(np.arange(400) < 300, "val", "test")
    Predictions(some.scores, input="logits", labels=some.labels, split=split).write("both.npz")
    Predictions(np.zeros((4, 7), np.float32), input="logits", labels=[0, 1, 2, 3]).write("wide.npz")
    return tmp_path


def run(capsys, *arguments):
    status = cli.main([str(argument) for argument in arguments])
    return status, *capsys.readouterr()


def test_a_pattern_is_one_data_set(folder, capsys):
    status, shown, trouble = run(capsys, "evaluate", "val/*.parquet")
    assert (status, trouble) == (0, "")
    assert "intervals" in shown
    content = json.loads(run(capsys, "evaluate", "val/*.parquet", "--json")[1])
    assert content == json.loads(scale.evaluate("val/*.parquet").to_json())
    named = json.loads(run(capsys, "evaluate", *sorted(Path("val").iterdir()), "--engine", "local", "--json")[1])
    assert named["methods"] == content["methods"]


@pytest.mark.parametrize("method", ["temperature", "focal-temperature", "posterior"])
def test_calibrate_and_apply(folder, capsys, method):
    arguments = ["calibrate", "val/*.parquet", "--test", "test/*.parquet", "--method", method, "--gamma", "0.5"]
    status, shown, _ = run(capsys, *arguments, "--save", "cal.json")
    assert status == 0
    assert "calibrator: cal.json" in shown
    assert ("γ" in shown, "T = " in shown) == (method != "temperature", method != "posterior")
    status, shown, _ = run(capsys, "apply", "cal.json", "test/*.parquet", "--out", "probs")
    assert f"{sum(SIZES):,} rows of 5 files calibrated: probs" in shown
    assert "4 were done already" in run(capsys, "apply", "cal.json", "test/*.parquet", "--out", "probs")[1]
    probs = Predictions.read("probs/part-3.parquet")
    scores = Predictions.read("test/part-3.parquet").scores
    np.testing.assert_allclose(probs.scores, load("cal.json").predict_proba(scores))


def test_splits_of_the_same_files(folder, capsys):
    content = json.loads(run(capsys, "calibrate", "b*.npz", "--method", "temperature", "--json")[1])
    both = Predictions.read("both.npz")
    val = both.select("val")
    fitted = TemperatureScaling().fit(val.scores, val.labels)
    assert content["methods"][1]["parameters"]["temperature"] == pytest.approx(fitted.temperature_, rel=1e-4)
    assert content["samples"] == 100


def test_measures_are_named_and_written_as_in_a_report(folder, capsys):
    content = json.loads(run(capsys, "evaluate", "test/*.parquet", "--json")[1])
    values = {name: estimate["value"] for name, estimate in content["methods"][0]["measures"].items()}
    shown = run(capsys, "evaluate", "test/*.parquet")[1]
    for label, value in (
        ("Samples", f"{content['samples']:,.0f}"),
        ("ECE", f"{values['ece']:.2%}"),
        ("NLL", f"{values['nll']:.4f}"),
        ("Share 99% sure", f"{values['confidence_share']:.2%}"),
    ):
        assert re.search(rf"│ {label} +│ +{re.escape(value)} │", shown)


def test_only_one_of_val_and_test_may_have_weights(folder, capsys):
    for path in sorted(Path("test").iterdir()):
        if path.name != "part-2.parquet":  # which has no rows
            some = Predictions.read(path)
            replace(some, sample_weight=np.full(len(some), 3.0)).write(path, overwrite=True)
    content = json.loads(run(capsys, "calibrate", "val/*.parquet", "--test", "test/*.parquet", "--json")[1])
    assert (content["samples"], content["total_weight"]) == (sum(SIZES), 3 * sum(SIZES))


def test_one_file_goes_to_an_existing_folder(folder, capsys):
    for gamma in (1, 2):
        settings = ("--method", "posterior", "--gamma", gamma, "--save", f"{gamma}.json")
        assert run(capsys, "calibrate", "val/*.parquet", "--test", "test/*.parquet", *settings)[0] == 0
    out = ("--out", "probs", "--json")
    assert json.loads(run(capsys, "apply", "1.json", "test/*.parquet", *out)[1])["written"] == 5
    assert json.loads(run(capsys, "apply", "1.json", "test/part-3.parquet", *out)[1])["kept"] == 1
    assert "probs holds outputs of another calibrator" in run(capsys, "apply", "2.json", "test/part-3.parquet", *out)[2]
    status, shown, _ = run(capsys, "apply", "2.json", "test/part-3.parquet", *out, "--force")
    assert (status, json.loads(shown)["written"]) == (0, 1)
    assert "probs holds outputs of another calibrator" in run(capsys, "apply", "2.json", "test/*.parquet", *out)[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "none/*.parquet"], r"no file matches none/\*.parquet"),
        (["evaluate", "val/*.parquet", "--report", "r.html"], "--report does not work with many files"),
        (["calibrate", "val/*.parquet", "--out", "p.npz"], "--out does not work with many files: use apply to write"),
        (["calibrate", "val/*.parquet"], "cannot select 'val': the predictions have no split"),
        (["calibrate", "val/*.parquet", "--test", "val/part-3.parquet"], "must not share files"),
        (["calibrate", "val/*.parquet", "--test", "wide.npz"], "wide.npz must hold the same as .*part-0.parquet"),
        (["calibrate", "val/*.parquet", "--test", "test/*.parquet", "--method", "isotonic"], "--method must be one of"),
        (["calibrate", "val/*.parquet", "--test", "test/*.parquet", "--method", "posterior"], "needs the gamma"),
        (["apply", "cal.json", "val/*.parquet", "--out", "p.parquet"], "--out must be a folder"),
        (["evaluate", "val/*.parquet", "--engine", "ray", "--address", "127.0.0.1:1"], "127.0.0.1:1 cannot be reached"),
        (["evaluate", "val/*.parquet", "--engine", "local", "--address", "auto"], 'address is only for engine="ray"'),
    ],
)
def test_errors_take_one_line(folder, capsys, arguments, message):
    status, shown, trouble = run(capsys, *arguments)
    assert (status, shown) == (1, "")
    assert trouble.count("\n") == 1
    assert re.search(message, trouble)


@pytest.mark.parametrize("words", ["evaluate a.npz", "calibrate a.npz", "apply c.json a.npz --out o"])
def test_an_address_means_ray(words):
    given = [*words.split(), "--address", "auto"]
    assert build_parser().parse_args(given).engine == "ray"
    assert build_parser().parse_args([*given, "--engine", "local"]).engine == "local"
    assert build_parser().parse_args(words.split()).engine is None


def test_the_commands_of_the_readme_are_known():
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    table = readme.split("| here | on a cluster |")[1].split("\n\n")[0]
    pairs = [re.findall(r"`(refocal [^`]*)`", line) for line in table.splitlines() if "`refocal" in line]
    assert [build_parser().parse_args(shlex.split(here)[1:]).command for here, _ in pairs] == [
        "evaluate",
        "calibrate",
        "apply",
    ]
    for here, there in pairs:
        assert there == f"{here} --engine ray --address auto"
        assert build_parser().parse_args(shlex.split(there)[1:]).engine == "ray"
