"""Maximum mean calibration error: a kernel measure of a batch's miscalibration that can be trained on."""

from __future__ import annotations

import torch
from torch import Tensor

from refocal import _check
from refocal.losses.targets import as_rows, at_least_float32, gather_target, loss_dtype


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
        kernel_width: Width of the kernel.
        ignore_index: Samples with this class index do not count.

    Returns:
        One number for the batch, >= 0.

    Example:
        >>> mmce_loss(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 0])).item()
        0.5

    Reference: Kumar, Sarawagi, Jain: Trainable Calibration Measures for Neural Networks from Kernel Mean Embeddings.
        ICML 2018; 002, section 5.
    """
    rows = as_rows(logits, target, weight=None)
    if not rows.has_indices:
        msg = "this loss takes class indices as its target, not class probabilities"
        raise TypeError(msg)
    wide = at_least_float32(rows.logits)
    _, keep, _ = gather_target(wide, rows.target, _check.whole(ignore_index, "ignore_index"))
    confidence, predicted = torch.softmax(wide, dim=1).max(dim=1)
    correct = (predicted == rows.target).to(confidence.dtype)
    if weighted:
        hits = (correct * keep).sum().clamp(min=1)
        misses = ((1 - correct) * keep).sum().clamp(min=1)
        share = torch.where(correct > 0, 1 / hits, 1 / misses)
    else:
        share = 1 / keep.sum().clamp(min=1).to(confidence.dtype)
    difference = torch.where(keep, (correct - confidence) * share, 0)
    kernel = torch.exp(-(confidence[:, None] - confidence[None, :]).abs() / kernel_width)
    squared = difference @ kernel @ difference
    # the root's slope at 0 is infinite: a batch without error gets value and gradient 0
    none = squared <= 0
    return torch.where(none, 0, torch.sqrt(torch.where(none, 1, squared))).to(loss_dtype(logits))
