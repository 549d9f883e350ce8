"""--slice, --costs and --sets of the commands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from refocal.cli import main
from refocal.report import selection

pytest.importorskip("pyarrow")


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 2},{0.8 if i % 2 else 0.3},{'north' if i % 3 else 'south'}" for i in range(120)]
    Path("test.csv").write_text("\n".join(["label,prob_1,region", *rows]), encoding="utf-8")
    Path("costs.json").write_text("[[0, 1], [5, 0]]", encoding="utf-8")


def run(capsys, *words):
    status = main(["evaluate", "test.csv", *words])
    return status, *capsys.readouterr()


def test_slices_and_costs_of_a_file(table, capsys):
    status, shown, _ = run(capsys, "--slice", "region", "--costs", "costs.json", "--json", "--report", "r.html")
    assert status == 0
    content = json.loads(shown)
    assert [(each["value"], each["samples"]) for each in content["slices"]] == [("north", 80), ("south", 40)]
    assert content["costs"]["costs"] == [[0, 1], [5, 0]]
    assert 'id="slices"' in Path("r.html").read_text(encoding="utf-8")


def test_the_terminal_shows_slices_and_costs(table, capsys):
    asked = ["--slice", "region", "--costs", "costs.json"]
    status, shown, _ = run(capsys, *asked)
    assert status == 0
    content = json.loads(run(capsys, *asked, "--json")[1])
    for each in content["slices"]:
        line = next(line for line in shown.splitlines() if each["value"] in line)
        given = each["given"]
        cells = [str(each["samples"]), f"{100 * given['predicted']:.1f}%", f"{100 * given['observed']:.1f}%"]
        assert [cell for cell in cells if cell in line] == cells
        assert f"{100 * given['ece']['value']:.2f}%" in line
    costs = content["costs"]["given"]
    line = next(line for line in shown.splitlines() if f"{costs['promised']:.4f}" in line)
    assert "As given" in line
    assert f"{costs['actual']['value']:.4f}" in line
    assert f"{costs['actual']['low']:.4f} to {costs['actual']['high']:.4f}" in shown
    assert "corrected for the number of slices" in " ".join(shown.split())
    assert "before" not in shown


def test_the_terminal_shows_before_and_after(table, capsys):
    assert main(["calibrate", "test.csv", "--method", "platt", "--slice", "region", "--costs", "costs.json"]) == 0
    shown = capsys.readouterr().out
    assert sum("before" in line for line in shown.splitlines()) == 2
    assert sum("after" in line for line in shown.splitlines()) == 2
    assert all(word in shown for word in ("Slices by region", "Before", "After", "Mean cost per sample"))
    assert "of them change." in " ".join(shown.split())


def test_the_terminal_shows_the_answers_of_each_file(table, capsys):
    Path("other.csv").write_text(Path("test.csv").read_text(encoding="utf-8"), encoding="utf-8")
    shown = run(capsys, "other.csv", "--slice", "region", "--costs", "costs.json", "--sets", "0.9")[1]
    first, second = shown.split("\ntest.csv\n")[1].split("\nother.csv\n")
    for part in (first, second):
        assert "Slices by region" in part
        assert "Mean cost per sample" in part
        assert "Prediction sets for a coverage of 90.0%" in " ".join(part.split())


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ("[[0, 1], [5]]", "there are 2 rows, but row 2 has 1 numbers"),
        ("[[0, 1, 2], [5, 0, 1]]", "there are 2 rows, but row 1 has 3 numbers"),
        ('[[0, "high"], [5, 0]]', 'row 1 has "high"'),
        ("[[0, 1], [5, true]]", "row 2 has true"),
        ("[[0, 1], [5, NaN]]", "row 2 has null"),
        ("[0, 1]", r"got \[0, 1\]"),
        ('{"costs": 1}', "got {'costs': 1}"),
        (
            "[[0, 1, 1], [1, 0, 1], [1, 1, 0]]",
            "must have 2 rows of 2 costs, as there are 2 classes, such as .*; got 3 ",
        ),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "calibrate"])
def test_costs_must_be_a_square_matrix_of_numbers(table, capsys, command, costs, message):
    Path("costs.json").write_text(costs, encoding="utf-8")
    assert main([command, "test.csv", "--costs", "costs.json"]) == 1
    shown = capsys.readouterr().err
    assert re.search(message, shown)
    assert re.search(r"such as \[\[0, 1\], \[(1|5), 0\]\]", shown)


def test_many_classes_get_no_example_of_costs(table, capsys):
    rows = [",".join([str(i % 6), *("1" if i % 6 == k else "0" for k in range(6))]) for i in range(12)]
    head = ",".join(["label", *(f"logit_{k}" for k in range(6))])
    Path("test.csv").write_text("\n".join([head, *rows]), encoding="utf-8")
    shown = run(capsys, "--costs", "costs.json")[2]
    assert "--costs must have 6 rows of 6 costs, as there are 6 classes; got 2 rows" in shown


@pytest.mark.parametrize(
    "asked",
    [
        ("--slice must name a column", "--slice", "x"),
        ("--costs must have 2 rows of 2 costs", "--slice", "region", "--costs", "three.json"),
        (r"--slice id must have at most 100 different values, got", "--slice", "id"),
    ],
)
@pytest.mark.parametrize("how", [[], ["--holdout", "0.1"], ["--test", "test2.csv"]])
def test_nothing_is_fitted_before_a_wrong_question(table, capsys, monkeypatch, how, asked):
    message, *words = asked
    head, *rows = Path("test.csv").read_text(encoding="utf-8").splitlines()
    rows = [f"{row},{i}" for i, row in enumerate(rows * 10)]
    for name in ("test.csv", "test2.csv"):
        Path(name).write_text("\n".join([f"{head},id", *rows]), encoding="utf-8")
    Path("three.json").write_text("[[0, 1, 1], [1, 0, 1], [1, 1, 0]]", encoding="utf-8")
    monkeypatch.setattr(selection, "_fit", lambda *_: pytest.fail("fitted"))
    assert main(["calibrate", "test.csv", *how, *words]) == 1
    assert re.search(message, capsys.readouterr().err)


def test_each_split_is_checked_before_the_first_is_measured(table, capsys, monkeypatch):
    head, *rows = Path("test.csv").read_text(encoding="utf-8").splitlines()
    rows = [f"{row},{'val' if i % 2 else 'test'},{i if i % 2 else 0}" for i, row in enumerate(rows * 2)]
    Path("test.csv").write_text("\n".join([f"{head},split,id", *rows]), encoding="utf-8")
    monkeypatch.setattr("refocal.report.evaluation.compare", lambda *_, **__: pytest.fail("measured"))
    assert "at most 100 different values, got 120" in run(capsys, "--slice", "id")[2]


def test_a_wrong_file_of_costs_is_refused_before_any_file_is_read(table, capsys):
    Path("costs.json").write_text("[]", encoding="utf-8")
    Path("test.csv").write_text("damaged", encoding="utf-8")
    for command in ("evaluate", "calibrate"):
        assert main([command, "test.csv", "--costs", "costs.json"]) == 1
        assert "--costs must hold one row for each true class" in capsys.readouterr().err


def test_wrong_questions_are_refused(table, capsys):
    said = "--slice must name a column of a parquet or csv file that holds no scores, got 'x'; columns: "
    assert f"{said}label, region; scores: prob_1" in run(capsys, "--slice", "x")[2]
    assert "got 'prob_1'; columns: label, region; scores: prob_1" in run(capsys, "--slice", "prob_1")[2]
    Path("costs.json").write_text("[[0, 1]", encoding="utf-8")
    assert "--costs must be a file of JSON" in run(capsys, "--costs", "costs.json")[2]
    assert "--slice needs all rows in memory, but" in run(capsys, "--slice", "region", "--memory", "1K")[2]
    assert "--costs needs all rows in memory, but" in run(capsys, "--costs", "costs.json", "--engine", "local")[2]


@pytest.mark.parametrize("how", [[], ["--holdout", "0.5"], ["--test", "test2.csv"]])
def test_calibrate_answers_them_before_and_after(table, capsys, how):
    Path("test2.csv").write_text(Path("test.csv").read_text(encoding="utf-8"), encoding="utf-8")
    asked = ["--slice", "region", "--costs", "costs.json", "--method", "platt", "--json"]
    assert main(["calibrate", "test.csv", *how, *asked]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [each["value"] for each in content["slices"]] == ["north", "south"]
    assert sum(each["samples"] for each in content["slices"]) == content["samples"]
    assert content["slices"][0]["chosen"]["predicted"] != content["slices"][0]["given"]["predicted"]
    assert content["costs"]["chosen"].keys() == content["costs"]["given"].keys()


def test_calibrate_refuses_them_block_by_block(table, capsys):
    for more in (["--memory", "1K"], ["--engine", "local"]):
        assert main(["calibrate", "test.csv", "--slice", "region", *more]) == 1
        assert "--slice needs all rows in memory, but" in capsys.readouterr().err


def test_sets_of_a_file(table, capsys):
    status, shown, _ = run(capsys, "--sets", "0.9", "--json", "--report", "r.html")
    assert status == 0
    assert json.loads(shown)["sets"]["target"] == 0.9
    assert 'id="sets"' in Path("r.html").read_text(encoding="utf-8")
    assert main(["calibrate", "test.csv", "--method", "platt", "--sets", "0.9"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Prediction sets for a coverage of 90.0%, after: " in shown


@pytest.mark.parametrize("command", ["evaluate", "calibrate"])
def test_wrong_sets_are_refused(table, capsys, command):
    for words, message in [
        (["--sets", "90"], "--sets must lie strictly between 0 and 1, got 90"),
        (["--sets", "0"], "--sets must lie strictly between 0 and 1, got 0"),
        (["--sets", "0.9", "--engine", "local"], "--sets needs all rows in memory, but"),
        (["--sets", "0.9", "--task", "multilabel"], "--sets does not work with multi-label predictions"),
    ]:
        assert main([command, "test.csv", *words]) == 1
        assert message in capsys.readouterr().err
