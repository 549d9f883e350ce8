"""The most probable class of each row: its probability, and whether it is the label."""

from __future__ import annotations

import numpy as np

from refocal.stats.proper_scores import true_places

# Up to this many classes, comparing whole columns is faster than NumPy's arg max of each row.
_FEW_CLASSES = 24


def top_label(probs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The confidence (n,) of the top class of rows (n, K), and whether it is the label; the first class wins ties."""
    confidence, correct = _largest(probs, labels)
    return np.minimum(confidence, 1, out=confidence), correct  # rows sum to 1 only up to rounding


def _largest(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if scores.shape[1] > _FEW_CLASSES:
        top = scores.argmax(axis=1)
        return scores[np.arange(len(scores)), top], top == labels
    columns = np.ascontiguousarray(scores.T)
    largest = columns.max(axis=0)
    correct: np.ndarray = columns.reshape(-1).take(true_places(columns, labels)) == largest
    is_top = columns == largest
    if np.count_nonzero(is_top) > len(scores):  # of several top classes only the first counts
        tied = np.flatnonzero(is_top.sum(axis=0) > 1)
        correct[tied] = is_top[:, tied].argmax(axis=0) == labels[tied]
    return largest, correct


def top_label_of_logits(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`top_label` of softmax(logits)."""
    largest, correct = _largest(logits, labels)
    odds = logits - largest[:, None]
    np.exp(odds, out=odds)
    return 1 / (odds @ np.ones(odds.shape[1], dtype=odds.dtype)), correct
