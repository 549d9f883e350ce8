"""The predictions that ship with the package, and what the README says they show."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from refocal import cli, demo

REPOSITORY = Path(__file__).parents[1]


def test_predictions_are_what_they_claim():
    predictions = demo.load()
    assert predictions.kind == "logits"
    assert predictions.classes == len(predictions.class_names) == 10
    assert set(predictions.split) == {"val", "test"}
    assert 0.05 < np.mean(np.argmax(predictions.scores, axis=1) != predictions.labels) < 0.2


def test_readme_shows_what_make_demo_prints(monkeypatch, capsys, tmp_path):
    command = re.search(r"refocal (demo .*)", (REPOSITORY / "Makefile").read_text())[1]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    assert cli.main(command.split()) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert readme.split("```text\n")[1].split("```")[0].splitlines() == printed
