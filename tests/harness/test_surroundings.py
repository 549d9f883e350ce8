"""Where a run is started does not show in its tests."""

from __future__ import annotations

import os
import sys

from harness.nested import run_tests

HOSTILE = {
    **{"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": "7", "LC_ALL": "C", "PYTHONUTF8": "0"},
    **{"PYTHONCOERCECLOCALE": "0", "http_proxy": "http://127.0.0.1:9", "HOME": os.devnull},
}
TESTS = """
import http.server, os, signal, subprocess, sys, tempfile, threading, urllib.request
from pathlib import Path

def test_an_interrupt_arrives():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

def test_an_interrupt_arrives_in_another_process():
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).stdout == b"True\\n"

def test_no_colors_and_no_width():
    assert not {"FORCE_COLOR", "NO_COLOR", "COLUMNS"}.intersection(os.environ)

def test_servers_of_this_machine_are_reached_past_the_proxy():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/", timeout=60) as answer:
            assert answer.status == 200
        server.shutdown()

def test_one_folder_for_temporary_files(tmp_path):
    folder = Path(os.environ["TMPDIR"])
    assert " " in str(folder)
    assert Path(tempfile.gettempdir()) == folder
    assert folder in tmp_path.parents
"""
# as a script starts its background jobs
IGNORING = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"


def test_hostile_surroundings_do_not_show(tmp_path):
    spaced = tmp_path / "with space"
    spaced.mkdir()
    status, printed = run_tests(
        tmp_path, TESTS, "-n", "1", launcher=[sys.executable, "-c", IGNORING], TMPDIR=str(spaced), **HOSTILE
    )
    assert status == 0, printed
    assert "5 passed" in printed


def test_under_optimization_the_asserts_of_tests_still_count(tmp_path):
    """`python -O` drops the library's asserts; pytest has written those of test modules as `if`."""
    code = "def test_fails():\n    assert not __debug__\n    assert 1 == 2\n"
    status, printed = run_tests(tmp_path, code, "-n", "1", PYTHONOPTIMIZE="1")
    assert status == 1
    assert "assert 1 == 2" in printed
