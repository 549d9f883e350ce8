"""How well confidence ranks right decisions before wrong ones."""

from __future__ import annotations

import numpy as np

from refocal._check import Input
from refocal.metrics.inputs import ArrayLike, Events, Sample, Task, concatenate_events, read
from refocal.metrics.means import decisions


def auroc(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Area under the ROC curve for finding wrong decisions by their confidence.

    It is the probability that a right decision has a higher confidence than a wrong one. Ties count one half.

    Args:
        scores: (N, K), or (N, K, ...) with classes on axis 1; one score for P(y = 1) for "binary"; (N, L) for
            "multilabel".
        labels: (N,) or (N, ...) class indices; 0 or 1 for the other tasks, with the shape of `scores`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight per label.
        task: "multiclass"; for "binary" and "multilabel" the confidence is max(p, 1 - p).
        ignore_index: Labels with this value do not count.

    Returns:
        A number in [0, 1]; NaN if all decisions are right or all are wrong.

    Example:
        >>> import numpy as np
        >>> auroc(np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), np.array([0, 1, 0]))
        1.0

    Reference: Hendrycks, Gimpel: A baseline for detecting misclassified and out-of-distribution examples. ICLR 2017.
    """
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    return roc_area(sort_by_confidence(all_decisions(sample))[0])


def aurc(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Area under the risk-coverage curve: the error rate of the k most confident decisions, averaged over k.

    Decisions of equal confidence are ordered at random; the result is the mean over these orders.

    Args:
        scores: As for `auroc`.
        labels: As for `auroc`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight per label.
        task: As for `auroc`.
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> round(aurc(np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), np.array([0, 1, 0])), 6)
        0.111111

    Reference: Geifman, Uziel, El-Yaniv: Bias-reduced uncertainty estimation for deep neural classifiers. ICLR 2019.
    """
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    return risk_coverage_area(sort_by_confidence(all_decisions(sample))[0])


def all_decisions(sample: Sample) -> Events:
    """Confidence, correctness and weight of every decision."""
    return concatenate_events(list(decisions(sample)))


def sort_by_confidence(events: Events) -> tuple[Events, np.ndarray]:
    """Decisions by decreasing confidence, and the order that sorts them."""
    confidence, correct, weights = events
    order = np.argsort(-confidence, kind="stable")
    return Events(confidence[order], correct[order], None if weights is None else weights[order]), order


def roc_area(events: Events) -> float:
    """`auroc` of decisions sorted by decreasing confidence."""
    right, wrong = _tie_sums(events)[:2]
    total = float(right.sum() * wrong.sum())
    if total == 0:
        return float("nan")
    wrong_below = wrong.sum() - np.cumsum(wrong)
    return float(np.sum(right * (wrong_below + wrong / 2)) / total)


def risk_coverage_area(events: Events) -> float:
    """`aurc` of decisions sorted by decreasing confidence.

    On average over the orders of a group of g equal confidences, the first m decisions hold the share m / g of the
    errors and of the weight of the group.
    """
    right, wrong, size = _tie_sums(events)
    weight = right + wrong
    group = np.repeat(np.arange(len(size)), size)
    first = np.cumsum(size) - size
    part = (np.arange(len(group)) - first[group] + 1) / size[group]
    errors = (np.cumsum(wrong) - wrong)[group] + part * wrong[group]
    coverage = (np.cumsum(weight) - weight)[group] + part * weight[group]
    risk = np.divide(errors, coverage, out=np.zeros_like(errors), where=coverage > 0)
    return float(np.sum(risk * (weight[group] / size[group])) / weight.sum())


def _tie_sums(events: Events) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each group of equal confidence: the weight of right and of wrong decisions, and how many have a weight."""
    confidence, correct, _ = events
    starts = np.flatnonzero(np.concatenate([[True], confidence[1:] != confidence[:-1]]))
    scale = events.scale
    right = np.add.reduceat(scale * correct, starts)
    wrong = np.add.reduceat(scale * ~correct, starts)
    return right, wrong, np.add.reduceat((scale > 0).astype(np.intp), starts)
