"""The end of a run: its processes have ended, and what it kept in temporary folders is gone.

A run has one folder for temporary files, which its processes find in TMPDIR. A process with this folder in its
environment or its command line belongs to the run. An entry of the folder that nobody put there on purpose was
forgotten by a test, or by the library.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

# pytest's own folder, and what other packages keep for the next process or forget in a worker of xdist
_KEPT = (
    "pytest-of-*",
    "ended.txt",
    "ray",
    "torchinductor_*",
    "torchelastic_*",
    "matplotlib",
    "sklearn_testing_*",
    ".ses",
    "mat-debug-*.log",
)


class Leftovers:
    """Looks for them in the first process of a run, once its workers have ended; removes the run's folder."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.found: list[str] = []
        self.unknown = ""

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        try:
            seconds = float(session.config.getini("leftover_seconds"))
            self.found = [f"process {line}" for line in wait_for_none(self._folder, seconds)]
        except (OSError, subprocess.SubprocessError) as error:
            self.unknown = f"processes that were left were not looked for: {error}"
        self.found += [f"{path} {[each.name for each in path.glob('*')]}" for path in forgotten(self._folder)]
        if self.found and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if self.unknown:
            terminalreporter.line(self.unknown)
        if self.found:
            terminalreporter.section("left behind", red=True)
            for line in self.found:
                terminalreporter.line(line, red=True)

    def pytest_unconfigure(self):
        shutil.rmtree(self._folder, ignore_errors=True)


def processes(folder: Path) -> list[str]:
    """Id and command of each process that belongs to a run.

    Not those that only wait to be asked how they ended, nor what Python itself keeps beside this process to its end.
    """
    found = []
    for pid, parent, state, text in _listed("axeww"):
        own = parent == str(os.getpid()) and "multiprocessing.resource_tracker" in text
        if str(folder) in text and not own and not state.startswith("Z"):
            found.append(pid)
    # told without their environment, which may hold secrets
    return [f"{pid} {command[:160]}" for pid, _, _, command in _listed("axww") if pid in found] if found else []


def _listed(options: str) -> list[tuple[str, ...]]:
    """Id, parent, state and command of every process; with `e` among the options the command has its environment."""
    command = ["ps", options, "-o", "pid=,ppid=,stat=,args="]
    elsewhere = {"PATH": os.environ.get("PATH", os.defpath)}  # or it would count itself
    listed = subprocess.run(command, check=True, capture_output=True, timeout=60, env=elsewhere).stdout
    return [(*line.split(maxsplit=3), "")[:4] for line in listed.decode(errors="replace").splitlines()]


def wait_for_none(folder: Path, seconds: float) -> list[str]:
    """The processes that have not ended after a while, which a browser and Ray take."""
    deadline = time.monotonic() + seconds
    while (found := processes(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def forgotten(folder: Path) -> list[Path]:
    """The entries of a run's folder that were not put there on purpose."""
    return sorted(path for path in folder.iterdir() if not any(path.match(kept) for kept in _KEPT))
