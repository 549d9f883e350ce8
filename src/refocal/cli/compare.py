"""Several files of predictions beside each other, and files that are larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from refocal import metrics
from refocal.calibrators.conversion import scores_to_probs
from refocal.metrics import CalibrationSummary
from refocal.predictions import Predictions
from refocal.report import Report, words

if TYPE_CHECKING:
    from refocal.scale.engines import Progress

_TESTED = (metrics.nll, metrics.ece)


def paired(several: Sequence[Predictions], progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Tests of the first file against each other one, where they hold the same samples."""
    tests: list[dict[str, Any]] = []
    first = several[0]
    labels = np.asarray(first.labels)
    for number, other in enumerate(several[1:], start=1):
        if not np.array_equal(np.asarray(other.labels), labels):
            msg = (
                "files beside each other must hold the same samples in the same order, and their labels differ; "
                "as parts of one data set they are taken with --engine local, or by a pattern in quotes"
            )
            raise ValueError(msg)
        if not np.array_equal(_weights(other), _weights(first)):
            msg = "files beside each other must have the same weights, or none"
            raise ValueError(msg)
        progress("comparing")
        one, two = (scores_to_probs(each.scores, input=each.input) for each in (first, other))
        for measure in _TESTED:
            test = metrics.paired_test(measure, one, two, labels, sample_weight=first.sample_weight)
            tests.append({"measure": measure.__name__, "first": 0, "second": number, "p_value": test.p_value})
    return tests


def side_by_side(reports: Sequence[Report], tests: Sequence[dict[str, Any]]) -> RenderableType:
    """A column a file."""
    shown = Table()
    shown.add_column("measure")
    for report in reports:
        shown.add_column(Text(words.printable(report.source)), justify="right")
    for name in words.list_measures(reports[0]):
        values = [report.given.measures.get(name) for report in reports]
        cells = [
            words.MISSING
            if value is None
            else f"{words.format_measure(name, value.value)}\n{words.format_interval(name, value)}"
            for value in values
        ]
        shown.add_row(words.describe_measure(name).label, *cells)
    shown.add_row("calibrated? p-value", *(words.format_p_value(report.given.p_value) for report in reports))
    for measure in dict.fromkeys(test["measure"] for test in tests):
        cells = [words.format_p_value(test["p_value"]) for test in tests if test["measure"] == measure]
        shown.add_row(f"{words.describe_measure(measure).label} differs from the first? p-value", "", *cells)
    return Group(shown, Text(words.LIMITS))


def streamed(files: Sequence[str], *, split: str | None, progress: Progress) -> tuple[RenderableType, Any]:
    """Measures without intervals, in the memory of one block."""
    from refocal import scale

    summaries = [scale.evaluate(file, split=split, progress=progress) for file in files]
    shown = measures([Path(file).name for file in files], summaries)
    return shown, {"streamed": {file: finite(summary) for file, summary in zip(files, summaries, strict=True)}}


def measures(titles: Sequence[str], summaries: Sequence[CalibrationSummary]) -> RenderableType:
    """A column for each summary."""
    shown = Table(title="measured block by block: no intervals")
    shown.add_column("measure")
    for title in titles:
        shown.add_column(Text(words.printable(title)), justify="right")
    shown.add_row("Samples", *(words.format_count(summary.samples) for summary in summaries))
    for name in CalibrationSummary._fields[1:]:
        cells = (words.format_measure(name, getattr(summary, name)) for summary in summaries)
        shown.add_row(words.describe_measure(name).label, *cells)
    return shown


def finite(summary: CalibrationSummary) -> dict[str, float | None]:
    """Measures for JSON, which has no NaN."""
    return {name: value if np.isfinite(value) else None for name, value in summary._asdict().items()}


def _weights(predictions: Predictions) -> np.ndarray:
    return np.ones(len(predictions)) if predictions.sample_weight is None else predictions.sample_weight
