"""Focal loss of independent sigmoid outputs, for detection, multi-label and binary tasks: function and module."""

from __future__ import annotations

from torch import Tensor, nn

from refocal import _check
from refocal._arrays import PerClass
from refocal.losses.base import AbstractLoss, is_checked, length
from refocal.losses.formulas import sigmoid_focal
from refocal.losses.gpu import dispatch
from refocal.losses.posterior_maps import SigmoidMap
from refocal.losses.rows import check_tensors, loss_dtype
from refocal.losses.spec import LossSpec, Reduction

_GAMMA, _ALPHA = 2.0, 0.25  # the defaults of Lin et al. and of torchvision


def sigmoid_focal_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: PerClass = _GAMMA,
    alpha: PerClass | None = _ALPHA,
    ignore_index: int = -100,
) -> Tensor:
    """Sigmoid focal loss of each score, for classes that do not exclude each other.

    The loss is t alpha (1-p)^gamma (-log p) + (1-t) (1-alpha) p^gamma (-log(1-p)) with p = sigmoid(logits). For targets
    0 and 1 it equals torchvision's. Soft targets t enter linearly, so that the posterior map
    `refocal.sigmoid_posterior` holds for them too.

    Args:
        logits: Scores, any shape.
        target: 0, 1 or a probability for each score.
        gamma: Focusing parameter >= 0: a number, or one value for each entry of the last dimension.
        alpha: Weight of the positives in (0, 1): a number, one value for each entry of the last dimension, or None for
            no balancing.
        ignore_index: Scores with this target have loss 0.

    Returns:
        Losses, of the shape of `logits`.

    Example:
        >>> import torch
        >>> losses = sigmoid_focal_loss(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 0.0]))
        >>> [round(loss, 4) for loss in losses.tolist()]
        [0.0433, 1.2376]

    Reference: Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, Eq. 5.
    """
    check_tensors(logits=logits, target=target)
    classes = _count_classes(logits)
    exponent = _check.gamma(gamma, classes=classes, least=0.0)
    balance = _check.alpha(alpha, classes=classes)
    ignore_index = _check.whole(ignore_index, "ignore_index")
    return _reduced_sigmoid_focal_loss(logits, target, LossSpec(exponent, ignore_index, alpha=balance))


class SigmoidFocalLoss(AbstractLoss):
    """Sigmoid focal loss; see `sigmoid_focal_loss`. A mean is taken over the scores that count.

    Choose it for object detection, multi-label or binary tasks, in particular if positives are rare.

    Args:
        gamma: Focusing parameter >= 0: a number, or one value for each entry of the last dimension.
        alpha: Weight of the positives in (0, 1), or None.
        ignore_index: Target that does not count.
        reduction: "none", "mean" or "sum".
    """

    def __init__(
        self,
        gamma: PerClass = _GAMMA,
        *,
        alpha: PerClass | None = _ALPHA,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        self.gamma = _check.gamma(gamma, classes=length(gamma), least=0.0)
        self.alpha = _check.alpha(alpha, classes=length(alpha))
        self.ignore_index = _check.whole(ignore_index, "ignore_index")

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss, reduced; on a GPU in one pass with its gradient."""
        check_tensors(logits=logits, target=target)
        spec = LossSpec(self.gamma, self.ignore_index, reduction=self.reduction, alpha=self.alpha)
        return _reduced_sigmoid_focal_loss(logits, target, spec)

    @property
    def posterior_map(self) -> nn.Module:
        """The binary map of each score."""
        return SigmoidMap(self.gamma, self.alpha)

    def extra_repr(self) -> str:
        """The settings."""
        return f"gamma={self.gamma}, alpha={self.alpha}, ignore_index={self.ignore_index}, reduction={self.reduction!r}"


def _reduced_sigmoid_focal_loss(logits: Tensor, target: Tensor, spec: LossSpec) -> Tensor:
    """Sigmoid focal loss of two tensors, reduced: the one place where a path to its value is chosen.

    Gamma and alpha are checked: each is a number, or a tuple whose length may not fit the logits; alpha may be None.
    """
    # 1. A kernel. This comes before other checks: small batches are host-bound.
    loss = dispatch.sigmoid_focal_loss(logits, target, spec) if target.shape == logits.shape else None
    if loss is not None:
        return loss
    # 2. Checks of what the kernels leave.
    if not logits.is_floating_point():
        msg = f"logits must have a floating-point dtype, got {logits.dtype}"
        raise TypeError(msg)
    if target.shape != logits.shape:
        msg = f"logits and target must have the same shape, got {tuple(logits.shape)} and {tuple(target.shape)}"
        raise ValueError(msg)
    classes = _count_classes(logits)
    if not is_checked(spec.gamma, classes):
        spec = spec._replace(gamma=_check.gamma(spec.gamma, classes=classes, least=0.0))
    if not is_checked(spec.alpha, classes):
        spec = spec._replace(alpha=_check.alpha(spec.alpha, classes=classes))
    # 3. The plain formula, reduced at least in float32.
    return sigmoid_focal(logits, target, spec).to(loss_dtype(logits))


def _count_classes(logits: Tensor) -> int | None:
    return logits.shape[-1] if logits.ndim else None
