"""Reliability bins of the top confidence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Bins(NamedTuple):
    """Sums over right-closed bins (a, b] of the confidence; each sample is in one bin, 0 in the first."""

    samples: np.ndarray
    confidence: np.ndarray
    correct: np.ndarray

    @property
    def expected_calibration_error(self) -> float:
        """The mean over samples of |confidence - accuracy| of their bin."""
        return float(np.sum(np.abs(self.confidence - self.correct)) / np.sum(self.samples))


def equal_width_bins(confidence: np.ndarray, correct: np.ndarray, *, bins: int) -> Bins:
    """Sum confidence and correctness over `bins` bins of equal width, in float64."""
    confidence = confidence.astype(np.float64)
    return _sums(np.clip(np.ceil(confidence * bins).astype(np.intp) - 1, 0, bins - 1), confidence, correct, bins)


def equal_mass_bins(confidence: np.ndarray, correct: np.ndarray, *, bins: int) -> Bins:
    """Sum over `bins` bins of equally many samples; equal confidences stay together, in the lower of their bins."""
    confidence = confidence.astype(np.float64)
    last = -(-np.arange(1, bins) * len(confidence) // bins) - 1
    upper_edges = np.partition(confidence, last)[last]
    return _sums(np.searchsorted(upper_edges, confidence, side="left"), confidence, correct, bins)


def _sums(index: np.ndarray, confidence: np.ndarray, correct: np.ndarray, bins: int) -> Bins:
    return Bins(
        np.bincount(index, minlength=bins),
        np.bincount(index, weights=confidence, minlength=bins),
        np.bincount(index, weights=correct.astype(np.float64), minlength=bins),
    )
