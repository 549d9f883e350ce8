"""What probabilities mean for decisions: by a threshold for two classes, and by a matrix of costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from refocal._containers import to_numpy
from refocal.report.answers import CostDecisions, CostOutcome, ThresholdDecisions
from refocal.report.record import Estimate
from refocal.stats.weighted_mean import estimate_mean

_PERCENT = range(1, 100)


def read_costs(costs: ArrayLike | None, classes: int) -> np.ndarray | None:
    """Check a matrix of costs: row y holds the cost of each decision if the true class is y."""
    if costs is None:
        return None
    matrix = to_numpy(costs, "costs")
    if matrix.shape != (classes, classes):
        msg = f"costs must have shape ({classes}, {classes}), one row per class, got shape {matrix.shape}"
        raise ValueError(msg)
    if matrix.dtype.kind not in "biuf":
        msg = f"costs must be real numbers, got {matrix.dtype}"
        raise TypeError(msg)
    wrong = ~np.isfinite(matrix)
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        msg = f"costs must be finite, got {matrix[row, column]} for class {row} and decision {column}"
        raise ValueError(msg)
    return matrix.astype(np.float64)


def weigh_costs(
    methods: Sequence[np.ndarray], labels: np.ndarray, sample_weight: np.ndarray | None, costs: np.ndarray
) -> CostDecisions:
    """Decide by the least expected cost, and compare what it promises with what it costs.

    Args:
        methods: Probabilities (N, K) as given and, if they differ, those of the recommended method.
        labels: Class indices (N,).
        sample_weight: One weight per row, or None.
        costs: From `read_costs`.
    """
    decisions, outcomes = [], []
    for probs in methods:
        expected = probs @ costs
        decided = np.argmin(expected, axis=1)
        paid = costs[labels, decided]
        promised = float(np.average(expected.min(axis=1), weights=sample_weight))
        outcomes.append(CostOutcome(promised, Estimate(*estimate_mean(paid, sample_weight))))
        decisions.append(decided)
    changed = float(np.average(decisions[0] != decisions[-1], weights=sample_weight))
    matrix = tuple(tuple(row) for row in costs.tolist())
    return CostDecisions(matrix, changed, outcomes[0], outcomes[1] if len(outcomes) > 1 else None)


def sweep_thresholds(
    methods: Sequence[np.ndarray], labels: np.ndarray, sample_weight: np.ndarray | None
) -> ThresholdDecisions:
    """Count, for each threshold in percent, the samples whose P(y = 1) reaches it.

    Args:
        methods: Probabilities (N, 2) as given and, if they differ, those of the recommended method.
        labels: Class indices (N,), 0 or 1.
        sample_weight: One weight per row, or None.
    """
    weight = np.ones(len(labels)) if sample_weight is None else sample_weight.astype(np.float64)
    thresholds = np.array([percent / 100 for percent in _PERCENT])
    first, last = ([probs[:, 1] >= threshold for threshold in thresholds] for probs in (methods[0], methods[-1]))
    positive = weight * (labels == 1)

    def total(flags: list[np.ndarray], values: np.ndarray) -> tuple[float, ...]:
        return tuple(float(values @ flagged) for flagged in flags)

    return ThresholdDecisions(
        thresholds=tuple(thresholds.tolist()),
        total=float(weight.sum()),
        positives=float(positive.sum()),
        flagged_given=total(first, weight),
        hits_given=total(first, positive),
        flagged_chosen=total(last, weight),
        hits_chosen=total(last, positive),
        changed=total([one != other for one, other in zip(first, last, strict=True)], weight),
    )
