"""Means over samples: proper scores, focal loss, divergence from a known posterior, error rate, confident share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from refocal import _check
from refocal.maps.focal import focal_partial_unchecked
from refocal.metrics.inputs import Block, Input, Sample, read
from refocal.stats.proper_scores import (
    brier_scores,
    divergences,
    divergences_of_logits,
    softmax,
    truth_of_logits,
    truth_of_probs,
)

Array = Any
PerRow = Callable[[Block], np.ndarray]


class ConfidenceShare(NamedTuple):
    """How many predictions are very confident, and how many of those are right (NaN where there are none)."""

    share: float
    accuracy: float


def nll(
    scores: Array,
    labels: Array,
    *,
    input: Input = "probs",
    sample_weight: Array = None,
    task: str = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Negative log-likelihood: the mean of -log p of the true class.

    Args:
        scores: (N, K), (N, K, ...) with classes on axis 1; P(y = 1) for "binary"; (N, L) for "multilabel".
        labels: (N,) or (N, ...) class indices; 0 or 1 for the other tasks, then with the shape of `scores`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight for each label.
        task: "multiclass", "binary" or "multilabel"; binary and multilabel take the mean over all events.
        ignore_index: Labels with this value do not count.

    Returns:
        A number >= 0; infinite where a true class had probability 0.

    Example:
        >>> import numpy as np
        >>> round(nll(np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([0, 1])), 6)
        0.458145

    Reference: 002, section 2.
    """
    return mean(*nll_scores(read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)))


def brier(
    scores: Array,
    labels: Array,
    *,
    input: Input = "probs",
    sample_weight: Array = None,
    task: str = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Brier score: the mean of sum_k (p_k - [y = k])^2.

    The sum runs over all K classes, so two columns give twice what task="binary" gives for P(y = 1), the mean of
    (p - y)^2, which is the convention of scikit-learn's `brier_score_loss` for two classes.

    Args:
        scores: (N, K), (N, K, ...) with classes on axis 1; P(y = 1) for "binary"; (N, L) for "multilabel".
        labels: (N,) or (N, ...) class indices; 0 or 1 for the other tasks, then with the shape of `scores`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight for each label.
        task: "multiclass", "binary" or "multilabel"; binary and multilabel take the mean over all events.
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> round(brier(np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([0, 1])), 6)
        0.29
        >>> round(brier(np.array([0.5, 0.8]), np.array([0, 1]), task="binary"), 6)
        0.145

    Reference: Brier: Verification of forecasts expressed in terms of probability. 1950; 002, section 5.
    """
    return mean(
        *brier_score_rows(read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index))
    )


def focal_score(
    scores: Array,
    labels: Array,
    *,
    gamma: float,
    input: Input = "probs",
    sample_weight: Array = None,
    task: str = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Focal loss: the mean of -(1 - p)^gamma log p of the true class.

    Args:
        scores: As for `nll`.
        labels: As for `nll`.
        gamma: Focusing parameter > -1; 0 gives `nll`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight for each label.
        task: "multiclass", "binary" or "multilabel".
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> round(focal_score(np.array([[0.2, 0.8]]), np.array([1]), gamma=2.0), 6)
        0.008926

    Reference: 001, Eq. 5.
    """
    gamma = _check.scalar_gamma(gamma)
    return mean(
        *focal_scores(
            read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index), gamma=gamma
        )
    )


def kl_to_posterior(scores: Array, posterior: Array, *, input: Input = "probs", sample_weight: Array = None) -> float:
    """Mean over rows of KL(posterior || probs), where the true posterior or the distribution of human labels is known.

    Args:
        scores: Predicted probabilities (N, K).
        posterior: True probabilities (N, K).
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight for each row.

    Example:
        >>> import numpy as np
        >>> round(kl_to_posterior(np.array([[0.5, 0.5]]), np.array([[0.9, 0.1]])), 6)
        0.368064

    Reference: 001, section 5.2.
    """
    return mean(*kl_scores(scores, posterior, sample_weight, input=input))


