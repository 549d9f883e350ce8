"""The page about metrics: its code runs and prints what it says, and it names every function."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from refocal import metrics

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
BLOCKS = [part.split("```", 1)[0] for part in PAGE.split("```python\n")[1:]]


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_code_prints_what_the_page_says(block):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "docs/metrics.md", "exec"), {})
    expected = [line.split("  # ", 1)[1] for line in block.splitlines() if line.startswith("print(")]
    assert printed.getvalue().splitlines() == expected


def test_every_public_name_exists_is_documented_and_on_the_page():
    for name in metrics.__all__:
        value = getattr(metrics, name)
        assert value.__doc__, name
        if not isinstance(value, type):
            assert "Example:" in value.__doc__, name
            assert f"`{name}" in PAGE, name
