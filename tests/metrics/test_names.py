"""The documentation page names every function."""

from __future__ import annotations

from pathlib import Path

from refocal import metrics

PAGE = (Path(__file__).parents[2] / "docs/how-to/metrics.md").read_text(encoding="utf-8")


def test_every_public_name_exists_is_documented_and_on_the_page():
    for name in metrics.__all__:
        value = getattr(metrics, name)
        assert value.__doc__, name
        if not isinstance(value, type):
            assert "Example:" in value.__doc__, name
            assert f"`{name}" in PAGE, name
