"""The code of docs/calibrators.md runs as it stands, block after block."""

from __future__ import annotations

import os
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "calibrators.md"


def test_code_blocks_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 7
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    printed = capsys.readouterr().out
    assert "T = 1.68" in printed
    assert "\n1.0\n" in printed
    assert "TemperatureScaling" in printed
    assert sorted(os.listdir(tmp_path)) == ["calibrator.json", "head.onnx"]
