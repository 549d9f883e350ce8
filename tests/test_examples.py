"""The examples of the gallery: each runs as a script of its own and draws figures that a reader can understand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("plot_*.py"))
NEEDS = {"plot_boosting_focal": "lightgbm"}  # besides the packages of `make test`

# Runs a script, saves its figures, and prints what a reader sees of each.
DESCRIBE = """
import json, runpy, sys
import matplotlib.pyplot as plt

runpy.run_path(sys.argv[1], run_name="__main__")
figures = []
for number in plt.get_fignums():
    figure = plt.figure(number)
    figure.savefig(f"figure-{number}.png")
    axes = [
        {"x": ax.get_xlabel(), "y": ax.get_ylabel(), "artists": len(ax.lines) + len(ax.patches) + len(ax.collections)}
        for ax in figure.axes
    ]
    width, _ = figure.get_size_inches() * figure.dpi
    figures.append({"axes": axes, "width": width, "face": figure.get_facecolor()})
print(json.dumps(figures))
"""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.thorough
def test_figures_can_be_read(path, tmp_path):
    if needed := NEEDS.get(path.stem):
        pytest.importorskip(needed, reason=f"{needed} is not installed: `make docs` runs this example")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", DESCRIBE, str(path)],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert {found.suffix for found in tmp_path.iterdir()} == {".png"}  # an example writes no files
    for figure in json.loads(ran.stdout):
        assert figure["width"] <= 700  # the width of the page: text is not scaled down
        assert figure["face"] == [1, 1, 1, 1]  # also on dark pages
        assert figure["axes"]
        for axes in figure["axes"]:
            assert axes["x"] and axes["y"]
            assert axes["artists"] > 1


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_header_is_a_title_and_a_question(path):
    """The gallery takes the first paragraph as the title; its underline must not be shorter."""
    title, underline, blank = path.read_text(encoding="utf-8").removeprefix('"""').splitlines()[:3]
    assert re.fullmatch(r"[A-Z].*\?", title)
    assert underline == "=" * len(underline) and len(underline) >= len(title)
    assert blank == ""
