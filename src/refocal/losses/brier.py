"""The Brier score as a loss: the function and the module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from refocal import _check
from refocal.losses.base import AbstractSoftmaxLoss
from refocal.losses.formulas import soft_target
from refocal.losses.posterior_maps import SoftmaxMap
from refocal.losses.rows import at_least_float32, loss_dtype, parse_rows
from refocal.losses.spec import LossSpec, Reduction


def brier_loss(logits: Tensor, target: Tensor, *, ignore_index: int = -100) -> Tensor:
    """Brier score of each sample: the squared distance of the softmax from the target, sum_c (p_c - t_c)^2.

    Args:
        logits: Scores (N, K, ...).
        target: Class indices (N, ...), or class probabilities t of the shape of `logits`.
        ignore_index: Samples with this class index have loss 0.

    Returns:
        Losses, of the shape of a class-index target.

    Example:
        >>> brier_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0])).tolist()
        [0.5]

    Reference: Mukhoti et al. (2020), section 5.
    """
    ignore_index = _check.whole(ignore_index, "ignore_index")
    rows = parse_rows(logits, target, weight=None, ignore_index=ignore_index)
    wide = at_least_float32(rows.logits, rows.target)
    target, keep = soft_target(rows, LossSpec(0.0, ignore_index), dtype=wide.dtype)
    losses = ((torch.softmax(wide, dim=1) - target) ** 2).sum(dim=1)
    if keep is not None:
        losses = torch.where(keep, losses, 0)
    return losses.to(loss_dtype(logits, rows.target)).reshape(rows.shape)


class BrierLoss(AbstractSoftmaxLoss):
    """Brier score; see `brier_loss`. It is proper: the posterior is the softmax.

    Choose it for a proper loss that is bounded, so that mislabeled samples weigh less than in cross-entropy.

    Args:
        ignore_index: Class index that does not count.
        reduction: "none", "mean" or "sum", as in `nn.CrossEntropyLoss`.
    """

    def __init__(self, *, ignore_index: int = -100, reduction: Reduction = "mean") -> None:
        super().__init__(None, ignore_index, reduction)

    def per_sample(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of each sample."""
        return brier_loss(logits, target, ignore_index=self.ignore_index)

    @property
    def posterior_map(self) -> nn.Module:
        """Softmax."""
        return SoftmaxMap()
