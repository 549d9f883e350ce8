"""One step of a linear loss: the logits of a chunk become losses, and the gradient takes the logits' place."""

from __future__ import annotations

import torch
from torch import Tensor

from refocal.losses.cpu.blocks import hard_block, smoothed_block
from refocal.losses.gpu import linear as kernels
from refocal.losses.rows import row_blocks
from refocal.losses.settings import Settings

_BLOCKS = 8  # of a chunk on a GPU without a kernel, so that float32 temporaries are about as large as the chunk


def consume_logits(
    logits: Tensor, target: Tensor, settings: Settings, *, softcap: float, scale: Tensor, gradient: bool
) -> Tensor:
    """Losses (n,) of logits (n, V); with `gradient`, writes `scale` times it over the logits.

    Args:
        logits: Scores (n, V), which are lost.
        target: Class indices (n,).
        settings: The settings of the loss, with one gamma or a tensor of one per class.
        softcap: Bound c of the scores, c tanh(score / c); 0 for none.
        scale: Factor of the gradient: one number, or one per row.
        gradient: Whether to compute the gradient.
    """
    if kernels.supports(logits, settings):
        return kernels.consume_logits(logits, target, settings, softcap=softcap, scale=scale, gradient=gradient)
    wide = torch.promote_types(logits.dtype, torch.float32)
    counted = (target != settings.ignore_index)[:, None]
    index = torch.where(counted, target[:, None], 0)
    by_row = torch.where(counted, scale.expand(len(target))[:, None], 0).to(wide)
    losses = torch.empty(len(target), 1, dtype=wide, device=logits.device)
    for block in _blocks(logits):
        scores = logits[block].to(wide, copy=True)
        slope = None
        if softcap:
            scores.div_(softcap).tanh_()
            slope = 1 - scores.square() if gradient else None
            scores.mul_(softcap)
        losses[block] = _losses_with_gradient(scores, index[block], settings)
        if gradient:
            scores.mul_(by_row[block])
            logits[block] = scores if slope is None else scores.mul_(slope)
    return losses.mul_(counted)[:, 0]


def _losses_with_gradient(scores: Tensor, index: Tensor, settings: Settings) -> Tensor:
    """Losses (n, 1); their gradient takes the place of the scores."""
    gamma, weight, _, smoothing, detached = settings
    weight = None if weight is None else weight.to(scores.dtype)
    gamma = gamma.to(scores.dtype) if isinstance(gamma, Tensor) else gamma
    if smoothing:
        gradient = torch.empty_like(scores)
        losses = smoothed_block(scores, index, settings._replace(gamma=gamma, weight=weight), out=gradient)
        scores.copy_(gradient)
        return losses
    weights = scores.new_ones(()) if weight is None else weight[index]
    gamma = gamma[index] if isinstance(gamma, Tensor) else gamma
    return hard_block(scores, index, weights, gamma, detached=detached, out=scores)


def _blocks(logits: Tensor) -> list[slice]:
    if logits.device.type == "cpu":
        return row_blocks(logits)
    step = -(-len(logits) // _BLOCKS)
    return [slice(start, start + step) for start in range(0, len(logits), step)]
