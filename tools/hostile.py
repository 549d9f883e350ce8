"""Run a command in surroundings as hostile as a test suite may meet.

    python tools/hostile.py one-cpu make suite
    python tools/hostile.py load make suite

Both ways: interrupts are ignored, as in a background job of a script; there is no terminal; the locale knows ASCII
alone; proxies are named that do not answer; new files are for their owner only; temporary files go to a folder with a
space in its name. Colors are forced, on one CPU, with a HOME that cannot be written to; or they are forbidden, under
eight jobs of load, with `python -O` and no HOME.

Ctrl-C, SIGTERM and SIGHUP end the command and the load.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile

JOBS = 8
# a busy loop that also ends if whoever started it is gone
LOAD = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(100_000))"
PROXIES = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
BOTH = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TERM": "dumb", "COLUMNS": "20", **PROXIES}
WAYS = {
    "one-cpu": {**BOTH, "FORCE_COLOR": "1", "HOME": os.devnull},  # nothing can be made in it, not even by root
    "load": {**BOTH, "NO_COLOR": "1", "PYTHONOPTIMIZE": "1"},
}


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    environment = {**os.environ, **WAYS[options.way]}
    if options.way == "load":
        environment.pop("HOME", None)
    elif hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    else:
        print("hostile: this system cannot keep a process on one CPU", file=sys.stderr)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _end)
    os.umask(0o077)
    folder = tempfile.mkdtemp(prefix="a b-")
    load = JOBS if options.way == "load" else 0
    jobs = [subprocess.Popen([sys.executable, "-c", LOAD, str(os.getpid())]) for _ in range(load)]
    try:
        return _run(options.command, {**environment, "TMPDIR": folder})
    finally:
        for job in jobs:
            job.kill()
            job.wait()
        shutil.rmtree(folder, ignore_errors=True)  # a command that was ended may still be writing


def _end(number: int, _: object) -> None:
    sys.exit(128 + number)


def _run(command: list[str], environment: dict[str, str]) -> int:
    """The exit status of a command without a terminal: its output comes through a pipe."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a process inherits, unlike a handler
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        signal.signal(signal.SIGINT, before)
        try:
            for line in process.stdout or ():
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)  # a session of its own: nobody else would tell it
            raise
    return process.returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
