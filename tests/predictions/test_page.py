"""The page about files of predictions: every block runs, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "predictions.md"


def test_blocks_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    variables = {}
    for block in blocks:
        expected = re.findall(r"^\s*print\(.*\)  # (.*)$", block, flags=re.MULTILINE)
        exec(compile(block, str(PAGE), "exec"), variables)
        assert capsys.readouterr().out.splitlines() == expected
    assert len(blocks) == 6
