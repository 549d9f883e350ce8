"""Progress on the terminal, and silence elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from refocal.cli import progress
from refocal.scale import ProgressUpdate


@pytest.fixture
def terminal(monkeypatch):
    """What a terminal would show."""
    monkeypatch.setenv("TERM", "xterm")  # Rich animates nothing on a dumb terminal
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=120, color_system=None)
    monkeypatch.setattr(progress, "find_terminal", lambda: console)
    return written


def lines(written):
    """The lines that were shown, one after another, without the spinner and the sequences that move the cursor."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[\u2800-\u28ff]", "", written.getvalue())
    return [line.strip() for line in re.split(r"[\r\n]", text) if line.strip()]


def test_steps_and_counts_share_a_line(terminal):
    with progress.track(transient=False) as tracker:
        assert tracker.visible
        tracker.step("reading a.npz")
        tracker._progress.refresh()
        tracker.count("checking", 2, 5, "so far")
        tracker._progress.refresh()
        tracker.show_files(ProgressUpdate("measuring", 3, 4, 12_345))
    shown = lines(terminal)
    assert "reading a.npz" in shown
    assert any(re.fullmatch(r"checking .* 2/5 .* so far", line) for line in shown)
    assert re.fullmatch(r"measuring .* 3/4 .* files, 12,345 rows", shown[-1])


def test_a_step_has_no_bar(terminal):
    with progress.track(transient=False) as tracker:
        tracker.count("counting", 1, 2)
        tracker.step("fitting")
    assert lines(terminal)[-1] == "fitting"


def test_each_task_has_a_line(terminal):
    with progress.track(transient=False) as tracker:
        tracker.write("2 runs in runs")
        for name in ("first", "second"):
            tracker.count_task(name, 1, 3, f"loss of {name}")
    shown = lines(terminal)
    assert shown[0] == "2 runs in runs"
    for name, line in zip(("first", "second"), shown[-2:], strict=True):
        assert re.fullmatch(rf"{name} .* 1/3 .* loss of {name}", line)


def test_texts_are_neither_markup_nor_commands(terminal):
    with progress.track(transient=False) as tracker:
        tracker.step("reading [bold]\x07.npz")
    assert "reading [bold]\ufffd.npz" in terminal.getvalue()


def test_nothing_is_written_without_a_terminal(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(progress, "find_terminal", lambda: Console(file=written, force_terminal=False))
    with progress.track() as tracker:
        assert not tracker.visible
        tracker.write("a line")
        tracker.step("reading")
        tracker.count("checking", 1, 2)
    assert written.getvalue() == ""
