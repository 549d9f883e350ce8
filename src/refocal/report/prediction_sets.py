"""Prediction sets in a report: how often they contain the true class, and how many classes they have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refocal import _check
from refocal._arrays import namespace
from refocal.conformal.thresholds import Ranking, Rows, find_thresholds
from refocal.maps.sets import choose_classes
from refocal.report.answers import SetOutcome, SetPredictions
from refocal.report.record import Estimate
from refocal.stats.sample_counts import WeightSums
from refocal.stats.weighted_mean import estimate_mean

FOLDS = 5
_SEED = 0


def read_coverage(sets: float | None) -> float | None:
    """Check the coverage that prediction sets must have; None for no sets."""
    return None if sets is None else _check.share(sets, "sets")


def measure_sets(
    methods: Sequence[np.ndarray], labels: np.ndarray, sample_weight: np.ndarray | None, coverage: float
) -> SetPredictions:
    """Measure prediction sets ("lac") by cross-fitting: the threshold of each fold comes from the other folds.

    Args:
        methods: Probabilities (N, K) as given and, if they differ, those of the recommended method.
        labels: Class indices (N,).
        sample_weight: One weight per row, or None.
        coverage: The least probability that a set contains the true class.
    """
    folds = np.array_split(np.random.default_rng(_SEED).permutation(len(labels)), min(FOLDS, len(labels)))
    outcomes = [_measure(probs, labels, sample_weight, coverage, folds) for probs in methods]
    return SetPredictions(coverage, len(folds), outcomes[0], outcomes[1] if len(outcomes) > 1 else None)


def _measure(
    probs: np.ndarray,
    labels: np.ndarray,
    sample_weight: np.ndarray | None,
    coverage: float,
    folds: Sequence[np.ndarray],
) -> SetOutcome:
    weights = np.ones(len(labels)) if sample_weight is None else sample_weight.astype(np.float64)
    rows = Rows(probs, labels, weights, WeightSums.of(weights).whole, None)
    member = np.empty(probs.shape, dtype=bool)
    for fold in folds:
        others = rows.select(np.setdiff1d(np.arange(len(labels)), fold))
        thresholds = find_thresholds(others, Ranking(False, 0.0, 0), coverage=coverage, by_class=False)
        own = probs[fold]
        member[fold] = choose_classes(own, own, thresholds, allow_empty=False, xp=namespace(own))
    hit, size = member[np.arange(len(labels)), labels].astype(np.float64), member.sum(axis=1)
    by_class = {k: _estimate_share(hit, labels == k, sample_weight, coverage) for k in np.unique(labels).tolist()}
    worst = min(by_class, key=lambda k: by_class[k].value)
    return SetOutcome(
        coverage=_estimate_share(hit, np.full(len(labels), True), sample_weight, coverage),
        size=Estimate(*estimate_mean(size.astype(np.float64), sample_weight)),
        sizes=tuple(np.bincount(size, weights=weights)[1:].tolist()),
        worst_class=worst,
        worst_coverage=by_class[worst],
    )


def _estimate_share(hit: np.ndarray, chosen: np.ndarray, sample_weight: np.ndarray | None, coverage: float) -> Estimate:
    """Estimate how often sets of the chosen rows contain the true class.

    The variance is at least that of the coverage that was asked for, so that few rows without a miss prove nothing.
    """
    values, weights = hit[chosen], None if sample_weight is None else sample_weight[chosen]
    mean, low, high = estimate_mean(values, weights, variances=np.full(len(values), coverage * (1 - coverage)))
    return Estimate(min(mean, 1.0), max(low, 0.0), min(high, 1.0))
