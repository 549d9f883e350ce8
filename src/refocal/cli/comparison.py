"""Files of predictions side by side: paired tests, and a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.console import RenderableType

from refocal import metrics
from refocal.calibrators.conversion import scores_to_probs
from refocal.predictions import Predictions
from refocal.report import Report, words
from refocal.report.table import compare_reports

_TESTED = (metrics.nll, metrics.ece)


class Column(NamedTuple):
    """Predictions that get a column of the table.

    Attributes:
        name: Name of the file, or of the file and the split.
        split: Name of the split, if its file has several.
        predictions: The predictions.
    """

    name: str
    split: str | None
    predictions: Predictions


def test_pairs(columns: Sequence[Column], progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Test the first file against each of the others, split by split.

    Args:
        columns: Predictions; those of one split, and those of files without splits, are for the same samples.
        progress: Called with a description of each step.

    Returns:
        One record per test, for JSON.
    """
    tests: list[dict[str, Any]] = []
    firsts: dict[str | None, int] = {}
    for number, column in enumerate(columns):
        place = firsts.setdefault(column.split, number)
        if place == number:
            continue
        first, other = columns[place].predictions, column.predictions
        labels = np.asarray(first.labels)
        if not np.array_equal(np.asarray(other.labels), labels):
            msg = (
                "files that are compared must hold the same samples in the same order, but their labels differ; "
                "if they are parts of one data set, add --engine local or give a quoted pattern"
            )
            raise ValueError(msg)
        if not np.array_equal(_weights(other), _weights(first)):
            msg = "files that are compared must have the same weights, or none"
            raise ValueError(msg)
        progress("comparing")
        one, two = (scores_to_probs(each.scores, input=each.input) for each in (first, other))
        for measure in _TESTED:
            test = metrics.paired_test(measure, one, two, labels, sample_weight=first.sample_weight)
            tests.append({"measure": measure.__name__, "first": place, "second": number, "p_value": test.p_value})
    return tests


def build_table(reports: Sequence[Report], tests: Sequence[dict[str, Any]]) -> RenderableType:
    """Build a table with one column per file."""
    rows = []
    for measure in dict.fromkeys(test["measure"] for test in tests):
        found = {test["second"]: test["p_value"] for test in tests if test["measure"] == measure}
        cells = [words.format_p_value(found[number]) if number in found else "" for number in range(len(reports))]
        rows.append((f"{words.describe_measure(measure).label} differs from the first? p-value", *cells))
    return compare_reports(reports, *rows)


def _weights(predictions: Predictions) -> np.ndarray:
    return np.ones(len(predictions)) if predictions.sample_weight is None else predictions.sample_weight
