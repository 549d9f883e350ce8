"""How numbers are written."""

from __future__ import annotations

import math

import pytest

from refocal.report import words
from refocal.report.record import Diagram, Estimate
from refocal.report.svg import format_short_count


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (words.format_number(0.25), "0.2500"),
        (words.format_number(2e-6), "2.0e−06"),
        (words.format_number(-0.5), "−0.5000"),
        (words.format_number(0.0), "0.0000"),
        (words.format_number(math.inf), "∞"),
        (words.format_number(math.nan), "–"),
        (words.format_percent(0.1234), "12.3%"),
        (words.format_percent(math.nan), "–"),
        (words.format_measure("ece", 0.01234), "1.23%"),
        (words.format_measure("nll", 0.01234), "0.0123"),
        (words.format_interval("error", Estimate(0.2, 0.1, 0.3)), "10.00% to 30.00%"),
        (words.format_interval("error", Estimate(0.2, math.nan, math.nan)), ""),
        (words.format_p_value(0.0004), "< 0.001"),
        (words.format_p_value(0.04), "0.040"),
        (words.format_p_value(math.nan), "–"),
        (words.format_seconds(None), "–"),
        (words.format_seconds(0.001), "< 0.01 s"),
        (words.format_seconds(2.0), "2.00 s"),
        (words.format_count(1234), "1,234"),
        (words.format_count(1234.56), "1,234.6"),
        (
            words.format_parameters({"gamma": -0.5, "temperature": 1.23456, "bias": 2.0}),
            "γ = −0.5, T = 1.235, bias = 2",
        ),
        (words.describe_measure("own_measure").label, "own measure"),
        (words.lower_title("Beta calibration"), "beta calibration"),
        (words.lower_title("Platt scaling"), "Platt scaling"),
        (words.lower_title("Dirichlet calibration"), "Dirichlet calibration"),
        (words.lower_title(""), ""),
        (format_short_count(9999), "9999"),
        (format_short_count(12_345), "12.3k"),
        (format_short_count(4_000_000), "4M"),
        (format_short_count(2.5e9), "2.5G"),
    ],
)
def test_numbers_are_written_for_people(written, expected):
    assert written == expected


def test_a_diagram_is_described_in_words():
    diagram = Diagram((100, 300), (0.5, 0.9), (0.8, 0.9), (0.4, 0.85), (0.6, 0.95))
    assert words.describe_diagram(diagram) == (
        "400 samples in 2 bins, 1 outside the consistency band. "
        "Mean predicted probability 80.0%, observed frequency 87.5%."
    )
    assert words.diagram_means(diagram) == pytest.approx((0.8, 0.875))
