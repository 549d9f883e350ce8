"""The options --slice and --costs: further questions that a report answers."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refocal.predictions import Predictions


def add_questions(command: Any) -> None:
    """Add --slice and --costs."""
    command.add_argument(
        "--slice",
        action="append",
        metavar="COLUMN",
        help="measure the rows with each value of this column of a parquet or csv file, too; may be repeated",
    )
    command.add_argument(
        "--costs",
        metavar="FILE",
        help="JSON with a row of costs for each true class, one cost per decision: compare the costs of decisions",
    )


def read_questions(options: Namespace, predictions: Predictions) -> dict[str, Any]:
    """Read what the options ask about these predictions, as arguments of a report."""
    return {"slices": _read_slices(options.slice or [], predictions), "costs": _read_costs(options.costs)}


def reject_questions(options: Namespace, why: str) -> None:
    """Reject the options where the rows are not in memory."""
    for name in ("slice", "costs"):
        if getattr(options, name):
            msg = f"--{name} needs all rows in memory, but {why}"
            raise ValueError(msg)


def _read_slices(names: list[str], predictions: Predictions) -> dict[str, list[Any]]:
    carried = predictions.carried
    known = [] if carried is None else list(carried.table.column_names)
    for name in names:
        if name not in known:
            msg = f"--slice must name a column of a parquet or csv file, got {name!r}; columns: {', '.join(known)}"
            raise ValueError(msg)
    return {name: carried.table[name].to_pylist() for name in names} if carried is not None else {}


def _read_costs(file: str | None) -> Any:
    if file is None:
        return None
    from refocal._documents import parse_json, read_document

    return parse_json(read_document(file), lambda reason: ValueError(f"--costs must be a file of JSON: {reason}"))
