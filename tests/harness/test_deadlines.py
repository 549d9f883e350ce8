"""A test that hangs fails with all stacks, and the run goes on."""

from __future__ import annotations

import pytest

from harness.nested import run_tests

HANGS = """
import signal, threading, time
import pytest

def waits_beside():
    time.sleep(600)

@pytest.mark.timeout(1)
def test_hangs():
    threading.Thread(target=waits_beside, daemon=True).start()
    time.sleep(600)

@pytest.mark.timeout(1)
def test_hangs_beyond_python():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(600)

def test_after():
    pass
"""


@pytest.mark.thorough
def test_the_run_goes_on_after_tests_that_hang(tmp_path):
    status, printed = run_tests(tmp_path, HANGS, "-n", "2", "--dist", "loadfile", "-o", "timeout_grace=5")
    assert status == 1
    assert "2 failed, 1 passed, 1 error" in printed  # the error: it is not begun again
    assert "Failed: Timeout (>1.0s) from pytest-timeout" in printed
    assert "in waits_beside" in printed  # the stack of a thread beside
    assert "Timeout (0:00:06)!" in printed  # faulthandler's, which ended the worker
    assert "in test_hangs_beyond_python" in printed
    assert "crashed while running 'test_made.py::test_hangs_beyond_python'" in printed


ALONE = """
import time
import pytest

@pytest.mark.timeout(1)
def test_ends():
    pass

@pytest.mark.timeout(1)
def test_hangs():
    time.sleep(30)
"""


def test_without_pytest_timeout_a_hung_test_ends_the_run(tmp_path):
    """As in the environment of `make test-gpu`. The run cannot remove its temporary folder any more."""
    status, printed = run_tests(tmp_path, ALONE, "-p", "no:timeout", "-o", "timeout_grace=1", TMPDIR=str(tmp_path))
    assert status == 1, printed
    assert "Timeout (0:00:02)!" in printed
    assert "in test_hangs" in printed


@pytest.mark.slow
def test_slow_tests_have_more_time(request):
    assert request.node.get_closest_marker("timeout").args == (3600,)


def test_every_test_has_a_deadline(request):
    assert float(request.config.getini("timeout")) > 0
