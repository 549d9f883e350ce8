"""Kernel calibration error: every pair of samples compared, no bins."""

from __future__ import annotations

from typing import Any

import numpy as np

from refocal import _check
from refocal.metrics.inputs import Events, Input, Sample, read
from refocal.metrics.means import kept_weights
from refocal.stats.kernel_sums import laplacian_pairs, laplacian_vector_products

Array = Any


def kernel_calibration_error(
    scores: Array,
    labels: Array,
    *,
    kernel_width: float = 0.4,
    unbiased: bool = False,
    classes: str = "top",
    input: Input = "probs",
    sample_weight: Array = None,
    task: str = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Kernel calibration error with a Laplacian kernel k(x, x') = exp(-|x - x'| / kernel_width).

    With residuals r_i, places x_i and weights w_i that sum to 1,

        biased: sqrt(sum_ij w_i w_j r_i . r_j k(x_i, x_j)),
        unbiased: sum_{i != j} w_i w_j r_i . r_j k(x_i, x_j) / sum_{i != j} w_i w_j,

    the maximum mean calibration error (MMCE), and the unbiased estimate of its square (SKCE): its mean is 0 for a
    calibrated model, so it may be negative.

    Args:
        scores: (N, K), (N, K, ...) with classes on axis 1; P(y = 1) for "binary"; (N, L) for "multilabel".
        labels: (N,) or (N, ...) class indices; 0 or 1 for the other tasks, then with the shape of `scores`.
        kernel_width: Width of the kernel.
        unbiased: Estimate the square without bias, instead of the root with it.
        classes: "top": r = confidence - correct at x = confidence, in time O(N log N). "all": r = p - onehot(y) at x =
            p, |.| Euclidean, which sees every class, in time O(N^2 K).
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight for each label.
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
    _check.one_of(classes, "classes", ("top", "all"))
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    if classes == "top" or sample.classes == 1:
        return event_kernel_error(sample.all_events(), width=width, unbiased=unbiased)
    places, residuals = vectors(sample)
    shares = shares_of(kept_weights(sample), len(places))
    total = float((laplacian_vector_products(places, residuals, shares[None], width=width) @ shares)[0])
    diagonal = float(np.sum((residuals * shares[:, None]) ** 2))
    return _from_pairs(total, diagonal, shares, unbiased=unbiased)


def event_kernel_error(events: Events, *, width: float, unbiased: bool) -> float:
    """The kernel calibration error of events."""
    shares = shares_of(events.weights, len(events.confidence))
    scaled = (events.confidence.astype(np.float64) - events.correct) * shares
    total = laplacian_pairs(events.confidence, scaled, width=width)
    return _from_pairs(total, float(np.sum(scaled**2)), shares, unbiased=unbiased)


def _from_pairs(total: float, diagonal: float, shares: np.ndarray, *, unbiased: bool) -> float:
    if not unbiased:
        return float(np.sqrt(max(0.0, total)))
    pairs = 1 - float(np.sum(shares**2))
    if pairs <= 0:
        msg = f"unbiased=True needs two samples or more of positive weight, got {np.count_nonzero(shares)}"
        raise ValueError(msg)
    return (total - diagonal) / pairs


def shares_of(weights: np.ndarray | None, count: int) -> np.ndarray:
    """Weights that sum to 1."""
    return np.full(count, 1 / count) if weights is None else weights / weights.sum()


def vectors(sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Rows of probabilities, and the same less their one-hot labels."""
    parts = [(block.scores.astype(np.float64), block.labels) for block in sample.prob_blocks()]
    places = np.concatenate([scores for scores, _ in parts])
    residuals = places.copy()
    residuals[np.arange(len(places)), np.concatenate([labels for _, labels in parts])] -= 1
    return places, residuals
