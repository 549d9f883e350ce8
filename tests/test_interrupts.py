"""Ctrl-C ends a command with one line, at any time, and leaves no file. A background job continues."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import refocal
from refocal import _program
from refocal.predictions import Predictions


@pytest.fixture
def long_command(tmp_path, launch):
    """A command that has begun to write its output, and needs seconds to finish."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 400_000)
    Predictions(rng.standard_normal((400_000, 10)), input="logits", labels=labels).write(tmp_path / "big.npz")
    refocal.calibrate(rng.standard_normal((100, 10)), labels[:100], method="temperature").save(tmp_path / "cal.json")
    arguments = ["apply", "cal.json", "big.npz", "--out", "out.csv"]
    process = launch(
        [sys.executable, "-m", "refocal", *arguments], cwd=tmp_path, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    while not list(tmp_path.glob(".refocal-*")):
        assert process.poll() is None
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("repeated", [False, True])
def test_ctrl_c_leaves_no_file_and_no_traceback(tmp_path, long_command, repeated):
    long_command.send_signal(signal.SIGINT)
    while repeated and long_command.poll() is None:
        time.sleep(0.0005)
        long_command.send_signal(signal.SIGINT)
    _, trouble = long_command.communicate()
    assert trouble == "refocal: interrupted\n"
    # Python ends itself by the signal if it came while an import ran code from a string; a shell reports 130 for both
    assert long_command.returncode in {130, -signal.SIGINT}
    assert sorted(os.listdir(tmp_path)) == ["big.npz", "cal.json"]


def test_ctrl_c_while_the_package_is_imported(tmp_path):
    code = """
import sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "refocal.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
from refocal.__main__ import main
sys.exit(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=False, cwd=tmp_path
    )
    assert done.stderr == "refocal: interrupted\n"
    assert done.returncode == 130


def test_ctrl_c_once_more_while_the_process_ends(tmp_path):
    code = """
import atexit, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
interrupt = lambda: os.kill(os.getpid(), signal.SIGINT)
atexit.register(interrupt)
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "refocal.cli":
            interrupt()
sys.meta_path.insert(0, Interrupts())
from refocal.__main__ import main
sys.exit(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=False, cwd=tmp_path
    )
    assert done.stderr == "refocal: interrupted\n"
    assert done.returncode == 130


def test_a_background_job_of_a_script_goes_on_after_ctrl_c(tmp_path):
    """As for every program, an interrupt that is ignored at the start stays ignored."""
    code = (
        "import os, signal, sys; from refocal import cli\n"
        "os.kill(os.getpid(), signal.SIGINT); sys.exit(cli.main(['explain', '--gamma', '3']))"
    )
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, cwd=tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_hidden_cursor_is_shown_before_interrupts_may_kill(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def handle(_number, _frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    monkeypatch.setattr(_program, "_handler", handle)
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    try:
        with _program.killed_by_interrupts():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
            assert sys.stderr.getvalue() == "\x1b[?25h"
        assert signal.getsignal(signal.SIGINT) is handle
    finally:
        signal.signal(signal.SIGINT, before)


def test_programs_of_others_keep_their_handler():
    before = signal.getsignal(signal.SIGINT)
    with _program.killed_by_interrupts():
        assert signal.getsignal(signal.SIGINT) is before
