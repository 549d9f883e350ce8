"""A damaged file raises PredictionsError or passes every check: no crash, no hang, no excessive memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FORMATS = ["npz", "parquet", "csv"]
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="only Linux reports the memory of a process, which is limited here"
)


def read_mutated(form, folder, *, seed, count):
    program = Path(__file__).with_name("mutations.py")
    command = [sys.executable, "-W", "error", str(program), form, str(seed), str(count), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr  # begins with the format, seed and index of the file
    read, accepted = map(int, done.stdout.split())
    assert read == count
    assert 0 < accepted < count // 4, "the mutations must damage many files, but not all of them"


@pytest.mark.parametrize("form", FORMATS)
def test_a_few_hundred_damaged_files(form, tmp_path):
    read_mutated(form, tmp_path, seed=0, count=300)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_many_thousand_damaged_files(form, tmp_path):
    read_mutated(form, tmp_path, seed=1, count=20_000)
