"""Scores of predicted probabilities, one value a sample, in float64."""

from __future__ import annotations

import numpy as np
from scipy.special import rel_entr


def log_scores(probs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """-log p of the true class, (N,); infinite where it was given probability 0."""
    with np.errstate(divide="ignore"):
        return -np.log(np.take_along_axis(probs.astype(np.float64), labels[:, None], axis=-1)[:, 0])


def errors(probs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Whether the most probable class (the first of equals) is the wrong one, (N,)."""
    wrong: np.ndarray = np.argmax(probs, axis=-1) != labels
    return wrong


def divergences(posterior: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """KL(posterior || probs) of each row, (N,): what is lost by predicting `probs`."""
    terms: np.ndarray = rel_entr(posterior.astype(np.float64), probs.astype(np.float64))
    totals: np.ndarray = terms.sum(axis=-1)
    return totals
