"""All text files are opened as UTF-8 explicitly: the encoding of the locale may not contain γ."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from refocal import demo

REPOSITORY = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "tools", "benchmarks", "lab", "docs", "examples")
SOURCES = sorted(
    [REPOSITORY / "conftest.py", *(path for name in FOLDERS for path in (REPOSITORY / name).rglob("*.py"))]
)
TEXT_MODE = re.compile("(?=[^rwax]*[rwax][^rwax]*$)[rwaxt+]+")
PROCESS_TEXT = ("text", "universal_newlines")  # what `subprocess` calls it
# ASCII only, also in child processes; without the last two settings Python would choose UTF-8
ASCII = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def find_missing_encodings(tree):
    """Find lines that open a text file, or the output of a process, without an encoding."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if "encoding" in given or None in given:  # None: **settings may hold it
            continue
        method = isinstance(node.func, ast.Attribute)
        name = node.func.attr if method else getattr(node.func, "id", "")
        mode = given.get("mode", next(iter(node.args[not method :]), ast.Constant("r")))
        text = {
            "read_text": not node.args,
            "write_text": method and len(node.args) == 1,  # with more arguments it is not a method of a path
            "open": TEXT_MODE.fullmatch(str(getattr(mode, "value", "?"))) is not None,
        }
        if text.get(name) or any(getattr(given.get(word), "value", False) for word in PROCESS_TEXT):
            yield node.lineno


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("p.read_text()", True),
        ("p.read_text('utf-8')", False),
        ("p.write_text(x)", True),
        ("write_text(path, text, overwrite=True)", False),
        ("open(p)", True),
        ("open(p, 'a')", True),
        ("open(p, 'rb')", False),
        ("open(p, 'w', encoding='utf-8')", False),
        ("p.open('w')", True),
        ("archive.open(name)", False),
        ("p.open()", True),
        ("p.open(mode='w+')", True),
        ("p.open(mode='rb')", False),
        ("open(p, 'rt')", True),
        ("open(p, mode='x+')", True),
        ("open(p, mode)", False),
        ("run(command, text=True)", True),
        ("run(command, text=True, encoding='utf-8')", False),
        ("run(command, text=False)", False),
        ("launch(command, **pipes)", False),
    ],
)
def test_finding_missing_encodings(code, found):
    assert bool(list(find_missing_encodings(ast.parse(code)))) is found


def test_every_text_file_is_opened_with_its_encoding():
    assert len(SOURCES) > 200
    found = {
        str(path.relative_to(REPOSITORY)): lines
        for path in SOURCES
        if (lines := list(find_missing_encodings(ast.parse(path.read_bytes()))))
    }
    assert found == {}


def test_a_locale_without_greek_spells_it_and_writes_it_into_pages(tmp_path):
    demo.load().write(tmp_path / "demo.npz")
    words = ["calibrate", "demo.npz", "--gamma", "3", "--method", "posterior", "--report", "page.html"]
    done = subprocess.run(
        [sys.executable, "-m", "refocal", *words], cwd=tmp_path, env=ASCII, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"gamma = 3" in done.stdout
    assert "γ" in (tmp_path / "page.html").read_text(encoding="utf-8")
