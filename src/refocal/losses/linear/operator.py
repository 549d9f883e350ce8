"""Losses and gradients of a linear layer followed by focal loss, chunk by chunk, as one operator.

Each chunk of rows passes through three matrix products: its logits, the gradient of its hidden states, and its share of
the head's gradient. Between the first and the second, the gradient in the logits takes their place in memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refocal.losses.gpu.launch import is_capturing
from refocal.losses.linear.chunks import allocate_logits, rows_per_chunk
from refocal.losses.linear.products import (
    add_head_gradient,
    bytes_beside,
    compute_logits,
    multiply_by_head,
)
from refocal.losses.linear.steps import consume_logits
from refocal.losses.spec import LossSpec


@torch.library.custom_op("refocal::linear_focal", mutates_args=())
def linear_focal(  # noqa: PLR0917 operators are called with positional arguments
    hidden: Tensor,
    head: Tensor,
    target: Tensor,
    bias: Tensor | None,
    weight: Tensor | None,
    gammas: Tensor | None,
    scale: Tensor,
    gamma: float,
    ignore_index: int,
    label_smoothing: float,
    detached: bool,
    softcap: float,
    chunk_bytes: int,
    sum_dtype: torch.dtype,
    dtype: torch.dtype,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Losses (N,) and the gradients of hidden states, head and bias; those that are not wanted are empty.

    Args:
        hidden: Hidden states (N, D).
        head: Weights of the last layer (V, D).
        target: Class indices (N,).
        bias: Bias of the last layer (V,), or None.
        weight: Class weights (V,), or None.
        gammas: One gamma per class (V,), or None.
        scale: Factor of the gradients: one number, or one per row (N,).
        gamma: The gamma of all classes, if there is none per class.
        ignore_index: Class index that does not count. Such rows take no part in any product.
        label_smoothing: Share of the uniform distribution in the target.
        detached: Whether the gradient through (1 - p)^gamma is stopped.
        softcap: Bound of the logits, 0 for none.
        chunk_bytes: The memory for the logits of a chunk.
        sum_dtype: The type in which the chunks' gradients of the head are added up.
        dtype: The type in which matrices are multiplied.
        wanted: Which of the three gradients to compute.
    """
    spec = LossSpec(gamma, ignore_index, label_smoothing, detached, softcap=softcap)
    captured = _is_captured(target)
    kept = None if captured else _find_counted(target, ignore_index)
    if not captured:
        check_range(target if kept is None else target[kept], len(head))
    rows = len(target) if kept is None else len(kept)
    losses, of_hidden, of_head, of_bias = _allocate(hidden, head, target, bias, sum_dtype, dtype, wanted)
    if kept is not None or not rows:
        losses.zero_()
        of_hidden.zero_()
    if not rows:  # otherwise the first chunk sets it
        of_head.zero_()
    of_bias.zero_()

    weights, offsets = head.to(dtype), None if bias is None else bias.to(dtype)
    step = rows_per_chunk(rows, len(head), dtype, chunk_bytes, beside=bytes_beside(weights) if wanted[0] else 0)
    room = allocate_logits(min(step, rows), len(head), dtype, hidden.device)
    for start in range(0, rows, step):
        chunk = slice(start, min(start + step, rows))
        index = chunk if kept is None else kept[chunk]
        inputs, labels = hidden[index].to(dtype), target[index]
        factor = scale[index] if scale.ndim else scale
        if captured:  # rows that do not count are among these; they may hold NaN, which no factor removes
            inputs = torch.where((labels != ignore_index)[:, None], inputs, 0)

        # 1. logits; 2. losses, and the gradient over the logits; 3. the gradients of the inputs
        logits = compute_logits(inputs, weights, offsets, out=room[: len(labels)])
        losses[index] = consume_logits(logits, labels, weight, gammas, factor, spec, gradient=any(wanted))
        if wanted[0]:
            product = of_hidden[chunk] if kept is None else torch.empty_like(inputs)
            multiply_by_head(logits, weights, out=product, room=chunk_bytes - logits.numel() * logits.itemsize)
            if kept is not None:
                of_hidden[index] = product.to(hidden.dtype)
        if wanted[1]:
            add_head_gradient(of_head, logits, inputs, first=start == 0)
        if wanted[2]:
            of_bias += logits.sum(dim=0, dtype=of_bias.dtype)
    return losses, of_hidden, of_head.to(head.dtype), of_bias if bias is None else of_bias.to(bias.dtype)


@linear_focal.register_fake
def _(hidden: Tensor, head: Tensor, target: Tensor, bias: Tensor | None, *others: Any) -> tuple[Tensor, ...]:
    *_, dtype, wanted = others
    losses, of_hidden, of_head, of_bias = _allocate(hidden, head, target, bias, head.dtype, dtype, wanted)
    return losses, of_hidden, of_head, of_bias if bias is None else of_bias.to(bias.dtype)


def _allocate(  # noqa: PLR0917 the operator's arguments
    hidden: Tensor,
    head: Tensor,
    target: Tensor,
    bias: Tensor | None,
    sum_dtype: torch.dtype,
    dtype: torch.dtype,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Room for the losses and gradients, which is not initialized."""
    wide = torch.promote_types(dtype, torch.float32)
    return (
        hidden.new_empty(target.shape, dtype=wide),
        hidden.new_empty(hidden.shape if wanted[0] else 0),
        head.new_empty(head.shape if wanted[1] else 0, dtype=sum_dtype),
        head.new_empty(len(head) if wanted[2] and bias is not None else 0, dtype=wide),
    )


def _is_captured(target: Tensor) -> bool:
    """Whether a CUDA graph is being captured, where the host cannot wait for values."""
    return target.is_cuda and is_capturing()


def check_range(target: Tensor, classes: int) -> None:
    """Check classes, which all count: on a GPU, one that does not exist could end all work of the process."""
    outside = target[(target < 0) | (target >= classes)]
    if len(outside):
        msg = f"target must lie in [0, {classes}), got {int(outside[0])}"
        raise IndexError(msg)


def _find_counted(target: Tensor, ignore_index: int) -> Tensor | None:
    """The numbers of the rows that count; None if all do."""
    kept = (target != ignore_index).nonzero()[:, 0]
    return None if len(kept) == len(target) else kept
