"""The proper part of focal loss: the function and the module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from refocal import _check
from refocal._arrays import PerClass, is_transformed
from refocal.losses.base import AbstractSoftmaxLoss, length
from refocal.losses.internals import is_in_forward_mode
from refocal.losses.posterior_maps import FocalMap, SoftmaxMap
from refocal.losses.proper_solver import proper_focal_rows, proper_focal_rows_plain
from refocal.losses.rows import gather_target, loss_dtype, parse_index_rows, weigh
from refocal.losses.spec import Reduction


def proper_focal_loss(
    logits: Tensor, target: Tensor, *, gamma: PerClass, weight: Tensor | None = None, ignore_index: int = -100
) -> Tensor:
    """The proper part of focal loss of each sample: softmax(logits) is trained to be p(y|x) itself.

    It is the focal loss of the risk minimizer q that belongs to the posterior softmax(logits).

    Args:
        logits: Scores (N, K, ...).
        target: Class indices (N, ...).
        gamma: Focusing parameter >= 0: a number, or one value per class.
        weight: Class weights (K,).
        ignore_index: Samples with this class index have loss 0.

    Returns:
        Losses (N, ...). Their gradient comes from the implicit function theorem.

    Example:
        >>> round(proper_focal_loss(torch.tensor([[2.1972, 0.0]]), torch.tensor([0]), gamma=1.0).item(), 4)
        0.0577

    Reference: Komisarenko and Kull (2024), Props. 2 and 4.
    """
    rows = parse_index_rows(logits, target, weight=weight)
    _, keep, safe = gather_target(rows.logits, rows.target, _check.whole(ignore_index, "ignore_index"))
    transformed = not torch.compiler.is_compiling() and (is_transformed(rows.logits) or is_in_forward_mode())
    compute = proper_focal_rows_plain if transformed else proper_focal_rows
    losses = compute(rows.logits, safe, gamma)
    return weigh(losses, keep, safe, weight).to(loss_dtype(logits)).reshape(rows.shape)


class ProperFocalLoss(AbstractSoftmaxLoss):
    """The proper part of focal loss; see `proper_focal_loss`. The posterior is the softmax, divided by class weights.

    Choose it to train with the focus of focal loss and to read probabilities off the softmax directly.

    Args:
        gamma: Focusing parameter >= 0: a number, or one value per class.
        weight: Class weights (K,).
        ignore_index: Class index that does not count.
        reduction: "none", "mean" or "sum", as in `nn.CrossEntropyLoss`.
    """

    def __init__(
        self, gamma: PerClass, *, weight: Tensor | None = None, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(weight, ignore_index, reduction)
        self.gamma = _check.gamma(gamma, classes=length(gamma), least=0.0)

    def per_sample(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of each sample."""
        return proper_focal_loss(logits, target, gamma=self.gamma, weight=self.weight, ignore_index=self.ignore_index)

    @property
    def posterior_map(self) -> nn.Module:
        """Softmax; with class weights, divided by them and normalized."""
        return SoftmaxMap() if self.weight is None else FocalMap(0.0, weight=self._class_weights)

    def extra_repr(self) -> str:
        """The settings."""
        return f"gamma={self.gamma}, {super().extra_repr()}"
