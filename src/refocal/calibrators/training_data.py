"""Checks of the labels and sample weights that calibrators are fitted to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from refocal import _check
from refocal._containers import to_numpy


def check_labels(y: ArrayLike, rows: int) -> np.ndarray:
    """Check labels (N,): one per row, and finite."""
    labels: np.ndarray = column_or_1d(to_numpy(y, "y", column=True), warn=True)
    if labels.dtype.kind == "f":
        assert_all_finite(labels, input_name="y")
    if len(labels) != rows:
        msg = f"X and y must have one row per sample, got {rows} and {len(labels)} rows"
        raise ValueError(msg)
    return labels


def choose_classes(
    classes: ArrayLike | None, present: np.ndarray, columns: int, names: tuple[str, ...] | None = None
) -> np.ndarray:
    """Choose the label of each column of scores.

    Args:
        classes: The labels that the user gave for the columns, their number, or None.
        present: The sorted distinct labels of the data.
        columns: The number of columns.
        names: The names of the columns, if they have names.

    Returns:
        `classes` if given. Otherwise the names of the columns if all labels are among them, the labels of the data if
        there is one per column, or the column numbers if all labels are column numbers.
    """
    if classes is not None:
        named = list_classes(classes)
        if named.ndim != 1 or len(np.unique(named)) != len(named) or len(named) != columns:
            msg = f"classes must be {columns} different labels, one for each column of X, got {classes!r}"
            raise ValueError(msg)
        return named
    if names is not None and {*present.tolist()} <= {*names}:
        return np.asarray(names)
    if len(present) == columns:
        return present
    if present.dtype.kind in "iu" and present[0] >= 0 and present[-1] < columns:
        return np.arange(columns)
    msg = f"X has scores of {columns} classes, but y has {len(present)} different labels"
    if len(present) < columns:
        msg += f" that are not all integers in 0 ... {columns - 1}: pass classes= to name the columns"
    raise ValueError(msg)


def list_classes(classes: ArrayLike) -> np.ndarray:
    """List the labels that the user gave for the columns; a number K stands for 0 ... K - 1."""
    return np.arange(_check.count(classes, "classes", least=2)) if np.ndim(classes) == 0 else np.asarray(classes)


def encode_labels(labels: np.ndarray, classes: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Convert labels to column numbers.

    Args:
        labels: Labels (N,).
        classes: The label of each column (K,).
        present: The sorted distinct labels of `labels`.
    """
    order = np.argsort(classes)
    position = np.minimum(np.searchsorted(classes, present, sorter=order), len(classes) - 1)
    missing = classes[order[position]] != present
    if np.any(missing):
        msg = f"labels in y must be among classes, got {present[missing][0]!r}"
        raise ValueError(msg)
    if classes.dtype.kind in "iu" and np.array_equal(classes, np.arange(len(classes))):
        return labels.astype(np.intp, copy=False)
    return order[np.searchsorted(classes, labels, sorter=order)]


def find_present(labels: np.ndarray) -> np.ndarray:
    """Find the distinct labels, sorted. Small integers are counted, which is faster than sorting them."""
    if labels.dtype.kind in "iu" and len(labels) and int(labels.max()) - (low := int(labels.min())) < 1 << 16:
        return (np.flatnonzero(np.bincount(labels.astype(np.int64) - low)) + low).astype(labels.dtype)
    check_classification_targets(labels)
    return np.unique(labels)


def check_sample_weight(sample_weight: Any, rows: int) -> np.ndarray | None:
    """Check sample weights (N,); a single number becomes one weight per row, and None stays None."""
    if sample_weight is None:
        return None
    weights = np.asarray(to_numpy(sample_weight, "sample_weight", column=True), dtype=np.float64)
    if weights.ndim == 0:
        weights = np.full(rows, weights)
    if weights.shape != (rows,):
        msg = f"sample_weight must have shape ({rows},), one weight per row, got {weights.shape}"
        raise ValueError(msg)
    bad = ~((weights >= 0) & np.isfinite(weights))
    _check.reject_rows(bad, weights, "sample_weight must be finite and not negative")
    if not np.any(weights):
        msg = "sample_weight must not be zero everywhere"
        raise ValueError(msg)
    _check.sample_weights(weights, "sample_weight")
    return weights
