"""What a run of the tests takes from where it was started: nothing that its results could depend on.

Set once, by the first process; those that it starts inherit it.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
from pathlib import Path

_PREFERENCES = re.compile(r"(NO|FORCE)_COLOR|CLICOLOR(_FORCE)?|TTY_(COMPATIBLE|INTERACTIVE)|COLUMNS|LINES")
_RUN = "REFOCAL_TEST_RUN"  # names the folder of the run to every process of it


def settle() -> Path | None:
    """Drop what the caller prefers, take interrupts, and keep temporary files in a folder of this run.

    Returns:
        The folder, if this is the first process of the run: it has to remove it.
    """
    for name in filter(_PREFERENCES.fullmatch, list(os.environ)):
        del os.environ[name]
    # a proxy stays, since packages may have to come through it; the servers of the tests are on this machine
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = "localhost,127.0.0.1"
    # a shell starts background jobs with interrupts ignored, and every process started from here would ignore them too
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if first := _RUN not in os.environ:
        os.environ[_RUN] = tempfile.mkdtemp(prefix="refocal-")
    os.environ["TMPDIR"] = tempfile.tempdir = os.environ[_RUN]
    os.environ["MPLCONFIGDIR"] = str(folder() / "matplotlib")  # by default below HOME, which may not be writable
    return folder() if first else None


def folder() -> Path:
    """Where the run keeps its temporary files."""
    return Path(os.environ[_RUN])


def outside() -> dict[str, str]:
    """The environment for a run of its own, which a test starts."""
    return {name: value for name, value in os.environ.items() if name != _RUN and not name.startswith("PYTEST_")}
