"""The report in the terminal."""

from __future__ import annotations

import io

from rich.console import Console

import sample
from refocal.report.table import build_table


def shown(report, width=140):
    console = Console(file=io.StringIO(), width=width)
    console.print(build_table(report))
    return console.file.getvalue()


def test_table_says_the_verdict_first_then_methods_with_intervals():
    report = sample.sample_report(500)
    text = shown(report)
    assert text.startswith(report.verdict.sentences[0])
    nll = report.given.measures["nll"]
    assert f"{nll.value:.4f}" in text
    assert f"{nll.low:.4f} to {nll.high:.4f}" in text
    assert "Focal temperature scaling\u00a0←" in text
    assert "γ = 3, T = 1.2" in text
    assert "500 samples, 10 classes" in text
    assert "the interval corrects for this, so the raw value can lie above it." in " ".join(text.split())


def test_names_of_users_are_not_markup():
    report = sample.poisoned(sample.sample_report(100), "[bold red]name[/]")
    assert shown(report, width=250).count("[bold red]name[/]") >= 8


def test_names_of_users_cannot_command_the_terminal():
    text = shown(sample.poisoned(sample.sample_report(100), "\x1b]0;title\x07\ud800"), width=250)
    assert text.count("\ufffd]0;title\ufffd\ufffd") >= 8
    assert "\x1b" not in text
    text.encode()
