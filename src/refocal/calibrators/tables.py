"""What calibration maps without a formula share: the log-odds that they are fitted to, and their tables of pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refocal.calibrators.fit.isotonic_tables import RankedScores
from refocal.maps.simplex import log_p_and_q, split_logits

_ORDINARY = 1e3  # log-odds up to this are not searched for outliers
_FEW = 0.05  # the share of the log-odds that are surely no outliers: those closest to 0
_FAR = 1e4  # times these are outliers


def list_problems(
    logits: np.ndarray, labels: np.ndarray, temperature: float = 1.0, *, top_label: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """List the log-odds, and whether the label is the class, of: the top class, the second of two, or each class."""
    split = split_logits(logits.astype(np.float64, copy=False), temperature=temperature, xp=np)
    if top_label:
        top = np.asarray(split.gap) - np.log(np.asarray(split.rest))
        return [(remove_rounding(top[:, 0]), np.argmax(logits, axis=1) == labels)]
    log_p, log_q = log_p_and_q(split, xp=np)
    log_odds = remove_rounding(log_p - log_q)
    columns = [1] if logits.shape[1] == 2 else range(logits.shape[1])
    return [(log_odds[:, k], labels == k) for k in columns]


def rank_problems(logits: np.ndarray, labels: np.ndarray, temperature: float = 1.0, *, top_label: bool) -> RankedScores:
    """Sort the samples of each of the problems that `list_problems` lists."""
    scores, positive = zip(*list_problems(logits, labels, temperature, top_label=top_label), strict=True)
    return RankedScores.rank(np.stack(scores), np.stack(positive))


def remove_rounding(log_odds: np.ndarray) -> np.ndarray:
    """Round log-odds to about 1e-12 of the largest, so that rows that differ only in class order have equal ones."""
    step = find_rounding_step(log_odds)
    return np.round(log_odds / step) * step


def find_rounding_step(log_odds: np.ndarray) -> np.ndarray:
    """Find the step to which `remove_rounding` rounds each number; it is the same before and after.

    Outliers and masks such as -1e30 have their own step, so that the others keep their digits.
    """
    size = np.abs(log_odds)
    largest = size.max()
    if largest > _ORDINARY:
        most = min(largest, _FAR * np.quantile(size[size > 0], _FEW))
        largest = largest if most == largest else np.maximum(size, most)
    step: np.ndarray = 2.0 ** (np.frexp(largest)[1] - 40)
    return np.broadcast_to(step, size.shape)


def pad_tables(tables: Sequence[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """Pad rows to one length, a power of two: knots, which come first in a table, with inf; values with their last."""
    size = 1 << max(len(knots) - 1 for knots, *_ in tables).bit_length()
    padded = np.empty((len(tables[0]), len(tables), size))
    for row, (knots, *values) in enumerate(tables):
        padded[0, row] = np.inf
        padded[0, row, : len(knots)] = knots
        for each, target in zip(values, padded[1:, row], strict=True):
            target[:] = each[-1]
            target[: len(each)] = each
    return tuple(padded)


def count_knots(knots: np.ndarray) -> int:
    """Count the knots that are not padding."""
    return int(np.sum(np.isfinite(knots)))
