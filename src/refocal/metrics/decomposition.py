"""The Brier score taken apart: what recalibration would save, and what would be left."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy

from refocal.metrics.classwise import class_events
from refocal.metrics.inputs import Events, Input, read

Array = Any


class BrierDecomposition(NamedTuple):
    """brier = calibration + refinement, and refinement = uncertainty - resolution; none is negative.

    Attributes:
        brier: The Brier score.
        calibration: What the best increasing map of each class's probability would save.
        refinement: The Brier score after that map.
        uncertainty: The Brier score of the classes' frequencies, given to every sample.
        resolution: What the predictions tell beyond these frequencies.
    """

    brier: float
    calibration: float
    refinement: float
    uncertainty: float
    resolution: float


def brier_decomposition(
    scores: Array,
    labels: Array,
    *,
    input: Input = "probs",
    sample_weight: Array = None,
    task: str = "multiclass",
    ignore_index: int | None = None,
) -> BrierDecomposition:
    """Brier score = calibration + refinement, what is left after isotonic recalibration of each class.

    The parts are exact and need no bins. The map is fitted to the sample itself, so a calibrated model has a small
    positive calibration part, which goes to 0 with growing samples.

    Args:
        scores: (N, K), (N, K, ...) with classes on axis 1; P(y = 1) for "binary"; (N, L) for "multilabel".
        labels: (N,) or (N, ...) class indices; 0 or 1 for the other tasks, then with the shape of `scores`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight for each label.
        task: "multiclass" adds up the classes; "binary" and "multilabel" score P(y = 1) alone, as `brier` does, each
            label with a map of its own.
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> parts = brier_decomposition(np.array([0.2, 0.4, 0.6]), np.array([0, 1, 0]), task="binary")
        >>> [round(part, 4) for part in parts]
        [0.2533, 0.0867, 0.1667, 0.2222, 0.0556]

    Reference: Brocker: Reliability, sufficiency, and the decomposition of proper scores. 2009; Dimitriadis, Gneiting,
        Jordan: Stable reliability diagrams for probabilistic classifiers. PNAS 2021.
    """
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    columns = [sample.all_events()] if task == "binary" else list(class_events(sample))
    parts = np.array([_event_parts(events) for events in columns])
    total, divisor = parts[:, :3].sum(axis=0), parts[:, 3].mean() if task == "multiclass" else parts[:, 3].sum()
    score, recalibrated, constant = (float(part) for part in total / divisor)
    return BrierDecomposition(score, score - recalibrated, recalibrated, constant, constant - recalibrated)


def _event_parts(events: Events) -> tuple[float, float, float, float]:
    """Summed squares of the predictions, of their isotonic recalibration and of the frequency; the total weight."""
    confidence, correct, weights = events
    scale = np.ones(len(correct)) if weights is None else weights
    # equal predictions are one point to the fit, whatever their order
    places, group = np.unique(confidence.astype(np.float64), return_inverse=True)
    mass = np.bincount(group, weights=scale)
    hits = np.bincount(group, weights=scale * correct)
    used = mass > 0
    places, mass, hits = places[used], mass[used], hits[used]
    fitted = scipy.optimize.isotonic_regression(hits / mass, weights=mass).x
    frequency = hits.sum() / mass.sum()

    def squares(values: Any) -> float:
        # sum w (v - y)^2 over the members of each group, y being 0 or 1
        return float(np.sum(hits * (values - 1) ** 2 + (mass - hits) * values**2))

    return squares(places), squares(fitted), squares(frequency), float(mass.sum())
