"""One step of a linear loss: the logits of a chunk become losses, and the gradient takes the logits' place."""

from __future__ import annotations

import torch
from torch import Tensor

from refocal.losses.cpu.blocks import hard_block, smoothed_block
from refocal.losses.gpu import dispatch
from refocal.losses.rows import row_blocks
from refocal.losses.spec import LossSpec

_BLOCKS = 8  # of a chunk on a GPU without a kernel, so that float32 temporaries are about as large as the chunk


def consume_logits(  # noqa: PLR0917 the operator's tensors
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    gammas: Tensor | None,
    scale: Tensor,
    spec: LossSpec,
    *,
    gradient: bool,
) -> Tensor:
    """Losses (n,) of logits (n, V); with `gradient`, writes `scale` times it over the logits.

    Args:
        logits: Scores (n, V), which are lost.
        target: Class indices (n,).
        weight: Class weights (V,), or None.
        gammas: One gamma per class (V,) in place of the spec's, or None.
        scale: Factor of the gradient: one number, or one per row.
        spec: What the loss computes.
        gradient: Whether to compute the gradient.
    """
    if dispatch.supports_chunk(logits, spec):
        return dispatch.consume_chunk(logits, target, weight, gammas, scale, spec, gradient=gradient)
    wide = torch.promote_types(logits.dtype, torch.float32)
    counted = (target != spec.ignore_index)[:, None]
    index = torch.where(counted, target[:, None], 0)
    by_row = torch.where(counted, scale.expand(len(target))[:, None], 0).to(wide)
    losses = torch.empty(len(target), 1, dtype=wide, device=logits.device)
    for block in _blocks(logits):
        scores = logits[block].to(wide, copy=True)
        slope = None
        if spec.softcap:
            scores.div_(spec.softcap).tanh_()
            slope = 1 - scores.square() if gradient else None
            scores.mul_(spec.softcap)
        losses[block] = _losses_with_gradient(scores, index[block], weight, gammas, spec)
        if gradient:
            scores.mul_(by_row[block])
            logits[block] = scores if slope is None else scores.mul_(slope)
    return torch.where(counted, losses, 0)[:, 0]  # a loss may be infinite


def _losses_with_gradient(
    scores: Tensor, index: Tensor, weight: Tensor | None, gammas: Tensor | None, spec: LossSpec
) -> Tensor:
    """Losses (n, 1); their gradient takes the place of the scores."""
    weight = None if weight is None else weight.to(scores.dtype)
    gamma = spec.gamma if gammas is None else gammas.to(scores.dtype)
    if spec.label_smoothing:
        gradient = torch.empty_like(scores)
        losses = smoothed_block(scores, index, gamma, weight, spec, out=gradient)
        scores.copy_(gradient)
        return losses
    weights = scores.new_ones(()) if weight is None else weight[index]
    gamma = gamma[index] if isinstance(gamma, Tensor) else gamma
    return hard_block(scores, index, weights, gamma, detached=spec.detached, out=scores)


def _blocks(logits: Tensor) -> list[slice]:
    if logits.device.type == "cpu":
        return row_blocks(logits)
    step = -(-len(logits) // _BLOCKS)
    return [slice(start, start + step) for start in range(0, len(logits), step)]
