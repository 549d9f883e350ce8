"""Maximum mean calibration error: a kernel measure of a batch's miscalibration that can be trained on."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from refocal import _check
from refocal.losses.pair_sums import laplacian_form
from refocal.losses.rows import as_rows, at_least_float32, gather_target, loss_dtype


def mmce_loss(
    logits: Tensor, target: Tensor, *, weighted: bool = False, kernel_width: float = 0.4, ignore_index: int = -100
) -> Tensor:
    """Maximum mean calibration error of a batch, with a Laplacian kernel.

    With confidences r_i, correctness c_i and k(r, s) = exp(-|r - s| / kernel_width),

        MMCE = sqrt(sum_ij (c_i - r_i) (c_j - r_j) k(r_i, r_j)) / m.

    The weighted form divides the correct and the wrong samples' terms by their own numbers, so that few mistakes count
    as much as many hits.

    Args:
        logits: Scores (N, K, ...).
        target: Class indices (N, ...).
        weighted: Use the weighted form.
        kernel_width: Width of the kernel, > 0.
        ignore_index: Samples with this class index do not count.

    Returns:
        One number for the batch, >= 0. Time grows as N log N, and memory as N.

    Example:
        >>> mmce_loss(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0])).item()
        0.5

    Reference: Kumar, Sarawagi, Jain: Trainable Calibration Measures for Neural Networks from Kernel Mean Embeddings.
        ICML 2018; 002, section 5.
    """
    width = _check.positive(kernel_width, "kernel_width")
    ignore_index = _check.whole(ignore_index, "ignore_index")
    counted = counted_log_probs(logits, target, ignore_index=ignore_index)
    gather_target(counted.log_probs, counted.target, ignore_index)  # refuses indices out of bounds
    return mmce_of(counted, weighted=weighted, width=width).to(loss_dtype(logits))


class CountedLogProbs(NamedTuple):
    """What a batch says of its classes, at least in float32: log p (N, K), indices (N,), and which rows count (N,)."""

    log_probs: Tensor
    target: Tensor
    keep: Tensor


def counted_log_probs(
    logits: Tensor, target: Tensor, *, ignore_index: int, weight: Tensor | None = None
) -> CountedLogProbs:
    """Log-probabilities of a batch, uniform in the rows that do not count, whatever their logits are."""
    rows = as_rows(logits, target, weight=weight)
    if not rows.has_indices:
        msg = "this loss takes class indices as its target, not class probabilities"
        raise TypeError(msg)
    keep = rows.target != ignore_index
    wide = torch.where(keep[:, None], at_least_float32(rows.logits), 0)
    return CountedLogProbs(torch.log_softmax(wide, dim=1), rows.target, keep)


def mmce_of(counted: CountedLogProbs, *, weighted: bool, width: float) -> Tensor:
    """`mmce_loss`, from log-probabilities."""
    log_confidence, predicted = counted.log_probs.max(dim=1)
    confidence = torch.exp(log_confidence)
    correct, keep = predicted == counted.target, counted.keep
    difference = torch.where(keep, correct.to(confidence.dtype) - confidence, 0)
    number = torch.where(correct, (correct & keep).sum(), (~correct & keep).sum()) if weighted else keep.sum()
    squared = laplacian_form(confidence, difference / number.clamp(min=1), width=width)
    # the root's slope at 0 is infinite: a batch without error gets value and gradient 0
    none = squared <= 0
    return torch.where(none, 0, torch.sqrt(torch.where(none, 1, squared)))
