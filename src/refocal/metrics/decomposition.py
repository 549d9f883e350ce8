"""The Brier score split into what recalibration can remove and what remains."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from refocal._check import Input
from refocal.metrics.classwise import class_events
from refocal.metrics.inputs import ArrayLike, Events, Task, read


class BrierDecomposition(NamedTuple):
    """brier = calibration + refinement and refinement = uncertainty - resolution; no part is negative.

    Attributes:
        brier: The Brier score.
        calibration: How much the best increasing map of the probability of each class would save.
        refinement: The Brier score after that map.
        uncertainty: The Brier score of predicting the class frequencies for every sample.
        resolution: How much the predictions improve on the class frequencies.
    """

    brier: float
    calibration: float
    refinement: float
    uncertainty: float
    resolution: float


def brier_decomposition(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
) -> BrierDecomposition:
    """Split the Brier score into calibration and refinement, by isotonic recalibration of each class.

    The parts are exact and need no bins. The map is fitted to the sample itself, so the calibration part of a
    calibrated model is slightly positive. It goes to 0 as the sample grows.

    Args:
        scores: (N, K), or (N, K, ...) with classes on axis 1; one score for P(y = 1) for "binary"; (N, L) for
            "multilabel".
        labels: (N,) or (N, ...) class indices; 0 or 1 for the other tasks, with the shape of `scores`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight per label.
        task: "multiclass" adds up the classes. "binary" and "multilabel" score P(y = 1) alone, as `brier` does, with
            one map per label.
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> parts = brier_decomposition(np.array([0.2, 0.4, 0.6]), np.array([0, 1, 0]), task="binary")
        >>> [round(part, 4) for part in parts]
        [0.2533, 0.0867, 0.1667, 0.2222, 0.0556]

    Reference: Bröcker: Reliability, sufficiency, and the decomposition of proper scores. 2009; Dimitriadis, Gneiting,
        Jordan: Stable reliability diagrams for probabilistic classifiers. PNAS 2021.
    """
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    columns = [sample.all_events()] if task == "binary" else list(class_events(sample))
    parts = np.array([_event_parts(events) for events in columns])
    total, divisor = parts[:, :3].sum(axis=0), parts[:, 3].mean() if task == "multiclass" else parts[:, 3].sum()
    score, recalibrated, constant = (float(part) for part in total / divisor)
    return BrierDecomposition(score, score - recalibrated, recalibrated, constant, constant - recalibrated)


def _event_parts(events: Events) -> tuple[float, float, float, float]:
    """Summed squares for the predictions, their isotonic recalibration and the frequency, and the total weight."""
    scale = events.scale
    # Equal predictions are one point of the fit, whatever their order.
    places, group = np.unique(events.confidence.astype(np.float64), return_inverse=True)
    mass = np.bincount(group, weights=scale)
    hits = np.bincount(group, weights=scale * events.correct)
    used = mass > 0
    places, mass, hits = places[used], mass[used], hits[used]
    fitted = scipy.optimize.isotonic_regression(hits / mass, weights=mass).x
    frequency = hits.sum() / mass.sum()

    def squares(values: np.ndarray) -> float:
        # The sum of w (v - y)^2 over the samples of each group, with y = 0 or 1.
        return float(np.sum(hits * (values - 1) ** 2 + (mass - hits) * values**2))

    return squares(places), squares(fitted), squares(frequency), float(mass.sum())
