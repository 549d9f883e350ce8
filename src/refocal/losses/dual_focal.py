"""Dual focal loss: the function and the module."""

from __future__ import annotations

from torch import Tensor, nn

from refocal import _check
from refocal.losses.base import FIT_INSTEAD, AbstractGammaLoss, NoPosteriorError
from refocal.losses.cpu import blocks, one_pass
from refocal.losses.formulas import dual_focal_rows
from refocal.losses.spec import LossSpec


def dual_focal_loss(
    logits: Tensor, target: Tensor, *, gamma: float, weight: Tensor | None = None, ignore_index: int = -100
) -> Tensor:
    """Dual focal loss of each sample: focal loss that also looks at the runner-up class.

    The loss is -(1 - p + p')^gamma log p, where p' is the largest probability below p (0 if there is none).

    Args:
        logits: Scores (N, K, ...).
        target: Class indices (N, ...).
        gamma: Focusing parameter >= 0.
        weight: Class weights (K,).
        ignore_index: Samples with this class index have loss 0.

    Returns:
        Losses (N, ...).

    Example:
        >>> import torch
        >>> round(dual_focal_loss(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]), gamma=2.0).item(), 4)
        0.0245

    Reference: Tao, Dong, Xu: Dual Focal Loss for Calibration. ICML 2023, Eq. 5.
    """
    exponent = _check.scalar_gamma(gamma, least=0.0)
    spec = LossSpec(exponent, _check.whole(ignore_index, "ignore_index"))
    return _reduced_dual_focal_loss(logits, target, weight, spec)


class DualFocalLoss(AbstractGammaLoss):
    """Dual focal loss; see `dual_focal_loss`.

    Choose it to keep a margin to the runner-up class while focusing on hard samples. It has no closed-form posterior.

    Args:
        gamma: Focusing parameter >= 0.
        weight: Class weights (K,).
        ignore_index: Class index that does not count.
        reduction: "none", "mean" or "sum", as in `nn.CrossEntropyLoss`.
    """

    def per_sample(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of each sample."""
        return dual_focal_loss(logits, target, gamma=self.gamma, weight=self.weight, ignore_index=self.ignore_index)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss, reduced."""
        spec = LossSpec(self.gamma, self.ignore_index, reduction=self.reduction)
        return _reduced_dual_focal_loss(logits, target, self.weight, spec)

    @property
    def posterior_map(self) -> nn.Module:
        """There is none."""
        msg = f"dual focal loss has no closed-form posterior: it looks at two probabilities; {FIT_INSTEAD}"
        raise NoPosteriorError(msg)


def _reduced_dual_focal_loss(logits: Tensor, target: Tensor, weight: Tensor | None, spec: LossSpec) -> Tensor:
    def fast(call: one_pass.Call, index: Tensor, weights: Tensor) -> Tensor:
        return blocks.dual_loss(call, index, weights, spec.gamma)

    return one_pass.index_loss(logits, target, weight, spec, plain=dual_focal_rows, fast=fast)
