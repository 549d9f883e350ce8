"""A run of other tests, started by a test, with this project's settings and conftest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness.surroundings import outside

REPOSITORY = Path(__file__).parents[2]


def run_tests(folder, code, *options, launcher=(), **environment):
    """Write a module of tests and run it; returns the exit status and all that was printed."""
    module = folder / "test_made.py"
    module.write_text(code, encoding="utf-8")
    settings = ["-c", str(REPOSITORY / "pyproject.toml"), "--rootdir", str(folder), "-p", "conftest"]
    settings += ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]  # the second takes a second to import
    command = [sys.executable, "-m", "pytest", *settings, *options, str(module)]
    paths = os.pathsep.join(filter(None, [str(REPOSITORY), str(REPOSITORY / "tests"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [*launcher, *command],
        env={**outside(), "PYTHONPATH": paths, **environment},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")
