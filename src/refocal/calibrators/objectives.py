"""Objectives that are minimized without derivatives, and the search that minimizes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refocal.calibrators.fit.focal_masses import Parameters, RankedLogits, top_confidences
from refocal.calibrators.fit.temperature_likelihood import LabeledLogits
from refocal.maps.focal import focal_partial_unchecked
from refocal.maps.simplex import log_p_and_q, split_logits
from refocal.stats.binning import BINS, equal_mass_bins, equal_width_bins

_BLOCK = 1 << 16


def make_calibration_error(data: LabeledLogits, *, equal_mass: bool) -> Callable[[float, float], float]:
    """Make a function of (gamma, T) that computes the calibration error of Psi^gamma(softmax(logits / T)).

    Predicted classes do not depend on gamma and T, so they are computed once.
    """
    ranked = RankedLogits.prepare(data)
    correct = ranked.argmax == data.labels
    bins = equal_mass_bins if equal_mass else equal_width_bins

    def error(gamma: float, temperature: float) -> float:
        confidence = top_confidences(ranked, Parameters(gamma, 1 / temperature))
        return bins(confidence, correct, bins=BINS).expected_calibration_error

    return error


def focal_risk(data: LabeledLogits, gamma: float, temperature: float) -> float:
    """Compute the mean focal loss of softmax(logits / T)."""
    total = 0.0
    step = max(1, _BLOCK // data.logits.shape[1])
    for start in range(0, len(data.logits), step):
        rows = slice(start, start + step)
        split = split_logits(data.logits[rows].astype(np.float64), temperature=temperature, xp=np)
        label = data.labels[rows, None]
        log_p, log_q = (np.take_along_axis(part, label, axis=1)[:, 0] for part in log_p_and_q(split, xp=np))
        total += float(data.share[rows] @ focal_partial_unchecked(log_p, log_q, gamma=gamma, xp=np))
    return total


class BestPoint(NamedTuple):
    """The point with the smallest value that a search found."""

    x: float
    value: float


def line_search(
    function: Callable[[float], float], center: float, *, width: float, points: int, rounds: int
) -> BestPoint:
    """Search for the smallest value on `points` points within `width` of the center.

    Each further round searches between the two neighbors of the best point so far.
    """
    best = BestPoint(center, np.inf)
    for _ in range(rounds):
        for x in best.x + width * np.linspace(-1, 1, points):
            value = function(float(x))
            best = BestPoint(float(x), value) if value < best.value else best
        width = 2 * width / (points - 1)
    return best


def reject_weights(weights: np.ndarray | None, objective: str) -> None:
    """Reject sample weights for a calibration error, which counts samples."""
    if weights is not None:
        msg = f'sample_weight needs an objective that is a mean over samples, "nll" or "focal"; got {objective!r}'
        raise ValueError(msg)
