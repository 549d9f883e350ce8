"""--slice and --costs of the commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from refocal.cli import main

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


def test_wrong_questions_are_refused(table, capsys):
    assert "--slice must name a column of a parquet or csv file, got 'x'; columns: " in run(capsys, "--slice", "x")[2]
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
