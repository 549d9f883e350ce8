"""Several files of predictions beside each other, and files that are larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType

from refocal import metrics
from refocal.calibrators.conversion import scores_to_probs
from refocal.predictions import Predictions
from refocal.report import Report, words
from refocal.report.table import compare_reports

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


def side_by_side(reports: Sequence[Report], tests: Sequence[dict[str, Any]] = ()) -> RenderableType:
    """Build a table with a column for each file."""
    rows = []
    for measure in dict.fromkeys(test["measure"] for test in tests):
        cells = [words.format_p_value(test["p_value"]) for test in tests if test["measure"] == measure]
        rows.append((f"{words.describe_measure(measure).label} differs from the first? p-value", "", *cells))
    return compare_reports(reports, *rows)


def streamed(files: Sequence[str], *, split: str | None, progress: Progress) -> list[Report]:
    """Measure each file without intervals, in the memory of one block."""
    from refocal import scale

    return [scale.evaluate(file, split=split, source=Path(file).name, progress=progress) for file in files]


def _weights(predictions: Predictions) -> np.ndarray:
    return np.ones(len(predictions)) if predictions.sample_weight is None else predictions.sample_weight
