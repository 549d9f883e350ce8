"""Conversion of scores, which are logits or probabilities, to logits (N, K) and to probabilities (N, K)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from refocal import _check
from refocal._arrays import namespace
from refocal._check import Input
from refocal._containers import float_limits, to_array, to_numpy
from refocal._rounding import normalize_and_warn
from refocal.maps.heads import probability_edges, to_logits
from refocal.maps.posterior import posterior_from_logits


def check_probs(scores: np.ndarray, *, bits: int) -> np.ndarray:
    """Check the values of probabilities: rows (N, K) that sum to 1, or one column (N, 1) within [0, 1].

    `bits` is the precision in which they were computed. Rows that are rounded to a few decimals are normalized.
    """
    if scores.shape[1] > 1:
        scores = normalize_and_warn(scores, "probs")
        _check.simplex(scores, "probs", xp=namespace(scores), bits=bits, hint=_check.FOR_LOGITS)
    else:
        _check.probabilities(scores[:, 0], "probs", xp=namespace(scores), hint=_check.FOR_LOGITS)
    return scores


def scores_to_logits(scores: np.ndarray, *, input: Input, limits: Any = None) -> np.ndarray:
    """Convert scores to logits (N, K) without checking them.

    Args:
        scores: Logits or probabilities (N, K). One column (N, 1) is for two classes: the log-odds or the probability
            of the second class.
        input: "logits" or "probs".
        limits: The `float_limits` of the scores as given; None for those of the array.

    Returns:
        Logits (N, K). Float32 logits of usual size stay float32; everything else becomes float64.
    """
    probs = input == "probs"
    least, gap = probability_edges(np.finfo(scores.dtype) if limits is None else limits)
    wide = scores if not probs and _fit_float32(scores) else scores.astype(np.float64, copy=False)
    logits: np.ndarray = to_logits(wide, probs=probs, least=least, gap=gap, xp=namespace(wide))
    return logits


def _fit_float32(logits: np.ndarray) -> bool:
    """Whether float32 has room for these logits, their temperature, and the squares of both."""
    if logits.dtype != np.float32:
        return False
    size = max(logits.max(initial=0.0), -logits.min(initial=0.0))
    if not np.isfinite(size):  # masks; other logits need no array that says which are finite
        size = np.abs(logits).max(where=np.isfinite(logits), initial=0.0)
    return bool(1e-12 < size < 1e12 or size == 0)


def scores_to_probs(scores: ArrayLike, *, input: Input, log: bool = False) -> np.ndarray:
    """Check scores and convert them to probabilities, with nothing fitted.

    Args:
        scores: Logits or probabilities (N, K). A single column (N,) or (N, 1) is for two classes: the log-odds or the
            probability of the second class. Logits may be -inf for classes that are masked.
        input: "logits" or "probs".
        log: Whether to return log-probabilities.

    Returns:
        Probabilities, or their logarithms, (N, K) in float64. A probability of 0 stays 0: its log loss is infinite.
    """
    _check.input_word(input)
    given = to_array(scores, input)
    limits, array = float_limits(given), to_numpy(given, input)
    array = array.reshape(-1, 1) if array.ndim == 1 else array
    xp, array = _check.floating(array, input)
    if input == "probs":
        array = check_probs(array, bits=limits.bits)
    elif array.shape[1] > 1:
        _check.logits(array, input, xp=xp)
    narrow = array if array.dtype.itemsize <= 8 else array.astype(np.float64)
    if input == "probs":
        return _complete_probs(narrow.astype(np.float64, copy=False), log=log)
    logits = scores_to_logits(narrow, input=input, limits=limits).astype(np.float64, copy=False)
    return posterior_from_logits(logits, gamma=0.0, log=log)


def claim_second_class(probs: np.ndarray) -> np.ndarray:
    """Take P(y = 1) of two classes (N, 2): below 1 unless P(y = 0) is 0, although 1 may be nearer."""
    return np.where(probs[:, 0] > 0, np.minimum(probs[:, 1], np.nextafter(1.0, 0.0)), probs[:, 1])


def _complete_probs(probs: np.ndarray, *, log: bool) -> np.ndarray:
    """Add the first of two classes to a single column, and divide other rows by their sums; a 0 stays 0."""
    whole = np.hstack([1 - probs, probs]) if probs.shape[1] == 1 else probs / probs.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        return np.log(whole) if log else whole