def error(
    scores: Array,
    labels: Array,
    *,
    input: Input = "probs",
    sample_weight: Array = None,
    task: str = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Error rate: how often the most probable class (the first of equals) is not the label.

    Args:
        scores: As for `nll`.
        labels: As for `nll`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight for each label.
        task: "multiclass"; "binary" and "multilabel" decide for 1 from probability 1/2 up.
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> error(np.array([[0.6, 0.4], [0.2, 0.8]]), np.array([1, 1]))
        0.5

    Reference: 001, Eq. 1.
    """
    return mean(*error_scores(read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)))


def confidence_share(
    scores: Array,
    labels: Array,
    *,
    threshold: float = 0.99,
    input: Input = "probs",
    sample_weight: Array = None,
    task: str = "multiclass",
    ignore_index: int | None = None,
) -> ConfidenceShare:
    """The share of predictions with confidence >= threshold, |S99| for .99, and the accuracy inside.

    Args:
        scores: As for `nll`.
        labels: As for `nll`.
        threshold: The least confidence that counts as high.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight for each label.
        task: "multiclass"; for "binary" and "multilabel" the confidence is max(p, 1 - p).
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> confidence_share(np.array([[0.995, 0.005], [0.4, 0.6]]), np.array([0, 0]))
        ConfidenceShare(share=0.5, accuracy=1.0)

    Reference: 002, Table 6.
    """
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    share, accuracy = (
        mean(*confident_scores(sample, threshold=threshold, part=part)) for part in ("share", "accuracy")
    )
    return ConfidenceShare(share, accuracy)


def decisions(sample: Sample) -> Any:
    """Confidence, correctness and weight of each decision; an event's decision is the likelier of 1 and 0."""
    for confidence, correct, weights in sample.events():
        scale = np.float64(1.0) if weights is None else weights
        if sample.classes > 1:
            yield confidence, correct, scale
        else:
            yield np.maximum(confidence, 1 - confidence), (confidence >= 0.5) == correct, scale


def nll_scores(sample: Sample) -> tuple[np.ndarray, np.ndarray | None]:
    """-log p of each row, and its weights."""
    truth = truth_of_logits if sample.is_logits else truth_of_probs
    return _rows(sample, lambda block: -truth(block.scores, block.labels)[0])


def focal_scores(sample: Sample, *, gamma: float) -> tuple[np.ndarray, np.ndarray | None]:
    """-(1 - p)^gamma log p of each row, and its weights."""
    truth = truth_of_logits if sample.is_logits else truth_of_probs
    return _rows(sample, lambda block: focal_partial_unchecked(*truth(block.scores, block.labels), gamma=gamma, xp=np))


def brier_score_rows(sample: Sample) -> tuple[np.ndarray, np.ndarray | None]:
    """The Brier score of each row, and its weights."""
    return _rows(
        sample,
        lambda block: brier_scores(softmax(block.scores) if sample.is_logits else block.scores, block.labels),
    )


def error_scores(sample: Sample) -> tuple[np.ndarray, np.ndarray | None]:
    """1 for each wrong decision, and weights."""
    parts = [~correct for _, correct, _ in decisions(sample)]
    return np.concatenate(parts).astype(np.float64), kept_weights(sample)


def confident_scores(sample: Sample, *, threshold: float = 0.99, part: str) -> tuple[np.ndarray, np.ndarray | None]:
    """For "share", 1 for each confident decision; for "accuracy", 1 for each right one, those that count weighted."""
    threshold = _check.share(threshold, "threshold")
    parts = [(confidence >= threshold, correct) for confidence, correct, _ in decisions(sample)]
    confident, right = (np.concatenate(each).astype(np.float64) for each in zip(*parts, strict=True))
    weights = kept_weights(sample)
    if part == "share":
        return confident, weights
    return right, confident if weights is None else confident * weights


def kl_scores(
    scores: Array, posterior: Array, sample_weight: Array, *, input: Input
) -> tuple[np.ndarray, np.ndarray | None]:
    """KL(posterior || prediction) of each row, and its weights."""
    _, scores = _check.floating(scores, "scores")
    _, posterior = _check.floating(posterior, "posterior")
    _check.same_shape(scores, posterior, "scores and posterior")
    nothing = np.zeros(scores.shape[:1], dtype=np.int8)
    sample = read(scores, nothing, sample_weight, input=input)
    truth = read(posterior, nothing, name="posterior")
    compare = divergences_of_logits if input == "logits" else divergences
    pairs = zip(sample.blocks(), truth.blocks(), strict=True)
    return np.concatenate([compare(other.scores, block.scores) for block, other in pairs]), sample.weights


def kept_weights(sample: Sample) -> np.ndarray | None:
    """The weights of the rows that count."""
    if sample.weights is None or sample.ignore_index is None:
        return sample.weights
    return sample.weights[sample.labels != sample.ignore_index]


def mean(values: np.ndarray, weights: np.ndarray | None) -> float:
    """The weighted mean; a weight of 0 takes a row out, even one of infinite score."""
    if weights is None:
        return float(np.mean(values))
    used = weights > 0
    total = float(np.sum(weights))
    return float(np.sum(weights[used] * values[used])) / total if total > 0 else float("nan")


def _rows(sample: Sample, score: PerRow) -> tuple[np.ndarray, np.ndarray | None]:
    parts = [score(block) for block in sample.blocks()]
    return np.concatenate(parts), kept_weights(sample)
