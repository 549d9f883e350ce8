"""The report in the terminal."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.cells import cell_len
from rich.console import Console

import sample
from refocal.report.page import render_page
from refocal.report.record import Estimate, Verdict
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


@pytest.mark.parametrize("width", range(40, 90))
def test_signs_stay_with_their_numbers(width):
    report = sample.sample_report(100)
    sentences = (
        "Wrong by far, on average (tests of calibration: p < 0.001).",
        "Trained with focal loss, γ = 3: at T = 2.",
    )
    report = dataclasses.replace(report, verdict=Verdict("overconfident", sentences))
    lines = shown(report, width=width).splitlines()
    for phrase in ("p < 0.001).", "γ = 3:", "T = 2."):
        assert any(phrase in line for line in lines)
    assert max(map(cell_len, lines)) <= width  # a class name has a character without width


def test_a_negative_debiased_error_has_its_reason_beside_it():
    report = sample.sample_report(100)
    reason = "Noise can make the debiased value negative; its limits are never below 0."
    assert reason not in " ".join(shown(report).split())
    measures = {**report.given.measures, "debiased_ece": Estimate(-0.002, 0.0, 0.01)}
    lucky = dataclasses.replace(report.given, measures=measures)
    report = dataclasses.replace(report, methods=(lucky, *report.methods[1:]))
    assert reason in " ".join(shown(report).split())
    assert reason in render_page(report)
