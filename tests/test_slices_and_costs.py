"""--slice and --costs of the command evaluate."""

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
