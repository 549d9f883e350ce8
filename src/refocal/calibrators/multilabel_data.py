"""Reading the data of a multi-label task: one sigmoid score and one answer, 0 or 1, per row and class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from refocal import _check
from refocal._arrays import namespace
from refocal._check import Input
from refocal._containers import check_order, column_names, to_array, to_numpy
from refocal._probability_look import TO_SAY, resolve_input


def read_event_scores(
    scores: Any, name: str, *, input: Input | None, names: Sequence[str] | None = None, remedy: str = TO_SAY
) -> tuple[np.ndarray, Input]:
    """Check scores (N, K) of independent classes.

    Args:
        scores: Logits or probabilities in any container. Rows of probabilities need not sum to 1.
        name: Their name in messages.
        input: "logits", "probs", or None for logits that do not look like probabilities.
        names: The expected names of the columns, if they have names.
        remedy: What the message about scores that look like probabilities tells the caller to do.

    Returns:
        The scores in NumPy, and what they are.
    """
    check_order(column_names(scores), names, name)
    array = to_numpy(to_array(scores, name), name)
    xp, array = _check.floating(array, name)
    if array.ndim != 2 or array.size == 0:
        msg = f"{name} must have shape (N, K), one column per class and at least one row, got {array.shape}"
        raise ValueError(msg)
    # each value is a score of its own, so that rows tell no more than one long column
    kind = resolve_input(input, array.reshape(-1, 1), remedy=remedy)
    if kind == "probs":
        _check.probabilities(array, name, xp=xp, hint=_check.FOR_LOGITS)
    else:
        _check.reject_rows(~np.isfinite(array), array, f"{name} must be finite", namespace(array))
    return array, kind


def read_event_labels(labels: Any, shape: tuple[int, ...], names: Sequence[str] | None, name: str) -> np.ndarray:
    """Check answers (N, K) of 0 and 1, or booleans, for scores of this shape; they become small integers."""
    check_order(column_names(labels), names, name)
    array = to_numpy(labels, name)
    if array.shape != shape:
        msg = f"{name} must have one answer per score, shape {shape}, got {array.shape}"
        raise ValueError(msg)
    if array.dtype.kind not in "biuf":
        msg = f"{name} must be 0 or 1, or booleans, got dtype {array.dtype}"
        raise TypeError(msg)
    if array.dtype.kind != "b":
        _check.reject_rows((array != 0) & (array != 1), array, f"{name} must be 0 or 1")
    return array.astype(np.int8)


def name_columns(names: Sequence[str] | None, scores: Any, labels: Any) -> tuple[str, ...] | None:
    """Return the names that were given, or those of the columns of a frame of scores or labels; None without names."""
    if names is not None:
        return tuple(names)
    return column_names(scores) or column_names(labels)
