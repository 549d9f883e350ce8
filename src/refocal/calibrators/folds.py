"""Folds of rows for cross-validation."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.model_selection import KFold, check_cv

from refocal.calibrators.fit.held_out import Fold

_MOST_SCORES = 5_000_000  # that the held-out folds may be fitted to, together


def split_rows(
    cv: Any, random_state: int, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None
) -> list[Fold]:
    """Split rows into folds.

    Args:
        cv: The number of folds, or a scikit-learn splitter.
        random_state: Seed that shuffles the rows if `cv` is a number.
        logits: (N, K); if there are millions of them, only the first folds are used, at least one.
        labels: Class indices (N,).
        weights: Weights of the rows (N,), or None.
    """
    if isinstance(cv, int | np.integer):
        if not 2 <= cv <= len(logits):
            samples = f"{len(logits)}, the number of samples"
            msg = f"cv must be a splitter or a number of folds from 2 to {samples}, got {cv}"
            raise ValueError(msg)
        folds = list(KFold(int(cv), shuffle=True, random_state=random_state).split(logits))
        return folds[: max(1, _MOST_SCORES // logits.size)]
    folds = list(check_cv(cv, labels, classifier=True).split(logits, labels))
    counts = np.ones(len(logits)) if weights is None else weights
    if not all(counts[rows].sum() > 0 for fold in folds for rows in fold):
        msg = "cv must leave samples of positive weight on both sides of each fold, got a side without any"
        raise ValueError(msg)
    return folds
