"""Inverse focal loss: the function and the module."""

from __future__ import annotations

from torch import Tensor, nn

from refocal import _check
from refocal.losses.base import FIT_INSTEAD, AbstractGammaLoss, NoPosteriorError
from refocal.losses.cpu import blocks, one_pass
from refocal.losses.formulas import inverse_focal_rows
from refocal.losses.posterior_maps import InverseFocalMap
from refocal.losses.spec import LossSpec


def inverse_focal_loss(
    logits: Tensor, target: Tensor, *, gamma: float, weight: Tensor | None = None, ignore_index: int = -100
) -> Tensor:
    """Inverse focal loss of each sample: cross-entropy that counts samples more the better they are classified.

    The loss is -(1 + p)^gamma log p. It makes a network more confident; focal loss makes it less confident.

    Args:
        logits: Scores (N, K, ...).
        target: Class indices (N, ...).
        gamma: Exponent >= 0.
        weight: Class weights (K,).
        ignore_index: Samples with this class index have loss 0.

    Returns:
        Losses (N, ...).

    Example:
        >>> import torch
        >>> round(inverse_focal_loss(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]), gamma=1.0).item(), 4)
        0.4281

    Reference: the part of AdaFocal with negative gamma, Komisarenko and Kull (2024), section 5.1.
    """
    exponent = _check.scalar_gamma(gamma, least=0.0)
    spec = LossSpec(exponent, _check.whole(ignore_index, "ignore_index"))
    return _reduced_inverse_focal_loss(logits, target, weight, spec)


class InverseFocalLoss(AbstractGammaLoss):
    """Inverse focal loss -(1 + p)^gamma log p; see `inverse_focal_loss`.

    Choose it when a network is underconfident. For gamma up to 1 the posterior has a closed form.

    Args:
        gamma: Exponent >= 0.
        weight: Class weights (K,).
        ignore_index: Class index that does not count.
        reduction: "none", "mean" or "sum", as in `nn.CrossEntropyLoss`.
    """

    def per_sample(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of each sample."""
        return inverse_focal_loss(logits, target, gamma=self.gamma, weight=self.weight, ignore_index=self.ignore_index)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss, reduced."""
        spec = LossSpec(self.gamma, self.ignore_index, reduction=self.reduction)
        return _reduced_inverse_focal_loss(logits, target, self.weight, spec)

    @property
    def posterior_map(self) -> nn.Module:
        """The map for gamma up to 1, with the loss's class weights."""
        if self.gamma > 1:
            msg = f"inverse focal loss with gamma > 1 has no closed-form posterior, got {self.gamma}; {FIT_INSTEAD}"
            raise NoPosteriorError(msg)
        return InverseFocalMap(self.gamma, weight=self._class_weights)


def _reduced_inverse_focal_loss(logits: Tensor, target: Tensor, weight: Tensor | None, spec: LossSpec) -> Tensor:
    def fast(call: one_pass.Call, index: Tensor, weights: Tensor) -> Tensor:
        return blocks.hard_loss(call, index, weights, -spec.gamma)

    return one_pass.index_loss(logits, target, weight, spec, plain=inverse_focal_rows, fast=fast)
