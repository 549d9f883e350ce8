"""What calibration maps without a formula share: the log-odds that they are fitted to, and their tables of pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refocal.maps.simplex import log_p_and_q, split_logits


def list_problems(
    logits: np.ndarray, labels: np.ndarray, temperature: float = 1.0, *, top_label: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """List the log-odds, and whether the label is the class, of: the top class, the second of two, or each class."""
    split = split_logits(logits.astype(np.float64, copy=False), temperature=temperature, xp=np)
    log_p, log_q = log_p_and_q(split, xp=np)
    log_odds = remove_rounding(log_p - log_q)
    if top_label:
        return [(log_odds.max(axis=1), np.argmax(logits, axis=1) == labels)]
    columns = [1] if logits.shape[1] == 2 else range(logits.shape[1])
    return [(log_odds[:, k], labels == k) for k in columns]


def remove_rounding(log_odds: np.ndarray) -> np.ndarray:
    """Round log-odds to about 1e-12 of the largest, so that rows that differ only in class order have equal ones."""
    step = rounding_step(log_odds)
    return np.round(log_odds / step) * step


def rounding_step(log_odds: np.ndarray) -> float:
    """The step to which `remove_rounding` rounds; the same before and after it."""
    return float(2.0 ** (np.frexp(np.abs(log_odds).max())[1] - 40))


def pad_tables(tables: Sequence[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """Pad rows to one length, a power of two: knots, which come first in a table, with inf; values with their last."""
    size = 1 << max(len(knots) - 1 for knots, *_ in tables).bit_length()
    padded = []
    for knots, *values in tables:
        width = (0, size - len(knots))
        padded.append([np.pad(knots, width, constant_values=np.inf), *(np.pad(each, width, "edge") for each in values)])
    return tuple(np.array(rows) for rows in zip(*padded, strict=True))


def count_knots(knots: np.ndarray) -> int:
    """Count the knots that are not padding."""
    return int(np.sum(np.isfinite(knots)))
