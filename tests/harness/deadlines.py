"""The last resort against a test that hangs.

pytest-timeout raises in the test once its time is over: the test fails with the stacks of all threads, and the run goes
on. Python only raises between two of its own instructions, so that code of another language that never returns is not
ended. A while later `faulthandler`, which needs nothing of Python, prints the stacks and ends the process; with xdist
another worker takes its place and goes on with the next test. Without pytest-timeout there is this last resort alone.
"""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path

import pytest

from harness import surroundings

_stderr = pytest.StashKey[int]()


def pytest_addoption(parser, pluginmanager):
    parser.addini("timeout_grace", "seconds that a test may take to end after its timeout", default="60")
    if not pluginmanager.hasplugin("timeout"):  # an environment with other packages, such as that of `make test-gpu`
        parser.addini("timeout", "seconds per test with its fixtures, after which the run ends", default="300")
        parser.addini("timeout_method", "without effect: pytest-timeout is not installed")


def pytest_configure(config):
    config.addinivalue_line("markers", "timeout(seconds): more time than the others have")
    config.stash[_stderr] = os.dup(2)  # while nothing captures it


def pytest_unconfigure(config):
    faulthandler.cancel_dump_traceback_later()
    os.close(config.stash[_stderr])


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    if item.config.pluginmanager.hasplugin("timeout"):
        return (yield)
    mark = item.get_closest_marker("timeout")
    _end_after(float(mark.args[0] if mark else item.config.getini("timeout")), item.config)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item, settings):
    _end_after(settings.timeout, item.config)


def _end_after(seconds: float, config: pytest.Config) -> None:
    """Print all stacks and end the process some time after a test's own deadline."""
    seconds += float(config.getini("timeout_grace"))
    faulthandler.dump_traceback_later(seconds, exit=True, file=config.stash[_stderr])


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_cancel_timer(item):
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem):
    """Tell the workers: xdist gives the rest of a file to another one, which would begin with the same test."""
    with _ended().open("a", encoding="utf-8") as file:
        file.write(f"{crashitem}\n")


def pytest_runtest_setup(item):
    if _ended().exists() and item.nodeid in _ended().read_text(encoding="utf-8").splitlines():
        pytest.fail("a worker was ended while it ran this test: it is not run again")


def _ended() -> Path:
    return surroundings.folder() / "ended.txt"
