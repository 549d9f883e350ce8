"""Thresholds of prediction sets, and the choice of a penalty."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from refocal._arrays import map_row_blocks, namespace
from refocal.maps.sets import choose_classes, conform
from refocal.stats.sample_counts import count_samples

_PENALTIES = (0.001, 0.01, 0.1, 0.2, 0.5)  # those that Angelopoulos et al. (2021) try
_ROUNDING = 1e-12  # relative; other array libraries round differently


class Rows(NamedTuple):
    """Labeled probabilities.

    Attributes:
        probs: Probabilities (N, K).
        labels: Class indices (N,).
        weights: Weights (N,).
        whole: Whether the weights count repetitions. It is decided once, because relative weights may happen to be
            whole numbers in a part of the rows.
        uniform: Uniform numbers (N, 1) for randomized sets, or None.
    """

    probs: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    whole: bool
    uniform: np.ndarray | None

    def select(self, rows: np.ndarray) -> Rows:
        """Select rows by their numbers."""
        uniform = None if self.uniform is None else self.uniform[rows]
        return Rows(self.probs[rows], self.labels[rows], self.weights[rows], self.whole, uniform)

    def scale_weights(self, members: np.ndarray | None = None) -> np.ndarray:
        """Scale the weights of all rows, or of some, so that their sum is the number of samples."""
        return count_samples(self.weights if members is None else self.weights[members], whole=self.whole)


class Ranking(NamedTuple):
    """The settings of `refocal.maps.sets.conform`."""

    ranked: bool
    penalty: float
    penalty_after: int


def find_threshold(conformity: np.ndarray, counts: np.ndarray, coverage: float) -> float:
    """Find the largest threshold that a new row of the same distribution reaches with probability `coverage`.

    Of n values that count once, it is the one of rank floor((n + 1)(1 - coverage)), from the smallest. It is -inf if
    that rank is 0, because there are too few values. It lies a little below the value itself, so that rounding does not
    exclude an equal one.
    """
    values, index = np.unique(conformity, return_inverse=True)
    mass = np.bincount(index, weights=counts)
    below = np.cumsum(mass) - mass
    allowed = (1 - coverage) * (mass.sum() + 1) * (1 + 1e-12)
    reached = np.flatnonzero(below + 1 <= allowed)
    if not len(reached):
        return -math.inf
    value = float(values[reached[-1]])
    return value - _ROUNDING * abs(value)


def count_needed(coverage: float) -> int:
    """The least number of rows for which a threshold is finite."""
    return math.ceil((1 / (1 - coverage) - 1) * (1 - 1e-12))


def find_thresholds(rows: Rows, ranking: Ranking, *, coverage: float, by_class: bool) -> np.ndarray:
    """Find the threshold of each class (K,): its own if `by_class`, else one for all."""
    own = np.take_along_axis(rows.probs, rows.labels[:, None], axis=1)
    conformity = conform(rows.probs, own, **ranking._asdict(), xp=namespace(own))
    true = _randomize(conformity, own, rows.uniform)[:, 0]
    classes = rows.probs.shape[1]
    if not by_class:
        return np.full(classes, find_threshold(true, rows.scale_weights(), coverage))
    members = [rows.labels == k for k in range(classes)]
    return np.array([find_threshold(true[member], rows.scale_weights(member), coverage) for member in members])


def compute_conformity(probs: np.ndarray, ranking: Ranking, uniform: np.ndarray | None) -> np.ndarray:
    """Compute the conformity of all classes (N, K)."""
    xp, rows = namespace(probs), np.ascontiguousarray(probs)
    conformity = map_row_blocks(lambda block: conform(block, block, **ranking._asdict(), xp=xp), rows)
    return _randomize(conformity, probs, uniform)


def _randomize(conformity: np.ndarray, own: np.ndarray, uniform: np.ndarray | None) -> np.ndarray:
    """Count u p of each class's own probability p as if it belonged to a more probable class."""
    return conformity if uniform is None else conformity - uniform * own


def choose_penalty_after(rows: Rows, *, coverage: float) -> int:
    """Choose how many classes have no penalty: as many as contain the true class with probability `coverage`."""
    true = np.take_along_axis(rows.probs, rows.labels[:, None], axis=1)
    ranks = 1 + np.sum(rows.probs > true, axis=1)
    found = -find_threshold(-ranks.astype(np.float64), rows.scale_weights(), coverage)
    return rows.probs.shape[1] if math.isinf(found) else round(found)


def choose_penalty(rows: Rows, penalty_after: int, *, coverage: float, by_class: bool, allow_empty: bool) -> float:
    """Choose the penalty with the smallest mean size of the sets of these rows."""
    sizes = {}
    for penalty in _PENALTIES:
        ranking = Ranking(True, penalty, penalty_after)
        thresholds = find_thresholds(rows, ranking, coverage=coverage, by_class=by_class)
        conformity = compute_conformity(rows.probs, ranking, rows.uniform)
        sets = choose_classes(rows.probs, conformity, thresholds, allow_empty=allow_empty, xp=namespace(rows.probs))
        sizes[penalty] = float(np.average(sets.sum(axis=1), weights=rows.weights))
    return min(sizes, key=lambda penalty: sizes[penalty])
