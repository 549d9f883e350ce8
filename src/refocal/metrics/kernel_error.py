"""Kernel calibration error: it compares all pairs of samples and needs no bins."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from refocal import _check
from refocal._check import Input
from refocal.metrics.inputs import ArrayLike, Events, Sample, Task, read
from refocal.stats.kernel_sums import laplacian_pairs, laplacian_vector_products

KernelClasses = Literal["top", "all"]

KERNEL_CLASSES: tuple[KernelClasses, ...] = get_args(KernelClasses)


def kernel_calibration_error(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    kernel_width: float = 0.4,
    unbiased: bool = False,
    classes: KernelClasses = "top",
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Kernel calibration error with the Laplacian kernel k(x, x') = exp(-|x - x'| / kernel_width).

    With residuals r_i, places x_i and weights w_i that sum to 1,

        biased: sqrt(sum_ij w_i w_j r_i . r_j k(x_i, x_j)),
        unbiased: sum_{i != j} w_i w_j r_i . r_j k(x_i, x_j) / sum_{i != j} w_i w_j.

    The first is the maximum mean calibration error (MMCE), the second an unbiased estimate of its square (SKCE). The
    mean of the second is 0 for a calibrated model, so it can be negative.

    Args:
        scores: (N, K), or (N, K, ...) with classes on axis 1; one score for P(y = 1) for "binary"; (N, L) for
            "multilabel".
        labels: (N,) or (N, ...) class indices; 0 or 1 for the other tasks, with the shape of `scores`.
        kernel_width: Width of the kernel.
        unbiased: Return the unbiased estimate of the square instead of the biased root.
        classes: "top": r = confidence - correct at x = confidence, in time O(N log N). "all": r = p - onehot(y) at
            x = p with the Euclidean distance, for every class, in time O(N^2 K).
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight per label.
        task: As for `ece`.
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> kernel_calibration_error(np.array([[0.5, 0.5], [0.5, 0.5]]), np.array([0, 0]))
        0.5

    Reference: Kumar, Sarawagi, Jain: Trainable calibration measures for neural networks from kernel mean embeddings.
        ICML 2018 (MMCE); Widmann, Lindsten, Zachariah: Calibration tests in multi-class classification. NeurIPS 2019
        (SKCE).
    """
    width = _check.positive(kernel_width, "kernel_width")
    _check.one_of(classes, "classes", KERNEL_CLASSES)
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    if classes == "top" or sample.classes == 1:
        return event_kernel_error(sample.all_events(), width=width, unbiased=unbiased)
    places, residuals = row_residuals(sample)
    shares = weight_shares(sample.used_weights(), len(places))
    total = float((laplacian_vector_products(places, residuals, shares[None], width=width) @ shares)[0])
    diagonal = float(np.sum((residuals * shares[:, None]) ** 2))
    return _error_from_pairs(total, diagonal, shares, unbiased=unbiased)


def event_kernel_error(events: Events, *, width: float, unbiased: bool) -> float:
    """The kernel calibration error of events."""
    shares = weight_shares(events.weights, len(events.confidence))
    scaled = (events.confidence.astype(np.float64) - events.correct) * shares
    total = laplacian_pairs(events.confidence, scaled, width=width)
    return _error_from_pairs(total, float(np.sum(scaled**2)), shares, unbiased=unbiased)


def _error_from_pairs(total: float, diagonal: float, shares: np.ndarray, *, unbiased: bool) -> float:
    if not unbiased:
        return float(np.sqrt(max(0.0, total)))
    pairs = 1 - float(np.sum(shares**2))
    if pairs <= 0:
        msg = f"unbiased=True needs two samples or more of positive weight, got {np.count_nonzero(shares)}"
        raise ValueError(msg)
    return (total - diagonal) / pairs


def weight_shares(weights: np.ndarray | None, count: int) -> np.ndarray:
    """Weights that sum to 1."""
    return np.full(count, 1 / count) if weights is None else weights / weights.sum()


def row_residuals(sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Rows of probabilities, and the same rows minus their one-hot labels."""
    parts = [(block.scores.astype(np.float64), block.labels) for block in sample.prob_blocks()]
    places = np.concatenate([scores for scores, _ in parts])
    residuals = places.copy()
    residuals[np.arange(len(places)), np.concatenate([labels for _, labels in parts])] -= 1
    return places, residuals
