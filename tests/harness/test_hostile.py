"""The hostile surroundings of `make test-hostile` are what they claim to be, and end with the command."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from harness.nested import REPOSITORY
from harness.surroundings import outside

TELL = """
import json, locale, os, signal, subprocess, sys, tempfile
umask = os.umask(0)
listed = subprocess.run(["ps", "axww", "-o", "pid=,ppid=,args="], capture_output=True).stdout.decode(errors="replace")
rows = [line.split(maxsplit=2) for line in listed.splitlines()]
print(json.dumps({
    "interrupts": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
    "encoding": locale.getpreferredencoding(False),
    "umask": umask,
    "folder": tempfile.gettempdir(),
    "terminal": any(os.isatty(stream) for stream in range(3)),
    "optimized": sys.flags.optimize,
    "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
    "home": os.environ.get("HOME"),
    "load": [int(pid) for pid, parent, _ in rows if parent == str(os.getppid()) and int(pid) != os.getpid()],
    **{name: os.environ.get(name) for name in ("FORCE_COLOR", "NO_COLOR", "http_proxy")},
}))
sys.exit(3)
"""


# says who it is, and goes on for longer than any test may take
WAIT = "import os, time; print(os.getpid(), flush=True); time.sleep(3600)"


@pytest.mark.skipif(shutil.which("ps") is None, reason="ps, which lists processes, is not installed")
@pytest.mark.parametrize("way", ["one-cpu", "load"])
def test_they_are_what_they_claim(way, tmp_path):
    command = [sys.executable, str(REPOSITORY / "tools" / "hostile.py"), way, sys.executable, "-c", TELL]
    done = subprocess.run(command, env={**outside(), "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, check=False)
    assert done.returncode == 3
    told = json.loads(done.stdout)
    assert told["interrupts"]
    assert told["encoding"] in {"ANSI_X3.4-1968", "US-ASCII"}
    assert told["umask"] == 0o077
    assert " " in told["folder"]
    assert not told["terminal"]
    assert told["http_proxy"] == "http://127.0.0.1:9"
    assert (told["FORCE_COLOR"], told["NO_COLOR"]) == {"one-cpu": ("1", None), "load": (None, "1")}[way]
    assert told["home"] == {"one-cpu": os.devnull, "load": None}[way]
    if way == "one-cpu":
        assert told["cpus"] == 1
    else:
        assert told["optimized"] == 1
    assert len(told["load"]) == {"one-cpu": 0, "load": 8}[way]
    for job in told["load"]:
        with pytest.raises(ProcessLookupError):
            os.kill(job, 0)
    assert not list(tmp_path.iterdir())


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_command_and_load_end_with_it(number, tmp_path, launch):
    command = [sys.executable, str(REPOSITORY / "tools" / "hostile.py"), "load", sys.executable, "-c", WAIT]
    tool = launch(command, env={**outside(), "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE)
    inner = int(tool.stdout.readline())
    tool.send_signal(number)
    rest, _ = tool.communicate()  # until nobody holds the other end of the pipe: the load has ended, too
    assert (tool.returncode, rest) == (128 + number, b"")
    while is_running(inner):
        time.sleep(0.01)
    assert not list(tmp_path.iterdir())
