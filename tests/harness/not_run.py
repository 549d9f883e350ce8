"""The end of a run: one line for each group of tests that did not run, with the reason.

A run in several parts (`make test` runs the kernels by themselves) gives each part `--parts FILE`: what one part ran
has run, and the last part sums up all of them.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

# tests with these marks have a target of their own; the reason that is listed for them
LEFT_OUT = {
    "slow": "slow: `make test-slow` runs them",
    "thorough": "thorough: `make test-thorough` runs them",
}
_NAMED = 3


class NotRun:
    """Gathers what ran and what did not; with xdist in every worker, and all of it in the first process."""

    def __init__(self, config):
        self._config = config
        self.ran: set[str] = set()
        self.reasons: dict[str, str] = {}  # by the id of a test, or of a module that was not collected

    def pytest_deselected(self, items):
        for item in items:
            mark = next(filter(item.get_closest_marker, LEFT_OUT), None)
            if mark is not None:  # others were left out by whoever started the run
                self.reasons[item.nodeid] = LEFT_OUT[mark]

    def pytest_collectreport(self, report):
        if report.skipped:
            self.reasons[report.nodeid] = _reason(report)

    def pytest_runtest_logreport(self, report):
        if report.skipped and not hasattr(report, "wasxfail"):
            self.reasons[report.nodeid] = _reason(report)
        elif report.when == "call":
            self.ran.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.reasons = {**getattr(node, "workeroutput", {}).get("not_run", {}), **self.reasons}

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self):
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["not_run"] = self.reasons

    def pytest_unconfigure(self):
        if hasattr(self._config, "workeroutput"):
            return
        self._join_parts()
        lines = summarize({test: reason for test, reason in self.reasons.items() if test not in self.ran})
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if lines and terminal:
            terminal.section("not run")
            for line in lines:
                terminal.line(line)

    def _join_parts(self):
        file = self._config.getoption("--parts")
        if file is None:
            return
        if Path(file).exists():
            before = json.loads(Path(file).read_text(encoding="utf-8"))
            self.ran |= set(before["ran"])
            self.reasons = {**before["reasons"], **self.reasons}
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        content = {"ran": sorted(self.ran), "reasons": self.reasons}
        Path(file).write_text(json.dumps(content), encoding="utf-8")


def summarize(reasons: dict[str, str]) -> list[str]:
    """A line for each reason, the most tests first."""
    lines = []
    for reason, count in sorted(Counter(reasons.values()).items(), key=lambda group: (-group[1], group[0])):
        tests = [test for test, given in reasons.items() if given == reason]
        files = sorted({test.split("::")[0] for test in tests})
        modules = sum("::" not in test for test in tests)  # of one that was not collected nobody knows the tests
        parts = [_counted(number, noun) for number, noun in ((count - modules, "test"), (modules, "module")) if number]
        more = f" and {_counted(len(files) - _NAMED, 'more file')}" if len(files) > _NAMED else ""
        lines.append(f"{' and '.join(parts)}: {reason} ({', '.join(files[:_NAMED])}{more})")
    return lines


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number > 1 else ''}"


def _reason(report) -> str:
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(told.removeprefix("Skipped: ").split())


def pytest_addoption(parser):
    parser.addoption("--parts", metavar="FILE", help="what the parts of a run ran and did not run, kept between them")


def pytest_configure(config):
    config.pluginmanager.register(NotRun(config))
