"""The numbers of the page's live section. Python computes the initial ones, and the script recomputes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refocal.maps.posterior import posterior_from_logits
from refocal.report.record import Diagram, Slider
from refocal.stats.binning import BINS, equal_width_bins
from refocal.stats.weighted_mean import TWO_SIDED_95


@dataclass(frozen=True)
class Live:
    """The numbers that the live section shows for one gamma and T."""

    ece: float
    nll: float
    error: float
    confidence: float
    diagram: Diagram


def measure_rows(slider: Slider, *, gamma: float, temperature: float) -> Live:
    """Measure Psi^gamma(softmax(logits / T)) on the slider's rows, with ECE over 15 equal-width bins.

    Two classes are measured by P(y = 1), more by the confidence in the most probable class.
    """
    rows, labels = slider.rows(), np.asarray(slider.labels)
    log_probs = posterior_from_logits(rows, gamma=gamma, temperature=temperature, log=True)
    probs = np.exp(log_probs)
    wrong = np.argmax(rows, axis=1) != labels  # the map does not change the most probable class
    binary = probs.shape[1] == 2
    confidence, came_true = (probs[:, 1], labels == 1) if binary else (probs.max(axis=1), ~wrong)
    bins = equal_width_bins(confidence, came_true, bins=BINS)
    variance = equal_width_bins(confidence, confidence * (1 - confidence), bins=BINS).correct
    held = bins.samples > 0
    count = bins.samples[held]
    mean, accuracy = bins.confidence[held] / count, bins.correct[held] / count
    # If p is calibrated, the number of correct samples in a bin has the variance sum p (1 - p).
    half = TWO_SIDED_95 * np.sqrt(variance[held]) / count
    return Live(
        bins.expected_calibration_error,
        float(-np.mean(np.take_along_axis(log_probs, labels[:, None], axis=1))),
        float(np.mean(wrong)),
        float(np.mean(confidence)),
        Diagram(
            *(
                tuple(values.tolist())
                for values in (count, mean, accuracy, np.maximum(mean - half, 0), np.minimum(mean + half, 1))
            )
        ),
    )


def map_two_classes(*, gamma: float, temperature: float, points: int = 201) -> tuple[np.ndarray, np.ndarray]:
    """Compute the map for two classes on an even grid of softmax scores: (p, Psi^gamma(softmax(logits / T)))."""
    p = np.linspace(0.0, 1.0, points)
    inner = p[1:-1]
    logits = np.stack([np.log(inner), np.log1p(-inner)], axis=1)
    mapped = posterior_from_logits(logits, gamma=gamma, temperature=temperature)[:, 0]
    return p, np.concatenate([[0.0], mapped, [1.0]])
