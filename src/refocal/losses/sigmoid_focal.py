"""Focal loss of independent sigmoid outputs: detection, multi-label, binary."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from array_api_compat import torch as xp
from torch import Tensor

from refocal import _check
from refocal._arrays import constant
from refocal.losses.gpu import dispatch
from refocal.losses.rows import at_least_float32, check_tensors, loss_dtype


def sigmoid_focal_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: Any = 2.0,
    alpha: Any = 0.25,
    ignore_index: int = -100,
) -> Tensor:
    """Sigmoid focal loss of each score: t alpha (1-p)^gamma (-log p) + (1-t) (1-alpha) p^gamma (-log(1-p)).

    For targets 0 and 1 it is that of torchvision. Soft targets t enter linearly, so that the posterior map
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
        >>> losses = sigmoid_focal_loss(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 0.0]))
        >>> [round(loss, 4) for loss in losses.tolist()]
        [0.0433, 1.2376]

    Reference: Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, Eq. 5.
    """
    check_tensors(logits=logits, target=target)
    if not logits.is_floating_point():
        msg = f"logits must have a floating-point dtype, got {logits.dtype}"
        raise TypeError(msg)
    if target.shape != logits.shape:
        msg = f"logits and target must have the same shape, got {tuple(logits.shape)} and {tuple(target.shape)}"
        raise ValueError(msg)
    classes = logits.shape[-1] if logits.ndim else None
    exponent = _check.gamma(gamma, classes=classes, least=0.0)
    balance = _check.alpha(alpha, classes=classes)
    ignore_index = _check.whole(ignore_index, "ignore_index")
    if dispatch.serves_sigmoid(logits, target, exponent, balance):
        return dispatch.sigmoid_focal(logits, target, exponent, balance, ignore_index, reduction="none")
    return sigmoid_focal_elements(logits, target, exponent, balance, ignore_index).to(loss_dtype(logits))


def sigmoid_focal_elements(logits: Tensor, target: Tensor, gamma: Any, alpha: Any, ignore_index: int) -> Tensor:
    """The same by plain tensor operations, at least in float32."""
    keep = target != ignore_index
    wide = at_least_float32(logits)
    wide = torch.where(keep, wide, 0)  # a score that does not count may be infinite, and has the gradient 0
    gamma = constant(gamma, like=wide, xp=xp)
    alpha = constant(alpha, like=wide, xp=xp)
    t = torch.where(keep, target, 0).to(wide.dtype)
    log_p, log_q = F.logsigmoid(wide), F.logsigmoid(-wide)
    positive = -torch.exp(gamma * log_q) * log_p
    negative = -torch.exp(gamma * log_p) * log_q
    losses = (
        t * positive + (1 - t) * negative if alpha is None else alpha * t * positive + (1 - alpha) * (1 - t) * negative
    )
    return torch.where(keep, losses, 0)
