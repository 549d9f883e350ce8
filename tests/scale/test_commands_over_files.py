"""The commands on many files, in this process: what they print, reject and write."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_sets import SIZES, predictions, write
from rich.console import Console

from refocal import cli, evaluate, scale
from refocal.calibrators import BY_NAME, FocalPosterior, TemperatureScaling, load
from refocal.cli.parser import build_parser
from refocal.predictions import Predictions
from refocal.report import build_table
from refocal.scale import sampling

LOCAL = ("--engine", "local")


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
    assert "overconfident" in shown
    content = json.loads(run(capsys, "evaluate", "val/*.parquet", "--json")[1])
    whole = predictions(sum(SIZES), 0)
    in_memory = evaluate(whole.scores, whole.labels, by_class=False, source="val/*.parquet")
    assert content == json.loads(in_memory.to_json())
    named = json.loads(run(capsys, "evaluate", *sorted(Path("val").iterdir()), "--engine", "local", "--json")[1])
    assert named["methods"] == content["methods"]


@pytest.mark.thorough
def test_a_pattern_of_one_file_is_that_file(folder, capsys):
    for command in (["evaluate", "--split", "test"], ["calibrate", "--method", "temperature"]):
        file, pattern = (run(capsys, *command, name, "--json") for name in ("both.npz", "b*.npz"))
        assert strip_seconds(pattern[1]) == strip_seconds(file[1])
    some = ("--report", "page.html", "--out", "probs.npz", "--save", "cal.json", "--force")
    assert run(capsys, "calibrate", "b*.npz", "--method", "temperature", *some)[0] == 0
    assert Path("page.html").exists()


def strip_seconds(shown):
    """The JSON of a report without what differs from run to run."""
    content = json.loads(shown)
    content["settings"].pop("command", None)  # `evaluate` records it only in a file
    for method in content["methods"]:
        del method["fit_seconds"]
    return content


@pytest.mark.thorough
def test_files_beyond_memory_get_a_verdict_from_a_sample(folder, capsys, monkeypatch):
    """Measures are those of all rows, the verdict is that of the sample, and the choice of methods is complete."""
    monkeypatch.setattr(sampling, "SAMPLE", 2000)
    status, shown, told = run(capsys, "evaluate", "val/*.parquet", "--memory", "10K", "--json")
    assert status == 0
    assert "reading block by block: 5 files from val/part-0.parquet to val/part-4.parquet would take about" in told
    content = json.loads(shown)
    whole = predictions(sum(SIZES), 0)
    in_memory = json.loads(evaluate(whole.scores, whole.labels).to_json())
    assert content["samples"] == sum(SIZES)
    found = re.fullmatch(
        "NLL, Brier, ECE, .* and Accuracy of these are from sums over all 3,812 rows. Everything else, such as tests, "
        r"intervals, debiased ECE and diagrams, is from ([\d,]+) of them, chosen at random \(seed 0\)\.",
        content["protocol"],
    )
    assert 800 < int(found[1].replace(",", "")) < 1200
    for name in ("nll", "brier", "ece", "error"):
        ours, theirs = (each["methods"][0]["measures"][name] for each in (content, in_memory))
        assert ours["value"] == pytest.approx(theirs["value"], rel=1e-9)
        assert ours["low"] <= ours["value"] <= ours["high"]
        assert ours["high"] - ours["low"] > theirs["high"] - theirs["low"]
    assert content["verdict"]["regime"] == "overconfident"
    assert content["methods"][0]["p_value"] < 0.001

    arguments = ("calibrate", "val/*.parquet", "--test", "test/*.parquet", "--memory", "10K")
    status, shown, _ = run(capsys, *arguments, "--report", "page.html", "--save", "cal.json")
    assert status == 0
    assert "Methods were chosen and fitted on" in " ".join(shown.split())
    assert "Vector scaling" in shown
    page = Path("page.html").read_text(encoding="utf-8")
    assert "are from sums over all 3,812 rows" in page
    assert 'id="changed"' not in page  # rows of a sample have no numbers
    temperature = TemperatureScaling().fit(whole.scores, whole.labels).temperature_
    content = json.loads(run(capsys, *arguments, "--method", "temperature", "--json")[1])
    found = next(method for method in content["methods"] if method["chosen"])
    assert found["parameters"]["temperature"] == pytest.approx(temperature, rel=1e-4)


@pytest.mark.thorough
def test_files_beyond_memory_without_splits_are_held_out(folder, capsys, monkeypatch):
    monkeypatch.setattr(sampling, "SAMPLE", 2000)
    arguments = ("calibrate", "val/*.parquet", "--method", "temperature", "--memory", "10K", "--json")
    content = json.loads(run(capsys, *arguments)[1])
    assert content["protocol"].startswith("Measured on 30% of the rows, held out at random (seed 0); fitted to the")
    assert content["samples"] == pytest.approx(0.3 * sum(SIZES), rel=0.05)
    other = json.loads(run(capsys, *arguments, "--holdout", "0.5", "--seed", 1)[1])
    assert other["samples"] == pytest.approx(0.5 * sum(SIZES), rel=0.05)
    assert "(seed 1)" in other["protocol"]
    assert json.loads(run(capsys, "calibrate", "val/*.parquet", "--method", "temperature", "--json")[1])[
        "protocol"
    ].startswith("Cross-fitting in 5 folds")


@pytest.mark.parametrize("method", ["temperature", "focal-temperature", "posterior"])
@pytest.mark.thorough
def test_calibrate_and_apply(folder, capsys, method):
    arguments = ["calibrate", "val/*.parquet", "--test", "test/*.parquet", "--method", method, "--gamma", "0.5"]
    status, shown, _ = run(capsys, *arguments, "--save", "cal.json")
    assert status == 0
    assert "calibrator: cal.json" in shown
    assert "γ = 0.5" in shown
    assert type(load("cal.json")) is {"posterior": FocalPosterior, **BY_NAME}[method]
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


def test_measures_are_named_and_written_as_in_a_report(folder):
    report = scale.evaluate("test/*.parquet")
    values = {name: estimate.value for name, estimate in report.given.measures.items()}
    console = Console(file=io.StringIO(), width=120)
    console.print(build_table(report))
    shown = console.file.getvalue()
    for label, value in (
        ("Samples", f"{report.samples:,.0f}"),
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
    settings = ("--method", "temperature", "--json")
    content = json.loads(run(capsys, "calibrate", "val/*.parquet", "--test", "test/*.parquet", *settings)[1])
    assert (content["samples"], content["total_weight"]) == (sum(SIZES), 3 * sum(SIZES))


def test_one_file_goes_to_an_existing_folder(folder, capsys):
    for gamma in (1, 2):
        FocalPosterior(gamma=gamma, classes=5).save(f"{gamma}.json")
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
        (
            ["calibrate", "val/*.parquet", "--out", "p.npz", *LOCAL],
            "--out does not work with --engine: use apply to write",
        ),
        (
            ["calibrate", "third.npz", *LOCAL],
            "third.npz must have rows of the splits val and test, .* got 'a', 'b', 'c'",
        ),
        (["calibrate", "val/*.parquet", "--test", "val/part-3.parquet", *LOCAL], "must not share files"),
        (["calibrate", "val/*.parquet", "--test", "val/part-3.parquet"], "cannot be both fitted to and measured on"),
        (
            ["calibrate", "val/*.parquet", "--test", "wide.npz", *LOCAL],
            "wide.npz must hold the same as .*part-0.parquet",
        ),
        (["calibrate", "val/*.parquet", "--test", "wide.npz"], "must hold the same kind of scores"),
        (["evaluate", "*.npz"], "wide.npz must hold the same as both.npz, logits of 5 columns"),
        (["evaluate", "val/part-2*.parquet", "val/part-2.*"], "val/part-2.parquet: there are no rows"),
        (["evaluate", "empty/*.parquet"], "2 files, the first of which is .*empty/1.parquet, have no rows"),
        (["evaluate", "some/*.npz"], r"some/\*.npz: either all files or none must have a column split"),
        (["calibrate", "both.npz", "--holdout", "0.3", *LOCAL], "--holdout is only for predictions without --test"),
        (["calibrate", "val/*.parquet", "--holdout", "0", *LOCAL], "holdout must lie strictly between 0 and 1"),
        (["calibrate", "val/*.parquet", "--test", "test/*.parquet", "--method", "magic"], "method must be one of"),
        (["calibrate", "val/*.parquet", "--test", "test/*.parquet", "--method", "posterior"], "needs gamma"),
        (["apply", "cal.json", "val/*.parquet", "--out", "p.parquet"], "--out must be a folder"),
        (["evaluate", "val/*.parquet", "--engine", "ray", "--address", "127.0.0.1:1"], "127.0.0.1:1 cannot be reached"),
        (["evaluate", "val/*.parquet", "--engine", "local", "--address", "auto"], 'address is only for engine="ray"'),
    ],
)
def test_errors_take_one_line(folder, capsys, arguments, message):
    some = predictions(30, 4)
    Predictions(some.scores, input="logits", labels=some.labels, split=list("abc") * 10).write("third.npz")
    Path("some").mkdir()
    shutil.copy("third.npz", "some/1.npz")
    some.write("some/2.npz")
    Path("empty").mkdir()
    for copy in (1, 2):
        shutil.copy("val/part-2.parquet", f"empty/{copy}.parquet")
    FocalPosterior(gamma=1.0, classes=some.scores.shape[1]).save("cal.json")
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


def test_the_commands_of_the_page_are_known():
    page = (Path(__file__).parents[2] / "docs/how-to/scale.md").read_text(encoding="utf-8")
    table = page.split("| here | on a cluster |")[1].split("\n\n")[0]
    pairs = [re.findall(r"`(refocal [^`]*)`", line) for line in table.splitlines() if "`refocal" in line]
    assert [build_parser().parse_args(shlex.split(here)[1:]).command for here, _ in pairs] == [
        "evaluate",
        "calibrate",
        "apply",
    ]
    for here, there in pairs:
        assert there == f"{here} --engine ray --address auto"
        assert build_parser().parse_args(shlex.split(there)[1:]).engine == "ray"
