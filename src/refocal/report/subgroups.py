"""Calibration of parts of the data: the classes that are worst off, and slices by the values of a column."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from refocal import metrics
from refocal._containers import is_frame, is_missing, list_columns, list_values
from refocal.report.answers import Subgroup, SubgroupCalibration
from refocal.report.record import Estimate
from refocal.stats.binning import BINS, class_sums
from refocal.stats.calibrated_sums import adjust_holm
from refocal.stats.weighted_mean import estimate_mean

Slices = Mapping[str, ArrayLike] | Any  # Any: a frame of pandas or polars, or an Arrow table
_WORST = 10
_LEAST = 10  # with fewer samples, a slice gets neither an interval nor a test
_MOST_VALUES = 100
_MISSING = "(missing)"


def find_worst_classes(
    methods: Sequence[np.ndarray], labels: np.ndarray, sample_weight: np.ndarray | None, class_names: Sequence[str]
) -> tuple[Subgroup, ...]:
    """Find the classes whose probabilities have the largest ECE.

    Args:
        methods: Probabilities (N, K) as given and, if they differ, those of the recommended method.
        labels: Class indices (N,).
        sample_weight: One weight per row, or None.
        class_names: One name per class.
    """
    samples, predicted, hits = class_sums(methods[0], labels, sample_weight, bins=BINS)
    errors = np.abs(predicted - hits).sum(axis=1) / samples.sum(axis=1)
    worst = np.argsort(-errors, kind="stable")[:_WORST].tolist()
    counts = np.bincount(labels, minlength=len(class_names))
    return tuple(
        _subgroup(
            "class",
            class_names[k],
            int(counts[k]),
            [_measure(probs[:, k], labels == k, sample_weight) for probs in methods],
        )
        for k in worst
    )


def read_slices(
    slices: Any, rows: int, *, name_column: Callable[[Any], str] = "slices[{!r}]".format
) -> dict[str, np.ndarray]:
    """Read the columns that divide the rows, as text.

    All missing values of a column are one slice: None, NaN, NA and NaT of pandas, and empty text. `name_column` names
    a column in errors.
    """
    if slices is None:
        return {}
    if not isinstance(slices, Mapping) and not is_frame(slices):
        msg = f"slices must be a dictionary of columns or a frame, got {type(slices).__name__}"
        raise TypeError(msg)
    columns = {}
    for name, values in list_columns(slices):
        found = list_values(values, name_column(name))
        if len(found) != rows or any(isinstance(value, list | tuple | np.ndarray) for value in found):
            shape = np.shape(values)
            msg = f"{name_column(name)} must have one value for each of {rows:,} rows, got shape {shape}"
            raise ValueError(msg)
        texts = np.array([_to_text(value) for value in found], dtype=object)
        distinct = len(set(texts.tolist()))
        if distinct > _MOST_VALUES:
            msg = f"{name_column(name)} must have at most {_MOST_VALUES} different values, got {distinct:,}: group them"
            raise ValueError(msg)
        columns[str(name)] = texts
    return columns


def measure_slices(
    methods: Sequence[np.ndarray],
    labels: np.ndarray,
    sample_weight: np.ndarray | None,
    columns: Mapping[str, np.ndarray],
) -> tuple[Subgroup, ...]:
    """Measure the confidence, or P(y = 1) for two classes, on the rows with each value of each column.

    The p-values of all slices of a method are corrected together by Holm's procedure: the probability that any
    calibrated slice gets one below 5% is at most 5%.

    Args:
        methods: Probabilities (N, K) as given and, if they differ, those of the recommended method.
        labels: Class indices (N,).
        sample_weight: One weight per row, or None.
        columns: Values as text (N,), by the name of the column.
    """
    parts = [(name, value, column == value) for name, column in columns.items() for value in _order(set(column))]
    measured = [[_measure_slice(probs, labels, sample_weight, rows) for _, _, rows in parts] for probs in methods]
    corrected = [_correct(calibrations) for calibrations in measured]
    return tuple(
        _subgroup(name, value, int(rows.sum()), [calibrations[index] for calibrations in corrected])
        for index, (name, value, rows) in enumerate(parts)
    )


def _measure_slice(
    probs: np.ndarray, labels: np.ndarray, sample_weight: np.ndarray | None, rows: np.ndarray
) -> SubgroupCalibration:
    inside, truth = probs[rows], labels[rows]
    weight = None if sample_weight is None else sample_weight[rows]
    if probs.shape[1] == 2:
        return _measure(inside[:, 1], truth == 1, weight, test=True)
    return _measure(inside.max(axis=1), np.argmax(inside, axis=1) == truth, weight, test=True)


def _measure(
    predicted: np.ndarray, came_true: np.ndarray, weight: np.ndarray | None, *, test: bool = False
) -> SubgroupCalibration:
    mean, observed = (float(np.average(values, weights=weight)) for values in (predicted, came_true))
    # If nothing, or everything, came true, the residuals show no spread. A calibrated model's labels still would.
    gap = Estimate(*estimate_mean(predicted - came_true, weight, variances=predicted * (1 - predicted)))
    enough = len(predicted) >= _LEAST
    common: dict[str, Any] = {"sample_weight": weight, "task": "binary"}
    ece = (
        Estimate(*metrics.interval(metrics.ece, predicted, came_true, **common))
        if enough
        else Estimate(metrics.ece(predicted, came_true, **common))
    )
    p_value = metrics.diagnose(predicted, came_true, **common).p_value if test and enough else None
    return SubgroupCalibration(mean, observed, gap, ece, p_value)


def _correct(calibrations: Sequence[SubgroupCalibration]) -> list[SubgroupCalibration]:
    tested = [(index, each.p_value) for index, each in enumerate(calibrations) if each.p_value is not None]
    adjusted = dict(
        zip((index for index, _ in tested), adjust_holm(np.array([p for _, p in tested])).tolist(), strict=True)
    )
    return [replace(each, p_value=adjusted.get(index)) for index, each in enumerate(calibrations)]


def _subgroup(column: str, value: str, samples: int, measured: Sequence[SubgroupCalibration]) -> Subgroup:
    return Subgroup(column, value, samples, measured[0], measured[1] if len(measured) > 1 else None)


def _to_text(value: Any) -> str:
    """Write a value: a whole number without decimals, because whole numbers with a missing one become floats."""
    if is_missing(value) or (isinstance(value, str) and not value):
        return _MISSING
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _order(texts: Collection[str]) -> list[str]:
    """Sort numbers by size and other values as text; the missing ones come last."""
    found = [text for text in texts if text != _MISSING]
    return sorted(found, key=float if all(map(_is_number, found)) else str) + [_MISSING] * (_MISSING in texts)


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False
