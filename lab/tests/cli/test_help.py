"""The help texts of `refocal-lab`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import refocal
from help_texts import check_defaults, heavy_modules, list_parsers
from refocal_lab.cli.parser import build_parser
from refocal_lab.reproduce import SCALES
from refocal_lab.train.recipe import TrainingRecipe


def test_defaults_are_those_of_the_signatures():
    assert check_defaults(build_parser()) == 8


@pytest.mark.parametrize(("data", "kind"), [("cifar10", None), ("newsgroups20", "documents"), ("sst", "trees")])
def test_defaults_by_data_are_those_of_a_recipe(data, kind):
    recipe = TrainingRecipe(data=data, model="mlp")
    _, command = next(pair for pair in list_parsers(build_parser()) if pair[0] == "refocal-lab train")
    for name in ("epochs", "batch_size", "learning_rate", "momentum", "weight_decay", "optimizer", "keep"):
        text = next(action.help for action in command._actions if action.dest == name)
        first, _, others = text.split("(default: ")[1].removesuffix(")").partition("; ")
        by_kind = {kind: value for part in others.split(", ") if part for value, kind in _split(part)}
        assert str(getattr(recipe, name)) == by_kind.get(kind, first), (name, text)


def _split(part):
    """("0.0", "documents") and ("0.0", "trees") of "0.0 for documents and trees"."""
    value, kinds = part.split(" for ")
    return [(value, kind) for kind in kinds.split(" and ")]


def test_scales_are_those_of_the_specs():
    _, command = next(pair for pair in list_parsers(build_parser()) if pair[0] == "refocal-lab reproduce")
    assert next(action.choices for action in command._actions if action.dest == "scale") == SCALES


def test_help_loads_nothing_heavy():
    assert heavy_modules("refocal_lab") == []


@pytest.mark.parametrize("command", ["train", "curvature", "zoo", "claims", "reproduce"])
def test_help_has_examples_and_exit_status(command):
    _, parser = next(pair for pair in list_parsers(build_parser()) if pair[0] == f"refocal-lab {command}")
    shown = parser.format_help()
    assert f"refocal-lab {command}" in shown.split("examples:")[1]
    assert "exit status" in shown


def test_version():
    done = subprocess.run(
        [sys.executable, "-m", "refocal_lab", "--version"], check=True, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.stdout.strip() == f"refocal-lab {refocal.__version__}"
