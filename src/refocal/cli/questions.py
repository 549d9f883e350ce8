"""The options --slice, --costs and --sets: further questions that a report answers."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refocal.predictions import Predictions

_EXAMPLE = "such as [[0, 1], [5, 0]] for 2 classes"
_SHOWN = 5  # of more classes, an example would be too long


def add_questions(command: Any) -> None:
    """Add --slice, --costs and --sets."""
    command.add_argument(
        "--slice",
        action="append",
        metavar="COLUMN",
        help="measure the rows with each value of this column of a parquet or csv file, and those without a value; "
        "may be repeated",
    )
    command.add_argument(
        "--costs",
        metavar="FILE",
        help="compare the costs of decisions: JSON with a row of costs for each true class, one cost per decision, "
        "such as [[0, 1], [5, 0]]",
    )
    command.add_argument(
        "--sets",
        type=float,
        metavar="COVERAGE",
        help="measure sets of classes that contain the true class with this probability, such as 0.9",
    )


def load_costs(options: Namespace) -> list[list[float]] | None:
    """Read the file of costs, before any other work; None if there is none."""
    if options.costs is None:
        return None
    from refocal._documents import parse_json, read_document

    content = read_document(options.costs)
    costs = parse_json(content, lambda reason: ValueError(f"--costs must be a file of JSON: {reason}"))
    if problem := _find_problem(costs):
        msg = f"--costs must hold one row for each true class, with one number per decision, {_EXAMPLE}; {problem}"
        raise ValueError(msg)
    return [[float(cost) for cost in row] for row in costs]


def read_questions(options: Namespace, costs: list[list[float]] | None, predictions: Predictions) -> dict[str, Any]:
    """Check what is asked about these predictions, before any fit, and return it as arguments of a report.

    Args:
        options: They name the columns of slices, and the coverage of prediction sets.
        costs: From `load_costs`.
        predictions: What will be measured.
    """
    from refocal.report.subgroups import read_slices

    classes = max([2, *predictions.scores.shape[1:]])
    if costs is not None and len(costs) != classes:
        example = f", {_show_costs(classes)}" if classes <= _SHOWN else ""
        msg = (
            f"--costs must have {classes:,} rows of {classes:,} costs, as there are {classes:,} classes{example}; "
            f"got {len(costs):,} rows"
        )
        raise ValueError(msg)
    slices = _read_slices(options.slice or [], predictions)
    columns = read_slices(slices, len(predictions), name_column="--slice {}".format)
    return {"slices": columns, "costs": costs, "sets": options.sets}


def reject_questions(options: Namespace, why: str) -> None:
    """Reject the options where the rows are not in memory."""
    for name in ("slice", "costs", "sets"):
        if getattr(options, name):
            msg = f"--{name} needs all rows in memory, but {why}"
            raise ValueError(msg)


def check_slices(options: Namespace, files: Sequence[str]) -> None:
    """Reject --slice for files without other columns, before any work."""
    found = next((file for file in files if file.lower().endswith(".npz")), None)
    if options.slice and found is not None:
        msg = f"--slice needs a column of a parquet or csv file, but {found} is npz, which has none: save it as parquet"
        raise ValueError(msg)


def _read_slices(names: list[str], predictions: Predictions) -> dict[str, list[Any]]:
    from refocal.predictions.names import describe_names

    carried = predictions.carried
    known = [] if carried is None else list(dict.fromkeys([*carried.table.column_names, *carried.others]))
    for name in names:
        if name not in known:
            scores = () if carried is None else carried.scores
            msg = (
                f"--slice must name a column of a parquet or csv file that holds no scores, got {name!r}; columns: "
                f"{describe_names(known)}; scores: {describe_names(scores)}"
            )
            raise ValueError(msg)
    return {name: carried.table[name].to_pylist() for name in names} if carried is not None else {}


def _find_problem(costs: Any) -> str | None:
    """Say what keeps a document from being a square matrix of numbers."""
    if not isinstance(costs, list) or len(costs) < 2 or not all(isinstance(row, list) for row in costs):
        return f"got {costs!r:.100}"
    for number, row in enumerate(costs, start=1):
        if len(row) != len(costs):
            return f"there are {len(costs):,} rows, but row {number:,} has {len(row):,} numbers"
        for cost in row:
            if isinstance(cost, bool) or not isinstance(cost, (int, float)) or not math.isfinite(cost):
                return f"row {number:,} has {json.dumps(cost):.100}"
    return None


def _show_costs(classes: int) -> str:
    rows = [[int(decision != truth) for decision in range(classes)] for truth in range(classes)]
    return f"such as {json.dumps(rows)}"
