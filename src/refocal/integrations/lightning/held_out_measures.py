"""NLL and ECE of scores before and after calibration, measured on rows that the calibrator was not fitted to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import KFold

from refocal import metrics
from refocal._check import Input
from refocal.calibrators.conversion import scores_to_probs

if TYPE_CHECKING:
    from refocal.calibrators import Calibrator

_FOLDS = 5


def fit_and_measure(
    calibrator: Calibrator, scores: np.ndarray, labels: np.ndarray, *, seed: int
) -> tuple[Calibrator, dict[str, float]]:
    """Fit a copy of a calibrator to all rows, and measure it by cross-fitting.

    Args:
        calibrator: The calibrator to copy.
        scores: Scores (N, K), or (N, 1) for two classes, as the calibrator's `input` says.
        labels: Class indices (N,).
        seed: Seed that divides the rows into folds.

    Returns:
        The fitted copy; and `nll_before` and `ece_before` of the scores, `nll_after` and `ece_after` of probabilities
        that come, for each row, from a fit to other folds.
    """
    unfitted = clone(calibrator)
    if unfitted.classes is None:  # a class may be missing from these rows
        unfitted.set_params(classes=max(2, scores.shape[1]))
    fitted = clone(unfitted).fit(scores, labels)  # first: it checks the scores
    before = scores_to_probs(scores, input=fitted.input_, log=True)
    after = np.empty_like(before)
    folds = KFold(min(_FOLDS, len(labels)), shuffle=True, random_state=seed)
    for others, held_out in folds.split(scores):
        after[held_out] = clone(unfitted).fit(scores[others], labels[others]).predict_log_proba(scores[held_out])
    return fitted, measure(before, labels, "before") | measure(after, labels, "after")


def measure(scores: np.ndarray, labels: np.ndarray, name: str, *, input: Input = "logits") -> dict[str, float]:
    """Return `nll_{name}` and `ece_{name}` of scores (N, K); log-probabilities are logits, too."""
    return {f"{each.__name__}_{name}": each(scores, labels, input=input) for each in (metrics.nll, metrics.ece)}
