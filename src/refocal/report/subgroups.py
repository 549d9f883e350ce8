"""Calibration of parts of the data: the classes that are worst off, and slices by the values of a column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from refocal import metrics
from refocal.report.answers import Subgroup, SubgroupCalibration
from refocal.report.record import Estimate
from refocal.stats.binning import BINS, class_sums
from refocal.stats.calibrated_sums import adjust_holm

Slices = Mapping[str, ArrayLike]
_WORST = 10
_LEAST = 10  # with fewer samples, a slice gets neither an interval nor a test
_MOST_VALUES = 100
_MISSING = "(missing)"
_TWO_SIDED_95 = 1.959964


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


def read_slices(slices: Slices | None, rows: int) -> dict[str, np.ndarray]:
    """Read the columns that divide the rows, as text; a missing value is a slice of its own."""
    columns = {}
    for name, values in (slices or {}).items():
        column = np.asarray(values)
        if column.shape != (rows,):
            msg = f"slices[{name!r}] must have one value for each of {rows:,} rows, got shape {column.shape}"
            raise ValueError(msg)
        texts = np.array([_to_text(value) for value in column.tolist()], dtype=object)
        distinct = len(set(texts.tolist()))
        if distinct > _MOST_VALUES:
            msg = f"slices[{name!r}] must have at most {_MOST_VALUES} different values, got {distinct:,}: group them"
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
    parts = [(name, value, column == value) for name, column in columns.items() for value in sorted(set(column))]
    if sample_weight is not None:
        parts = [(name, value, rows) for name, value, rows in parts if sample_weight[rows].any()]
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
    shares = np.full(len(predicted), 1 / len(predicted)) if weight is None else weight / weight.sum()
    residual = predicted - came_true
    # If nothing, or everything, came true, the residuals show no spread. A calibrated model's labels still would.
    spread = max(
        float(np.sum(shares**2 * (residual - (mean - observed)) ** 2)),
        float(np.sum(shares**2 * predicted * (1 - predicted))),
    )
    half = _TWO_SIDED_95 * spread**0.5
    enough = np.count_nonzero(shares) >= _LEAST
    common: dict[str, Any] = {"sample_weight": weight, "task": "binary"}
    ece = (
        Estimate(*metrics.interval(metrics.ece, predicted, came_true, **common))
        if enough
        else Estimate(metrics.ece(predicted, came_true, **common))
    )
    p_value = metrics.diagnose(predicted, came_true, **common).p_value if test and enough else None
    gap = mean - observed
    return SubgroupCalibration(mean, observed, Estimate(gap, gap - half, gap + half), ece, p_value)


def _correct(calibrations: Sequence[SubgroupCalibration]) -> list[SubgroupCalibration]:
    tested = [(index, each.p_value) for index, each in enumerate(calibrations) if each.p_value is not None]
    adjusted = dict(
        zip((index for index, _ in tested), adjust_holm(np.array([p for _, p in tested])).tolist(), strict=True)
    )
    return [replace(each, p_value=adjusted.get(index)) for index, each in enumerate(calibrations)]


def _subgroup(column: str, value: str, samples: int, measured: Sequence[SubgroupCalibration]) -> Subgroup:
    return Subgroup(column, value, samples, measured[0], measured[1] if len(measured) > 1 else None)


def _to_text(value: Any) -> str:
    missing = value is None or value == "" or (isinstance(value, float) and math.isnan(value))
    return _MISSING if missing else str(value)
