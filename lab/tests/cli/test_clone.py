"""`refocal-lab` finds the folders of a clone, or says in one sentence what it needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from refocal_lab import clone
from refocal_lab.cli import main

LAB = Path(__file__).parents[2]
COMMANDS = [["zoo", "list"], ["reproduce", "--list"], ["claims", "show", "001-thm-5"]]


@pytest.mark.parametrize("folder", [LAB.parent, LAB], ids=["root", "lab"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.thorough
def test_commands_work_in_a_clone(folder, command, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(clone, "_LAB", Path("nowhere"))
    assert main([*command, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) > 5


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.thorough
def test_an_editable_install_finds_its_clone(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(clone, "_LAB", LAB)
    assert main([*command, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) > 5


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A folder outside any clone, and a package in site-packages: the folder above it has no pyproject.toml."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(clone, "_LAB", tmp_path)
    (tmp_path / "lab").mkdir()


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("command", "name", "folder"),
    [
        (["reproduce", "--list"], "reproduce", "experiments"),
        (["reproduce", "001-fig-1"], "reproduce", "experiments"),
        (["zoo", "list"], "zoo", "zoo"),
        (["zoo", "table"], "zoo", "zoo"),
        (["zoo", "add", "run"], "zoo", "zoo"),
    ],
)
def test_outside_a_clone_one_sentence_says_what_is_needed(command, name, folder, capsys):
    assert main(command) == 1
    assert capsys.readouterr().err == (
        f"refocal-lab: refocal-lab {name} reads {folder}/ from a clone of the refocal repository: "
        f"run it there, or name the folder with --{folder}\n"
    )


def test_a_named_folder_comes_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(LAB)
    (tmp_path / "empty").mkdir()
    assert main(["zoo", "list", "--zoo", str(tmp_path / "empty"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["reproduce", "--list", "--experiments", str(tmp_path / "empty")]) == 1
    assert "no experiments in" in capsys.readouterr().err


@pytest.mark.usefixtures("outside")
def test_claims_need_no_clone(capsys):
    assert main(["claims", "show", "001-thm-5"]) == 0
    assert "001-thm-5" in capsys.readouterr().out
