"""Whether scores are logits or probabilities: what the caller stated or, if nothing, what they look like."""

from __future__ import annotations

from typing import Any

import numpy as np

from refocal import _check
from refocal._check import Input
from refocal._rounding import MOST_ROUNDING

TO_SAY = "pass input='probs', or input='logits' if they are logits"
_FEW_ROWS, _MANY_ROWS = 3, 20  # scores of fewer rows can look like probabilities by chance


def optional_input_word(value: Any) -> Input | None:
    """Check the word that says whether scores are logits or probabilities, if there is one."""
    return None if value is None else _check.input_word(value)


def resolve_input(value: Any, scores: np.ndarray, *, remedy: str = TO_SAY) -> Input:
    """Return what scores are: what the caller said or, if that is None, logits.

    Scores that look like probabilities are rejected if the caller did not say what they are.

    Args:
        value: "logits", "probs" or None.
        scores: (N, K), (N, 1) or (N,).
        remedy: What the message tells the caller to do.
    """
    if value is not None:
        return _check.input_word(value)
    if scores.ndim not in (1, 2) or scores.dtype.kind not in "iuf":  # to be rejected by the caller
        return "logits"
    head = scores[:_MANY_ROWS]  # the first rows show nearly always that scores are logits
    look = find_probability_look(head) and find_probability_look(scores)
    if look:
        msg = f"scores look like probabilities: {look}; {remedy}"
        raise ValueError(msg)
    return "logits"


def find_probability_look(scores: np.ndarray) -> str | None:
    """Return what makes scores look like probabilities, or None if they can be logits.

    Probabilities may be rounded to a few decimals. Small examples are not rejected for what can be chance: a single
    column of log-odds in [0, 1], or logits of 0 and 1.
    """
    rows = scores[:, None] if scores.ndim == 1 else scores
    if len(rows) < _FEW_ROWS or rows.shape[1] == 0 or not rows.min() >= 0 or not rows.max() <= 1 + MOST_ROUNDING:
        return None
    is_small = len(rows) < _MANY_ROWS
    is_hard = not ((rows > 0) & (rows < 1)).any()
    if rows.shape[1] == 1:
        return None if is_small or is_hard or rows.max() > 1 else "every value lies in [0, 1]"
    tolerance = _check.sum_tolerance(rows.dtype.itemsize * 8) if is_small else MOST_ROUNDING
    sums = rows.sum(axis=1, dtype=np.float64)
    is_one = float(np.abs(sums - 1).max()) <= tolerance
    return "every row sums to 1" if is_one and not (is_small and is_hard) else None
