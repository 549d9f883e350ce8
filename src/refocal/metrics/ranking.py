"""How well confidence ranks right decisions before wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from refocal.metrics.inputs import Events, Input, Sample, joined, read
from refocal.metrics.means import decisions

Array = Any


def auroc(
    scores: Array,
    labels: Array,
    *,
    input: Input = "probs",
    sample_weight: Array = None,
    task: str = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Probability that a right decision has a higher confidence than a wrong one; ties count one half.

    Args:
        scores: (N, K), (N, K, ...) with classes on axis 1; P(y = 1) for "binary"; (N, L) for "multilabel".
        labels: (N,) or (N, ...) class indices; 0 or 1 for the other tasks, then with the shape of `scores`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight for each label.
        task: "multiclass"; for "binary" and "multilabel" the confidence is max(p, 1 - p).
        ignore_index: Labels with this value do not count.

    Returns:
        A number in [0, 1]; NaN where all decisions are right, or all wrong.

    Example:
        >>> import numpy as np
        >>> auroc(np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), np.array([0, 1, 0]))
        1.0

    Reference: Hendrycks, Gimpel: A baseline for detecting misclassified and out-of-distribution examples. ICLR 2017.
    """
    events = all_decisions(read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index))
    return auroc_of(by_falling_confidence(events)[0])


def aurc(
    scores: Array,
    labels: Array,
    *,
    input: Input = "probs",
    sample_weight: Array = None,
    task: str = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Area under the risk-coverage curve: the error rate of the k most confident decisions, averaged over k.

    Decisions of equal confidence are taken in random order, and the mean over these orders is returned.

    Args:
        scores: As for `auroc`.
        labels: As for `auroc`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight for each label.
        task: As for `auroc`.
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> round(aurc(np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), np.array([0, 1, 0])), 6)
        0.111111

    Reference: Geifman, Uziel, El-Yaniv: Bias-reduced uncertainty estimation for deep neural classifiers. ICLR 2019.
    """
    events = all_decisions(read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index))
    return aurc_of(by_falling_confidence(events)[0])


def all_decisions(sample: Sample) -> Events:
    """Confidence, correctness and weight of every decision."""
    parts = [
        Events(confidence, correct, np.broadcast_to(scale, correct.shape))
        for confidence, correct, scale in decisions(sample)
    ]
    return joined(parts)


def by_falling_confidence(events: Events) -> tuple[Events, np.ndarray]:
    """Decisions by falling confidence, and that order."""
    confidence, correct, weights = events
    order = np.argsort(-confidence, kind="stable")
    return Events(confidence[order], correct[order], None if weights is None else weights[order]), order


def auroc_of(events: Events) -> float:
    """The area for decisions by falling confidence."""
    right, wrong = _tie_sums(events)[:2]
    total = float(right.sum() * wrong.sum())
    if total == 0:
        return float("nan")
    wrong_below = wrong.sum() - np.cumsum(wrong)
    return float(np.sum(right * (wrong_below + wrong / 2)) / total)


def aurc_of(events: Events) -> float:
    """The area for decisions by falling confidence.

    In a group of g equal confidences the m-th decision comes, in the mean over orders, after the same share of the
    group's errors and of its weight.
    """
    right, wrong, size = _tie_sums(events)
    weight = right + wrong
    group = np.repeat(np.arange(len(size)), size)
    first = np.cumsum(size) - size
    part = (np.arange(len(group)) - first[group] + 1) / size[group]
    errors = (np.cumsum(wrong) - wrong)[group] + part * wrong[group]
    covered = (np.cumsum(weight) - weight)[group] + part * weight[group]
    risk = np.divide(errors, covered, out=np.zeros_like(errors), where=covered > 0)
    return float(np.sum(risk * (weight / size)[group]) / weight.sum())


def _tie_sums(events: Events) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weight of right and of wrong decisions, and their number, in each group of equal confidence."""
    confidence, correct, weights = events
    starts = np.flatnonzero(np.concatenate([[True], confidence[1:] != confidence[:-1]]))
    scale = np.ones(len(correct)) if weights is None else weights
    right = np.add.reduceat(scale * correct, starts)
    wrong = np.add.reduceat(scale * ~correct, starts)
    return right, wrong, np.diff(np.append(starts, len(correct)))
