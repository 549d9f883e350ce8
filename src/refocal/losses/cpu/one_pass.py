"""Loss and gradient in one pass over blocks of rows that stay in a core's cache.

The gradient is computed together with the loss, for an incoming gradient of 1, and only the gradient is saved. Two
cases use the plain formula that each call carries: rows whose loss is not finite, and second derivatives.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from refocal._arrays import is_transformed
from refocal.losses.eager import is_constant_beside, is_eager
from refocal.losses.internals import apply_directly, has_storage
from refocal.losses.rows import Rows, loss_dtype, parse_index_rows, reduce, row_blocks
from refocal.losses.spec import LossSpec

Plain = Callable[[Rows], Tensor]  # from rows to losses (n,)


class Call(NamedTuple):
    """One call of a loss.

    Attributes:
        rows: The batch.
        plain: The plain formula of the loss.
        divisor: What the sum of the losses is divided by; None for no sum.
    """

    rows: Rows
    plain: Plain
    divisor: Tensor | float | None


def supports(logits: Any, target: Any, weight: Any = None) -> bool:
    """Whether these are tensors in main memory, outside of tracing and transformations."""
    if not (logits.is_cpu and is_eager(logits)) or any(map(is_transformed, (logits, target, weight))):
        return False
    return is_constant_beside(target, logits) and (weight is None or is_constant_beside(weight, logits))


def index_loss(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    spec: LossSpec,
    *,
    plain: Callable[..., Tensor],
    fast: Callable[[Call, Tensor, Tensor], Tensor],
) -> Tensor:
    """A loss of class indices, reduced: by `fast` if it supports these tensors, else by the plain formula.

    Args:
        logits: Scores (N, K, ...).
        target: Class indices (N, ...).
        weight: Class weights (K,), or None.
        spec: What the loss computes.
        plain: Takes (rows, weight, spec) and returns losses (N,).
        fast: Takes a call, its class indices (N, 1) and its weights (N, 1), and returns the loss.
    """
    rows, dtype = parse_index_rows(logits, target, weight=weight), loss_dtype(logits)
    if not supports(logits, target, weight):
        losses = plain(rows, weight, spec).to(dtype).reshape(rows.shape)
        return reduce(losses, rows, spec.reduction, weight=weight, ignore_index=spec.ignore_index)
    loss = fast(*prepare(rows, weight, spec, functools.partial(plain, weight=weight, spec=spec)))
    return (loss.reshape(rows.shape) if spec.reduction == "none" else loss).to(dtype)


def prepare(rows: Rows, weight: Tensor | None, spec: LossSpec, plain: Plain) -> tuple[Call, Tensor, Tensor]:
    """A call, its class indices (N, 1), which are safe to use, and its weights (N, 1), 0 for rows that do not count."""
    target = rows.target[:, None]
    keep = target != spec.ignore_index
    index, weights = torch.where(keep, target, 0), keep.to(rows.logits.dtype)
    if weight is not None:
        weights = weights * look_up(weight.flatten().to(weights.dtype), index, rows, plain)
    divisor = weights.sum() if spec.reduction == "mean" else None if spec.reduction == "none" else 1.0
    return Call(rows, plain, divisor), index, weights


def look_up(values: Tensor, index: Tensor, rows: Rows, plain: Plain) -> Tensor:
    """Values (K,) at the classes `index`."""
    try:
        return values[index]
    except (RuntimeError, IndexError):
        plain(rows)  # a class out of bounds: raises cross-entropy's error
        raise


def apply(call: Call, compute: Callable[..., Tensor], row_tensors: tuple[Tensor, ...]) -> Tensor:
    """The loss of a call.

    Args:
        call: The call.
        compute: Takes logits (n, K), row tensors and `out`; returns losses (n, 1) and writes their gradient to `out`.
        row_tensors: Tensors with one row per sample, which are cut into blocks with the logits.
    """
    try:
        loss: Tensor = _apply_one_pass(call.rows.logits, call, compute, row_tensors)
    except (RuntimeError, IndexError):
        call.plain(call.rows)  # a class out of bounds: raises cross-entropy's error
        raise
    return loss


class _OnePass(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, call: Call, compute: Callable[..., Tensor], row_tensors: tuple[Tensor, ...]
    ) -> Tensor:
        gradient = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
        blocks = row_blocks(logits)
        if len(blocks) == 1:
            losses = compute(logits, *row_tensors, out=gradient)
        else:
            losses = logits.new_empty(len(logits), 1)
            for block in blocks:
                losses[block] = compute(logits[block], *(each[block] for each in row_tensors), out=gradient[block])
        total = losses.sum()
        if not math.isfinite(total):
            _repair(call, losses[:, 0], gradient)
            total = losses.sum()
        ctx.save_for_backward(logits, call.rows.target, gradient)
        ctx.plain, ctx.divisor = call.plain, call.divisor
        if call.divisor is None:
            return losses[:, 0].clone()  # a view returned by a Function cannot be changed in place
        return total / call.divisor

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None, None]:
        logits, target, gradient = ctx.saved_tensors
        again, reduced = torch.is_grad_enabled(), ctx.divisor is not None
        uncounted = reduced and not ctx.divisor  # no row counts: the gradient is 0, but 0 / 0 would give NaN
        # A batch of incoming gradients has no storage of its own.
        if not (again or uncounted) and has_storage(incoming):
            return gradient * (incoming / ctx.divisor if reduced else incoming[:, None]), None, None, None
        with torch.enable_grad():
            losses = ctx.plain(Rows(logits, target, logits.shape[:1]))
            losses = losses.sum() / ctx.divisor if reduced else losses
        return torch.autograd.grad(losses, logits, incoming, create_graph=again)[0], None, None, None


_apply_one_pass = apply_directly(_OnePass)  # small batches are host-bound


def _repair(call: Call, losses: Tensor, gradient: Tensor) -> None:
    """Recompute rows whose loss is not finite by the plain formula: their scores may be masked or broken."""
    rows = call.rows
    wrong = losses.isfinite().logical_not_().nonzero()[:, 0]
    with torch.enable_grad():
        leaf = rows.logits.detach()[wrong].requires_grad_()
        found = call.plain(Rows(leaf, rows.target[wrong], leaf.shape[:1]))
        gradient[wrong] = torch.autograd.grad(found.sum(), leaf)[0]
    losses[wrong] = found.detach()
