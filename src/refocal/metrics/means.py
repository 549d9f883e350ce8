"""Measures that are means over samples: proper scores, focal loss, error rate, share of confident predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import numpy as np

from refocal import _check
from refocal._check import Input
from refocal.maps.focal import focal_partial_unchecked
from refocal.metrics.defaults import CONFIDENT
from refocal.metrics.inputs import ArrayLike, Block, Events, Sample, Task, read, read_floats
from refocal.stats.proper_scores import (
    brier_scores,
    divergences,
    divergences_of_logits,
    softmax,
    truth_of_logits,
    truth_of_probs,
)

SharePart = Literal["share", "accuracy"]
SampleScores = tuple[np.ndarray, np.ndarray | None]  # one score per sample, and the weights


class ConfidenceShare(NamedTuple):
    """The share of very confident predictions, and their accuracy (NaN if there are none)."""

    share: float
    accuracy: float


def nll(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Negative log-likelihood: the mean of -log p of the true class.

    From logits, no value saturates.

    Args:
        scores: (N, K), or (N, K, ...) with classes on axis 1; one score for P(y = 1) for "binary"; (N, L) for
            "multilabel".
        labels: (N,) or (N, ...) class indices; 0 or 1 for the other tasks, with the shape of `scores`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight per label.
        task: "multiclass", "binary" or "multilabel". The last two average over all events.
        ignore_index: Labels with this value do not count.

    Returns:
        A number >= 0, infinite if a true class has probability 0.

    Example:
        >>> import numpy as np
        >>> round(nll(np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([0, 1])), 6)
        0.458145
        >>> nll(np.array([[0.0, 800.0]]), np.array([0]), input="logits")
        800.0

    Reference: Mukhoti et al. (2020), section 2.
    """
    return mean(*nll_scores(read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)))


