"""Probabilities that sum to 1 only within rounding: the rule by which rows of files and of arrays are normalized."""

from __future__ import annotations

import warnings

import numpy as np

from refocal import _check

MOST_ROUNDING = 0.05  # of a sum of probabilities, however many classes there are


def normalize_rounded(probs: np.ndarray) -> tuple[np.ndarray, bool]:
    """Normalize rows of probabilities that do not sum to 1 only because they are rounded to d decimals.

    Rounding moves each of K values by at most 10^-d / 2, so their sum by at most K 10^-d / 2. Other rows stay as they
    are.

    Returns:
        The probabilities, and whether any row was normalized.
    """
    if probs.ndim != 2 or probs.shape[1] < 2 or probs.dtype not in (np.float32, np.float64):
        return probs, False
    with np.errstate(over="ignore", invalid="ignore"):
        sums = probs.sum(axis=1)
        off = np.abs(sums - 1)
        # Half of the tolerance of other checks, because they may add the values in another order.
        least = _check.sum_tolerance(probs.dtype.itemsize * 8) / 2
        rows = np.flatnonzero((off > least) & (off <= MOST_ROUNDING))
        if not len(rows):
            return probs, False
        precision = 8 * float(np.finfo(probs.dtype).eps)
        rounded = np.zeros(len(rows), dtype=bool)
        values = probs[rows].astype(np.float64)
        for decimals in range(2, 6):
            scaled = values * 10**decimals
            whole = (np.abs(scaled - np.rint(scaled)) <= precision * np.maximum(scaled, 1)).all(axis=1)
            rounded |= whole & (off[rows] <= values.shape[1] * 0.5 * 10.0**-decimals * (1 + 1e-6))
    rows = rows[rounded]
    if not len(rows):
        return probs, False
    result = probs.copy()
    result[rows] /= sums[rows, None]
    return result, True


def normalize_and_warn(probs: np.ndarray, name: str) -> np.ndarray:
    """Normalize rows that are rounded, with a warning that calls them `name`."""
    result, normalized = normalize_rounded(probs)
    if normalized:
        # always from this line: Python then shows the same text once, however often the rows are read
        warnings.warn(f"rows of {name} sum to 1 only within rounding; they are normalized", UserWarning, stacklevel=1)
    return result
