"""The figures of the documentation: their scripts run and draw something, and no figure lacks its script."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import matplotlib as mpl
import pytest

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
SIMULATED = {"ece_bias", "limits"}  # a few seconds each
NAMES = sorted(file.stem for file in FIGURES.glob("*.svg"))


def draw(name, path):
    spec = importlib.util.spec_from_file_location(f"figure_{name}", FIGURES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(str(path))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SIMULATED else name for name in NAMES]
)
def test_script_draws_the_committed_figure(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FIGURES))
    mpl.use("agg")
    draw(name, tmp_path / "drawn.svg")
    drawn, kept = (ET.parse(file).getroot() for file in (tmp_path / "drawn.svg", FIGURES / f"{name}.svg"))
    assert drawn.attrib["viewBox"] == kept.attrib["viewBox"]
    assert count_parts(drawn) == count_parts(kept)


def test_the_badges_say_what_is_true(tmp_path):
    draw("badges", tmp_path / "drawn.svg")
    assert (tmp_path / "drawn.svg").read_text(encoding="utf-8") == (FIGURES / "badges.svg").read_text(encoding="utf-8")


def count_parts(picture):
    """How many axes, lines, texts and ticks a picture has. Below them, versions of Matplotlib differ."""
    names = (part.get("id", "") for part in picture.iter("{http://www.w3.org/2000/svg}g"))
    return Counter(re.sub(r"_\d+$", "", name) for name in names if name)


def test_every_picture_has_a_script():
    pictures = {file.stem for kind in ("svg", "png") for file in FIGURES.glob(f"*.{kind}")}
    assert pictures == {file.stem for file in FIGURES.glob("*.py")} - {"style"}