def brier(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Brier score: the mean of sum_k (p_k - [y = k])^2.

    The sum runs over all K classes. So two columns give twice the value of task="binary", which is the mean of
    (p - y)^2 for p = P(y = 1), as in scikit-learn's `brier_score_loss`.

    Args:
        scores: As for `nll`.
        labels: As for `nll`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight per label.
        task: "multiclass", "binary" or "multilabel". The last two average over all events.
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> round(brier(np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([0, 1])), 6)
        0.29
        >>> round(brier(np.array([0.5, 0.8]), np.array([0, 1]), task="binary"), 6)
        0.145

    Reference: Brier: Verification of forecasts expressed in terms of probability. 1950; Mukhoti et al. (2020),
        section 5.
    """
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    return mean(*brier_sample_scores(sample))


def focal_score(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    gamma: float,
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Focal loss: the mean of -(1 - p)^gamma log p of the true class.

    From logits, 1 - p is the sum over the other classes, so it is accurate near p = 1.

    Args:
        scores: As for `nll`.
        labels: As for `nll`.
        gamma: Focusing parameter > -1; 0 gives `nll`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight per label.
        task: "multiclass", "binary" or "multilabel".
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> round(focal_score(np.array([[0.2, 0.8]]), np.array([1]), gamma=2.0), 6)
        0.008926
        >>> focal_score(np.array([[100.0, 0.0]]), np.array([0]), gamma=1.0, input="logits") > 0
        True

    Reference: Charoenphakdee et al. (2021), Eq. 5.
    """
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    return mean(*focal_scores(sample, gamma=gamma))


def kl_to_posterior(
    scores: ArrayLike,
    posterior: ArrayLike,
    *,
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean of KL(posterior || prediction) over rows, for a known true posterior or the distribution of human labels.

    From logits it is finite, however small a probability is.

    Args:
        scores: Predictions (N, K).
        posterior: True probabilities (N, K).
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight per row.

    Example:
        >>> import numpy as np
        >>> round(kl_to_posterior(np.array([[0.5, 0.5]]), np.array([[0.9, 0.1]])), 6)
        0.368064
        >>> kl_to_posterior(np.array([[0.0, 900.0]]), np.array([[1.0, 0.0]]), input="logits")
        900.0

    Reference: Charoenphakdee et al. (2021), section 5.2.
    """
    return mean(*kl_scores(scores, posterior, sample_weight, input=input))


def error(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Error rate: how often the most probable class (the first of equals) is not the label.

    Args:
        scores: As for `nll`.
        labels: As for `nll`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight per label.
        task: "multiclass"; "binary" and "multilabel" predict 1 if its probability is at least 1/2.
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> error(np.array([[0.6, 0.4], [0.2, 0.8]]), np.array([1, 1]))
        0.5

    Reference: Charoenphakdee et al. (2021), Eq. 1.
    """
    return mean(*error_scores(read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)))


def confidence_share(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    threshold: float = CONFIDENT,
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
) -> ConfidenceShare:
    """The share of predictions with confidence >= threshold (|S99| for 0.99), and their accuracy.

    Args:
        scores: As for `nll`.
        labels: As for `nll`.
        threshold: The least confidence that counts as high.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight per label.
        task: "multiclass"; for "binary" and "multilabel" the confidence is max(p, 1 - p).
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> confidence_share(np.array([[0.995, 0.005], [0.4, 0.6]]), np.array([0, 0]))
        ConfidenceShare(share=0.5, accuracy=1.0)

    Reference: Mukhoti et al. (2020), Table 6.
    """
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    share = mean(*confident_scores(sample, threshold=threshold, part="share"))
    return ConfidenceShare(share, mean(*confident_scores(sample, threshold=threshold, part="accuracy")))


def decisions(sample: Sample) -> Iterator[Events]:
    """Confidence and correctness of each decision; the decision about an event is the likelier of 1 and 0."""
    for events in sample.events():
        if sample.classes > 1:
            yield events
        else:
            confidence, correct, weights = events
            yield Events(np.maximum(confidence, 1 - confidence), (confidence >= 0.5) == correct, weights)


def nll_scores(sample: Sample) -> SampleScores:
    """-log p of each row."""
    truth = truth_of_logits if sample.is_logits else truth_of_probs
    return _row_scores(sample, lambda block: -truth(block.scores, block.labels)[0])


def focal_scores(sample: Sample, *, gamma: float) -> SampleScores:
    """-(1 - p)^gamma log p of each row."""
    gamma = _check.scalar_gamma(gamma)
    truth = truth_of_logits if sample.is_logits else truth_of_probs
    return _row_scores(
        sample, lambda block: focal_partial_unchecked(*truth(block.scores, block.labels), gamma=gamma, xp=np)
    )


def brier_sample_scores(sample: Sample) -> SampleScores:
    """The Brier score of each row."""
    return _row_scores(
        sample,
        lambda block: brier_scores(softmax(block.scores) if sample.is_logits else block.scores, block.labels),
    )


def error_scores(sample: Sample) -> SampleScores:
    """1 for each wrong decision, 0 for each right one."""
    parts = [~events.correct for events in decisions(sample)]
    return np.concatenate(parts).astype(np.float64), sample.used_weights()


def confident_scores(sample: Sample, *, threshold: float, part: SharePart) -> SampleScores:
    """For "share", 1 for each confident decision. For "accuracy", 1 for each right one; only confident ones weigh."""
    threshold = _check.share(threshold, "threshold")
    parts = [(events.confidence >= threshold, events.correct) for events in decisions(sample)]
    confident, right = (np.concatenate(each).astype(np.float64) for each in zip(*parts, strict=True))
    weights = sample.used_weights()
    if part == "share":
        return confident, weights
    return right, confident if weights is None else confident * weights


def kl_scores(
    scores: ArrayLike, posterior: ArrayLike, sample_weight: ArrayLike | None, *, input: Input
) -> SampleScores:
    """KL(posterior || prediction) of each row."""
    predictions, truth = read_floats(scores, "scores")[0], read_floats(posterior, "posterior")[0]
    _check.same_shape(predictions, truth, "scores and posterior")
    if predictions.ndim != 2:
        msg = f"scores and posterior must have shape (N, classes), got {tuple(predictions.shape)}"
        raise ValueError(msg)
    no_labels = np.zeros(predictions.shape[:1], dtype=np.int8)
    sample = read(scores, no_labels, sample_weight, input=input)
    divergence = divergences_of_logits if input == "logits" else divergences
    pairs = zip(sample.blocks(), read(posterior, no_labels, name="posterior").blocks(), strict=True)
    return np.concatenate([divergence(other.scores, block.scores) for block, other in pairs]), sample.weights


def mean(values: np.ndarray, weights: np.ndarray | None) -> float:
    """The weighted mean; a weight of 0 removes a row, even if its score is infinite."""
    if weights is None:
        return float(np.mean(values))
    used = weights > 0
    total = float(np.sum(weights))
    return float(np.sum(weights[used] * values[used])) / total if total > 0 else float("nan")


def _row_scores(sample: Sample, score: Callable[[Block], np.ndarray]) -> SampleScores:
    parts = [score(block) for block in sample.blocks()]
    return np.concatenate(parts), sample.used_weights()
