"""The tables of the calibrator arena, from its raw numbers."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from arena_experiments import FAMILIES
from arena_methods import METHODS, REFERENCE, RIVAL, SETTINGS, TENTH, UNSEEN

from calibrators import cpu

FLOOR = 1e-12  # of probabilities, for the log loss
NEGLIGIBLE = 1e-5  # nats; differences of rounding and of solvers are below, and would often exceed their noise
CLASS_GROUPS = ((2, 2), (3, 9), (10, 30), (31, 1000))
Numbers = dict[str, Any]


def list_methods(results: dict[str, Numbers]) -> list[str]:
    """List the methods that were run, in the order of the table of methods."""
    present = {name for numbers in results.values() for name in numbers["methods"]}
    return [name for name in METHODS if name in present] + sorted(present - METHODS.keys())


def find_loss(numbers: Numbers, method: str) -> float:
    """The log loss of a method in an experiment, infinite for a fit that failed; NaN if it was not run."""
    found = numbers["methods"].get(method, {"log_loss": np.nan})
    return found.get("log_loss", np.inf)


def count_wins(results: list[Numbers], method: str, other: str) -> str:
    """Count the experiments with a strictly lower log loss than another method; a fit that fails loses."""
    pairs = np.array([[find_loss(numbers, name) for name in (method, other)] for numbers in results])
    pairs = pairs[~np.isnan(pairs).any(axis=1)]
    return "–" if method == other or not len(pairs) else f"{np.sum(pairs[:, 0] < pairs[:, 1])} of {len(pairs)}"


def count_beyond_noise(results: list[Numbers], method: str, other: str, sign: int, score: str = "log_loss") -> str:
    """Count mean paired differences, times the sign, that are above two standard errors and not negligible."""
    pairs = [
        numbers["methods"][method]["against"][other][score]
        for numbers in results
        if other in numbers["methods"].get(method, {}).get("against", {})
    ]
    return (
        "–"
        if method == other or not pairs
        else str(sum(sign * mean > max(2 * error, NEGLIGIBLE) for mean, error in pairs))
    )


def average(results: list[Numbers], method: str, measure: str) -> str:
    """The mean over experiments; a dash if the method was not run on all."""
    values = [numbers["methods"].get(method, {}).get(measure) for numbers in results]
    return f"{np.mean(values):.4f}" if values and None not in values else "–"


def without_failures(results: list[Numbers]) -> list[Numbers]:
    """Choose the experiments where no method failed."""
    return [numbers for numbers in results if not any("error" in found for found in numbers["methods"].values())]


def quality_rows(results: list[Numbers], methods: list[str]) -> list[str]:
    """One row per method that ran on any of the experiments."""
    rows = []
    common = without_failures(results)
    for method in methods:
        run = [numbers["methods"][method] for numbers in results if method in numbers["methods"]]
        if not run:
            continue
        cells = [str(sum("error" in found for found in run)), average(common, method, "log_loss")]
        cells += [count_wins(results, method, other) for other in (REFERENCE, RIVAL)]
        cells += [count_beyond_noise(results, method, other, sign) for other in (REFERENCE, RIVAL) for sign in (-1, 1)]
        cells += [average(common, method, measure) for measure in ("brier", "ece", "accuracy")]
        rows.append(f"| {method} | {' | '.join(cells)} |")
    return rows


def brier_rows(families: dict[str, list[Numbers]], methods: list[str]) -> list[str]:
    """For each family, how often a method has a lower Brier score than the reference, and how often beyond noise."""
    rows = []
    for method in methods:
        cells = []
        for results in families.values():
            pairs = [numbers["methods"].get(method, {}).get("against", {}).get(REFERENCE) for numbers in results]
            away = [pair["brier"][0] for pair in pairs if pair is not None]
            better, worse = (count_beyond_noise(results, method, REFERENCE, sign, "brier") for sign in (-1, 1))
            cells.append(f"{sum(each < 0 for each in away)} of {len(away)} ({better}, {worse})" if away else "–")
        if method != REFERENCE:
            rows.append(f"| {method} | {' | '.join(cells)} |")
    return rows


def time_rows(results: list[Numbers], methods: list[str]) -> list[str]:
    """The median time to fit by number of classes, and the largest."""
    rows = []
    for method in methods:
        times = [
            (numbers["classes"], numbers["methods"][method]["seconds"])
            for numbers in results
            if "seconds" in numbers["methods"].get(method, {})
        ]
        if not times:
            continue
        groups = [[seconds for classes, seconds in times if low <= classes <= high] for low, high in CLASS_GROUPS]
        cells = [f"{np.median(group):.4f}" if group else "–" for group in groups]
        largest = max(seconds for _, seconds in times)
        rows.append(f"| {method} | {' | '.join(cells)} | {largest:.3f} |")
    return rows


def ratio_rows(times: list[str]) -> list[str]:
    """The medians of the rows of times, divided by those of the rival."""
    medians = {cells[0]: cells[1:5] for cells in ([cell.strip() for cell in row.split("|")[1:-1]] for row in times)}
    base = medians.get(RIVAL, [])
    rows = []
    for method, cells in medians.items() if base else ():
        ratios = [
            "–" if "–" in pair else f"{float(pair[0]) / float(pair[1]):.2f}" for pair in zip(cells, base, strict=True)
        ]
        rows.append(f"| {method} | {' | '.join(ratios)} |")
    return rows


def missing_line(methods: list[str]) -> str:
    """The methods of the script that are not in the table."""
    missing = [name for name in METHODS if name not in methods]
    return (
        f"Not in the tables, because the run did not name them: {', '.join(missing)}."
        if missing
        else "No method is left out."
    )


def failure_lines(results: dict[str, Numbers], methods: list[str]) -> list[str]:
    """The fits that failed, counted by method and by message without its numbers."""
    failures = Counter(
        (method, re.sub(r"[\d.]+", "…", numbers["methods"][method]["error"].splitlines()[0][:150]))
        for numbers in results.values()
        for method in methods
        if "error" in numbers["methods"].get(method, {})
    )
    return [f"- {method}, {count}: {message}" for (method, message), count in failures.items()]


def choice_line(results: dict[str, Numbers]) -> list[str]:
    """What the automatic choice chose, by family."""
    lines = []
    for method in ("auto", *(name for name in METHODS if name.startswith("auto"))):
        for family in FAMILIES:
            chosen = Counter(
                numbers["methods"][method]["chosen"]
                for numbers in results.values()
                if numbers["family"] == family and "chosen" in numbers["methods"].get(method, {})
            )
            told = ", ".join(f"{name} {count}" for name, count in chosen.most_common())
            lines += [f"- {method}, {family}: {told}"] if told else []
    return lines


def render(results: dict[str, Numbers], jobs: int) -> str:
    """Write all tables in Markdown."""
    methods = list_methods(results)
    families = {family: [each for each in results.values() if each["family"] == family] for family in FAMILIES}
    counts = ", ".join(f"{len(each)} {family}" for family, each in families.items() if each)
    lines = [
        "# The calibrator arena",
        "",
        f"{len(results)} experiments: {counts}. Every method is fitted to the calibration part and measured on the "
        f"test part, with one thread and {jobs} {'process' if jobs == 1 else 'processes'}. Log loss is the mean of "
        f"−log p of the true class, with probabilities of at least {FLOOR:g} for every method; Brier is summed over "
        "classes; ECE has 15 bins of equal mass. A win is a strictly lower test log loss; a fit that fails loses. "
        "Beyond noise: the mean paired difference of the log loss of test rows is above two standard errors, and above "
        f"{NEGLIGIBLE:g}. Means are over the experiments where no method failed, whose number is in parentheses.",
        "",
        f"{SETTINGS} `benchmarks/arena_experiments.py` says how experiments are made and which are left out.",
        "",
        f"{UNSEEN} {missing_line(methods)}",
    ]
    for family, part in [*families.items(), ("all", list(results.values()))]:
        if part:
            lines += [
                "",
                f"## {family}: {len(part)} experiments ({len(without_failures(part))})",
                "",
                f"| method | failed | log loss | wins against {REFERENCE} | wins against {RIVAL} | better than "
                f"{REFERENCE} beyond noise | worse than {REFERENCE} beyond noise | better than {RIVAL} beyond noise | "
                f"worse than {RIVAL} beyond noise | Brier | ECE | accuracy |",
                "|---|---|---|---|---|---|---|---|---|---|---|---|",
                *quality_rows(part, methods),
            ]
    present = {family: part for family, part in families.items() if part}
    lines += [
        "",
        f"## Brier score against {REFERENCE}",
        "",
        "Experiments with a strictly lower Brier score; in parentheses those that are better, and worse, beyond noise.",
        "",
        f"| method | {' | '.join(present)} |",
        f"|---|{'---|' * len(present)}",
        *brier_rows(present, methods),
    ]
    ranges = (f"{low}" if low == high else f"{low} to {high}" for low, high in CLASS_GROUPS[:-1])
    heading = f"| method | {' | '.join(f'median, {each} classes' for each in ranges)} | median, more classes |"
    times = time_rows(list(results.values()), methods)
    lines += ["", "## Seconds to fit", "", f"{heading} largest |", "|---|---|---|---|---|---|", *times]
    if ratios := ratio_rows(times):
        lines += ["", f"## Seconds to fit, divided by those of {RIVAL}", "", heading, "|---|---|---|---|---|", *ratios]
        lines += ["", TENTH]
    for title, part in (("Chosen", choice_line(results)), ("Failures", failure_lines(results, methods))):
        lines += ["", f"## {title}", "", *part] if part else []
    versions = dict.fromkeys(METHODS[name].version() or METHODS[name].module for name in methods if name in METHODS)
    lines += [
        "",
        f"{datetime.now(UTC):%Y-%m-%d}; {cpu()}, {os.cpu_count()} cores; Python {platform.python_version()}, NumPy "
        f"{np.__version__}, PyTorch {torch.__version__.split('+')[0]}, {', '.join(versions)}; "
        f"`python {shlex.join(sys.argv)}`.",
        "",
    ]
    return "\n".join(lines)
