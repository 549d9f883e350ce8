"""Maximum mean calibration error: a kernel measure of a batch's miscalibration that a network can be trained with."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refocal import _check
from refocal.losses.base import FIT_INSTEAD, AbstractLoss, NoPosteriorError, register_weight
from refocal.losses.pair_sums import laplacian_form
from refocal.losses.posterior_maps import SoftmaxMap
from refocal.losses.rows import gather_target, loss_dtype, parse_index_rows
from refocal.losses.spec import Reduction

_KERNEL_WIDTH = 0.4


def mmce_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weighted: bool = False,
    kernel_width: float = _KERNEL_WIDTH,
    ignore_index: int = -100,
) -> Tensor:
    """Maximum mean calibration error of a batch: how far confidence and accuracy differ, with a Laplacian kernel.

    With confidences r_i, correctness c_i and k(r, s) = exp(-|r - s| / kernel_width),

        MMCE = sqrt(sum_ij (c_i - r_i) (c_j - r_j) k(r_i, r_j)) / m.

    The weighted form divides the terms of correct samples by their number, and those of wrong samples by theirs. A few
    mistakes then count as much as many correct predictions.

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
        ICML 2018; Mukhoti et al. (2020), section 5.
    """
    width = _check.positive(kernel_width, "kernel_width")
    ignore_index = _check.whole(ignore_index, "ignore_index")
    batch = _batch_log_probs(logits, target, ignore_index=ignore_index)
    gather_target(batch.log_probs, batch.target, ignore_index)  # rejects indices out of bounds
    return _mmce(batch, weighted=weighted, width=width).to(loss_dtype(logits))


class MMCELoss(AbstractLoss):
    """Cross-entropy plus `factor` times the maximum mean calibration error of the batch; see `mmce_loss`.

    Choose it to penalize miscalibration directly while training with cross-entropy.

    Cross-entropy is proper and MMCE is 0 at the true posterior, so the posterior is the softmax. There is no closed
    form in two cases. Class weights move the minimum of cross-entropy away from that of MMCE. The weighted form of MMCE
    is not 0 at the true posterior: it is |1 - 2 r| if all samples have the same posterior.

    Args:
        factor: Weight of the MMCE, >= 0 (Mukhoti et al. (2020) use 2 for images and 8 for text).
        weighted: Use the weighted form of MMCE.
        kernel_width: Width of its kernel, > 0.
        weight: Class weights of the cross-entropy.
        ignore_index: Class index that does not count.
        reduction: "mean" or "sum" of the cross-entropy. With "sum", the MMCE is multiplied by the number of samples.
    """

    weight: Tensor | None

    def __init__(
        self,
        factor: float,
        *,
        weighted: bool = False,
        kernel_width: float = _KERNEL_WIDTH,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        if reduction == "none":
            msg = "MMCE is a property of a batch: reduction must be 'mean' or 'sum'"
            raise ValueError(msg)
        self.factor, self.weighted = _check.finite(factor, "factor", least=0.0), weighted
        self.kernel_width = _check.positive(kernel_width, "kernel_width")
        register_weight(self, weight)
        self.ignore_index = _check.whole(ignore_index, "ignore_index")

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy plus the regularizer."""
        batch = _batch_log_probs(logits, target, ignore_index=self.ignore_index, weight=self.weight)
        log_probs = batch.log_probs
        weight = None if self.weight is None else self.weight.flatten().to(log_probs.dtype)
        cross_entropy = F.nll_loss(
            log_probs, batch.target, weight=weight, ignore_index=self.ignore_index, reduction=self.reduction
        )
        mmce = _mmce(batch, weighted=self.weighted, width=self.kernel_width)
        if self.reduction == "sum":
            mmce = mmce * batch.keep.sum()
        return (cross_entropy + self.factor * mmce).to(loss_dtype(logits))

    @property
    def posterior_map(self) -> nn.Module:
        """Softmax; none with class weights or with the weighted form of MMCE."""
        if self.weighted:
            reason = "its weighted form is not 0 at the true posterior"
        elif self.weight is not None and len(set(self.weight.flatten().tolist())) > 1:
            reason = "class weights move the minimum of cross-entropy away from that of MMCE"
        else:
            return SoftmaxMap()
        msg = f"MMCE has no closed-form posterior here: {reason}; {FIT_INSTEAD}"
        raise NoPosteriorError(msg)

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"factor={self.factor}, weighted={self.weighted}, kernel_width={self.kernel_width}, "
            f"ignore_index={self.ignore_index}, reduction={self.reduction!r}"
        )


class _Batch(NamedTuple):
    """log p (N, K) at least in float32, class indices (N,), and which rows count (N,)."""

    log_probs: Tensor
    target: Tensor
    keep: Tensor


def _batch_log_probs(logits: Tensor, target: Tensor, *, ignore_index: int, weight: Tensor | None = None) -> _Batch:
    """Log-probabilities of a batch. Rows that do not count are uniform, whatever their logits are."""
    rows = parse_index_rows(logits, target, weight=weight)
    keep = rows.target != ignore_index
    return _Batch(torch.log_softmax(torch.where(keep[:, None], rows.logits, 0), dim=1), rows.target, keep)


def _mmce(batch: _Batch, *, weighted: bool, width: float) -> Tensor:
    log_confidence, predicted = batch.log_probs.max(dim=1)
    confidence = torch.exp(log_confidence)
    correct, keep = predicted == batch.target, batch.keep
    difference = torch.where(keep, correct.to(confidence.dtype) - confidence, 0)
    number = torch.where(correct, (correct & keep).sum(), (~correct & keep).sum()) if weighted else keep.sum()
    squared = laplacian_form(confidence, difference / number.clamp(min=1), width=width)
    # The square root has an infinite slope at 0. A batch without error gets value 0 and gradient 0.
    none = squared <= 0
    return torch.where(none, 0, torch.sqrt(torch.where(none, 1, squared)))
