"""The remarks of the table of coverage, benchmarks/intervals.py, and the tables that pages quote."""

from __future__ import annotations

import numpy as np
import pytest

from benchmark_files import BENCHMARKS, load

intervals = load("intervals")
MEANS = [f"interval of {name}" for name in ("nll", "brier", "error", "confidence_share", "focal_score", "kl_to_")]
TABLE = (BENCHMARKS / "results/intervals.md").read_text(encoding="utf-8")


def read_page(name):
    """A page without line breaks."""
    return " ".join((BENCHMARKS.parent / f"docs/how-to/{name}.md").read_text(encoding="utf-8").split())


def read_cells(name):
    """The rows of a committed table, without its head."""
    text = (BENCHMARKS / f"results/{name}.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in row] for row in rows]


def list_rows():
    rows = [line.split("|") for line in TABLE.splitlines() if line.startswith("| ") and line.count("|") == 12][1:]
    return [[cell.strip() for cell in row[1:-1]] for row in rows]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (intervals.Case("ece", "calibrated", 1_000), intervals.ZERO),
        (intervals.Case("classwise_ece", "calibrated", 1_000, 100), intervals.ZERO),
        (intervals.Case("ece", ".05 too unsure", 1_000), intervals.PLACE),
        (intervals.Case("ece", "calibrated", 20), intervals.FEW),
        (intervals.Case("ece", "always 1, right in .99", 1_000), intervals.FEW),
    ],
)
def test_a_share_above_the_goal_has_its_reason(case, reason):
    assert intervals.remark(case, 0.99) == reason
    assert intervals.remark(case, 1 - np.mean([0.0025]) - 0.0175) == ""  # .98 up to rounding


def test_0_is_missed_only_by_intervals_above_it():
    assert all(float(row[8]) == 0 for row in list_rows() if row[2] == "calibrated")


def test_the_committed_table_has_the_remarks_and_the_summary_of_the_script():
    rows = list_rows()
    assert len(rows) == len(intervals.CASES)
    covered = [round(float(row[6]) * int(row[4])) / int(row[4]) for row in rows]
    remarks = [intervals.remark(case, share) for case, share in zip(intervals.CASES, covered, strict=True)]
    assert remarks == [row[10] for row in rows]
    assert intervals.summarize(covered, remarks) in TABLE


def test_the_page_quotes_the_table_of_the_parts_of_the_brier_score():
    def say(part, count):
        shares = [100 * float(row[4]) for row in read_cells("refinement_intervals") if row[:3:2] == [part, count]]
        assert len(shares) == 4
        return f"{min(shares):.1f}% to {max(shares):.1f}%"

    said = {
        count: [say(part, count) for part in ("refinement", "resolution")] for count in ("2,000", "500", "100", "20")
    }
    first, page = said.pop("2,000"), read_page("metrics")
    assert f"With 2,000 rows it is {first[0]} for the refinement and {first[1]} for the resolution" in page
    for count, (refinement, resolution) in said.items():
        assert f"with {count} rows, {refinement} and {resolution}" in page


def test_the_table_of_other_limits_has_the_rows_of_its_script():
    load("verdict_situations")
    script = load("more_intervals")
    cells = read_cells("more_intervals")
    assert [row[:3] for row in cells] == [[row.promise, row.data, f"{row.count:,}"] for row in script.ROWS]
    remarks = [script.remark(row, float(cell[5])) for row, cell in zip(script.ROWS, cells, strict=True)]
    assert [cell[7] for cell in cells] == remarks


@pytest.mark.parametrize(
    ("name", "share", "reason"), [("intervals", 6, 10), ("more_intervals", 5, 7), ("refinement_intervals", 4, 8)]
)
def test_every_share_outside_the_goal_has_its_reason(name, share, reason):
    rows = [row for row in read_cells(name) if name != "more_intervals" or row[4] == "0.95"]
    outside = [row for row in rows if not 0.93 <= float(row[share]) <= 0.98]
    assert outside
    assert [row for row in outside if not row[reason]] == []


@pytest.mark.parametrize(
    ("page", "promises", "rows", "said"),
    [
        ("metrics", MEANS, "100", "in {least} to {most} of 12,000 samples of 100 rows"),
        ("metrics", MEANS, "1,000", "in {least} to {most} of 12,000 samples of 1,000 rows"),
        ("metrics", ["interval of au"], "100", "{first} and {last} of 1,200 samples of 100 rows"),
        ("metrics", ["interval of au"], "1,000", "{first} and {last} of those of 1,000"),
        ("metrics", ["detectable_frequency"], "2,000", "seen in {first} of 300 samples for the frequency of y = 1"),
        ("metrics", ["detectable"], "2,000", "and in {first} for an ECE"),
        ("metrics", ["10 million"], "20,000", "{first} of 300 calibrated data sets of 20,000 rows"),
        ("metrics", ["pieces forced"], "20,000", "and {first} if parts"),
        ("calibrators", ["temperature_error_ of TemperatureScaling"], "500", "in {first} of 600 fits to 500 rows"),
        ("calibrators", ["FocalTemperatureScaling"], "2,000", "in {last} and {first} of 300"),
        ("prediction-sets", ["limits of the coverage"], "", "this probability in {least} to {most} of 600 samples"),
    ],
)
def test_pages_quote_the_table_of_other_limits(page, promises, rows, said):
    found = [
        float(row[5])
        for row in read_cells("more_intervals")
        if any(promise in row[0] for promise in promises) and rows in ("", row[2])
    ]
    numbers = {"least": min(found), "most": max(found), "first": found[0], "last": found[-1]}
    assert said.format(**{name: f"{100 * number:.1f}%" for name, number in numbers.items()}) in read_page(page)


def test_the_page_quotes_the_least_and_largest_coverage_of_other_calibration_errors():
    errors = [row for row in read_cells("more_intervals") if row[2] == "300" and row[0].startswith("interval")]
    shares = [float(row[5]) for row in errors]
    assert f"the coverage is {min(shares):.3f} to {max(shares):.3f} with 300 rows" in read_page("metrics")


def test_the_page_quotes_the_table_of_paired_tests():
    rows = read_cells("paired_tests")
    equal = rows[: [row[0] for row in rows].index("*unequal models*")]

    def say(*measures):
        shares = [100 * float(share) for row in equal if not measures or row[1] in measures for share in row[2:]]
        return f"{min(shares):.1f}%", f"{max(shares):.1f}%"

    page = read_page("metrics")
    assert f"in at most {say()[1]} of 400 samples" in page
    assert f"in at most {say('kernel_calibration_error')[1]} for the kernel error" in page
    means = say("nll", "brier", "error")
    assert f"NLL, the Brier score and the error rate it is {means[0]} to {means[1]} of 20,000 samples" in page
    assert f"confident predictions at most {say('confidence_share share')[1]}" in page
    assert "rejects only {} to {}".format(*say("confidence_share accuracy")) in page
