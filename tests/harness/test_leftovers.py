"""A run that leaves processes or files behind fails and names them."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from harness.leftovers import forgotten
from harness.nested import run_tests

LEAVES = """
import subprocess, sys, tempfile

left = []

def test_leaves(tmp_path):
    left.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True))
    tempfile.mkdtemp(prefix="forgotten-")
    (tmp_path / "kept-by-pytest").touch()
"""

TIDY = """
from multiprocessing import resource_tracker

def test_tidy(tmp_path):
    resource_tracker.ensure_running()
    (tmp_path / "a").touch()
"""


def test_they_are_named_and_fail_the_run(tmp_path):
    status, printed = run_tests(tmp_path, LEAVES, "-n", "1", "-o", "leftover_seconds=1", TMPDIR=str(tmp_path))
    # the command alone: its environment is nothing for a log
    left = re.search(r"^process (\d+) .*time\.sleep\(600\)$", printed, flags=re.MULTILINE)
    assert left, printed
    os.kill(int(left[1]), signal.SIGKILL)
    assert status == 1
    assert "1 passed" in printed
    assert re.search(rf"^{tmp_path}/refocal-\w+/forgotten-\w+ \[\]$", printed, flags=re.MULTILINE), printed
    assert not list(tmp_path.glob("refocal-*"))


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_tidy_run_leaves_nothing(tmp_path, workers):
    status, printed = run_tests(tmp_path, TIDY, "-n", workers, "-o", "leftover_seconds=5", TMPDIR=str(tmp_path))
    assert status == 0, printed
    assert "left behind" not in printed
    assert not list(tmp_path.glob("refocal-*"))


def test_what_packages_keep_is_not_forgotten(tmp_path):
    for name in ("pytest-of-me", "ray", "torchinductor_me", "tmpabc"):
        (tmp_path / name).mkdir()
    assert forgotten(tmp_path) == [Path(tmp_path, "tmpabc")]
