"""Several files of predictions beside each other, and files that are larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from refocal import metrics
from refocal.predictions import Predictions, PredictionsReader
from refocal.report import Report, words
from refocal.report.evaluation import given_probs

_TESTED = (metrics.nll, metrics.ece)


def paired(several: Sequence[Predictions], progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Tests of the first file against each other one, where they hold the same samples."""
    tests: list[dict[str, Any]] = []
    first = several[0]
    labels = np.asarray(first.labels)
    for number, other in enumerate(several[1:], start=1):
        if not np.array_equal(np.asarray(other.labels), labels):
            msg = "files beside each other must hold the same samples in the same order; their labels differ"
            raise ValueError(msg)
        if not np.array_equal(_weights(other), _weights(first)):
            msg = "files beside each other must have the same weights, or none"
            raise ValueError(msg)
        progress("comparing")
        one, two = (given_probs(each.scores, input=each.kind, log=False) for each in (first, other))
        for measure in _TESTED:
            test = metrics.paired_test(measure, one, two, labels, weights=first.weights)
            tests.append({"measure": measure.__name__, "first": 0, "second": number, "p_value": test.p_value})
    return tests


def side_by_side(reports: Sequence[Report], tests: Sequence[dict[str, Any]]) -> RenderableType:
    """A column a file."""
    shown = Table()
    shown.add_column("measure")
    for report in reports:
        shown.add_column(Text(words.printable(report.source)), justify="right")
    for name in words.measure_names(reports[0]):
        values = [report.given.measures.get(name) for report in reports]
        cells = [
            words.MISSING if value is None else f"{words.measured(name, value.value)}\n{words.interval(name, value)}"
            for value in values
        ]
        shown.add_row(words.wording(name).label, *cells)
    shown.add_row("calibrated? p-value", *(words.p_value(report.given.p_value) for report in reports))
    for measure in dict.fromkeys(test["measure"] for test in tests):
        cells = [words.p_value(test["p_value"]) for test in tests if test["measure"] == measure]
        shown.add_row(f"{words.wording(measure).label} differs from the first? p-value", "", *cells)
    return Group(shown, Text("Small print: 95 % confidence limits."))


def streamed(files: Sequence[str], *, split: str | None, progress: Callable[[str], None]) -> tuple[RenderableType, Any]:
    """Measures without intervals, in the memory of one block."""
    summaries = {file: _summary(file, split=split, progress=progress) for file in files}
    shown = Table(title="measured block by block: no intervals")
    shown.add_column("measure")
    for file in files:
        shown.add_column(Text(words.printable(Path(file).name)), justify="right")
    for name in next(iter(summaries.values())):
        shown.add_row(words.wording(name).label, *(f"{summary[name]:.6g}" for summary in summaries.values()))
    content = {
        file: {name: value if np.isfinite(value) else None for name, value in summary.items()}
        for file, summary in summaries.items()
    }
    return shown, {"streamed": content}


def _summary(file: str, *, split: str | None, progress: Callable[[str], None]) -> dict[str, float]:
    accumulator: metrics.CalibrationAccumulator | None = None
    rows = 0
    with PredictionsReader(file) as blocks:
        for whole in blocks:
            rows += len(whole)
            progress(f"measuring {file}, row {rows:,}" + ("" if blocks.rows is None else f" of {blocks.rows:,}"))
            if whole.labels is None:
                msg = f"{file} has no labels, which are needed to measure"
                raise ValueError(msg)
            if split is not None and whole.split is not None and not (whole.split == split).any():
                continue
            block = whole if split is None else whole.select(split)
            accumulator = accumulator or metrics.CalibrationAccumulator()
            probs = given_probs(block.scores, input=block.kind, log=False)
            accumulator.update(probs, block.labels, weights=block.weights)
    if accumulator is None:
        msg = f"{file} has no rows of split {split!r}"
        raise ValueError(msg)
    return accumulator.compute()._asdict()


def _weights(predictions: Predictions) -> np.ndarray:
    return np.ones(len(predictions)) if predictions.weights is None else predictions.weights
