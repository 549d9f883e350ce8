"""Softmax losses in main memory: loss and gradient in one pass over blocks of rows that stay in the cache.

The gradient is computed with the loss, for an incoming 1, and is all that is saved. Rows with a loss that is not
finite, and losses that are differentiated twice, go to the plain formula that each call brings along.

With e_j = exp(x_j - max x), the odds against class y are (sum of the other e_j) / e_y, without cancellation. The
gradient of a loss of p_y alone is one number per row, its pull -dl/dlog p, times the gradient of cross-entropy.
`torch.where`, `torch.log` and `torch.pow` of whole blocks are avoided: on a CPU they take as long as fifty products.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from refocal.losses.gpu.plan import Settings
from refocal.losses.policies import GammaPolicy
from refocal.losses.rows import Rows, distance_from_target, row_blocks, take_out_target

Plain = Callable[[Rows], Tensor]  # from rows to losses (n,)
_LARGEST_POWER = 8  # up to this whole exponent, powers are products


class Call(NamedTuple):
    """What is asked for: rows with their plain formula, and what their losses' sum is divided by (None: no sum)."""

    rows: Rows
    plain: Plain
    divisor: Tensor | float | None


def focal_loss(rows: Rows, settings: Settings, reduction: str, plain: Plain) -> Tensor:
    """Focal loss, reduced as `nn.CrossEntropyLoss` does; rows and weights have the type to compute in."""
    gamma, weight, ignore_index, smoothing, detached = settings
    if isinstance(gamma, tuple):
        gamma = torch.tensor(gamma, dtype=rows.logits.dtype, device=rows.logits.device)
    if not rows.has_indices:
        call = Call(rows, plain, {"none": None, "mean": float(len(rows.logits)), "sum": 1.0}[reduction])
        return _soft_loss(call, settings._replace(gamma=gamma))
    call, index, weights = call_of_indices(rows, ignore_index, weight, reduction, plain)
    if smoothing:
        return _smoothed_loss(call, index, settings._replace(gamma=gamma))
    if isinstance(gamma, Tensor):
        gamma = _of_classes(gamma, index, rows, plain)
    return hard_loss(call, index, weights, gamma, detached=detached)


def call_of_indices(
    rows: Rows, ignore_index: int, weight: Tensor | None, reduction: str, plain: Plain
) -> tuple[Call, Tensor, Tensor]:
    """A call with its classes (N, 1), made safe to use, and their weights (N, 1), 0 where a row does not count."""
    target = rows.target[:, None]
    keep = target != ignore_index
    index, weights = torch.where(keep, target, 0), keep.to(rows.logits.dtype)
    if weight is not None:
        weights = weights * _of_classes(weight.flatten().to(weights.dtype), index, rows, plain)
    divisor = weights.sum() if reduction == "mean" else None if reduction == "none" else 1.0
    return Call(rows, plain, divisor), index, weights


def _of_classes(values: Tensor, index: Tensor, rows: Rows, plain: Plain) -> Tensor:
    """Values (K,) at the classes `index`."""
    try:
        return values[index]
    except (RuntimeError, IndexError):
        plain(rows)  # a class out of bounds: raises in cross-entropy's words
        raise


def hard_loss(call: Call, index: Tensor, weight: Tensor, gamma: Any, *, detached: bool = False) -> Tensor:
    """Focal loss of the classes `index` (N, 1), times `weight` (N, 1).

    Gamma is a number, one value per row (N, 1), or a policy. Where it is negative the loss is -(1 + p)^|gamma| log p.
    """
    by_row = isinstance(gamma, Tensor)

    def of_block(logits: Tensor, target: Tensor, weight: Tensor, *gammas: Tensor, out: Tensor) -> Tensor:
        score = torch.sub(logits, logits.amax(dim=1, keepdim=True), out=out).gather(1, target)
        mass, others = take_out_target(out.exp_(), target)
        total = mass + others
        log_p = F.logsigmoid(score - torch.log(others))
        losses, pull = _focal_and_pull(log_p, mass / total, others / total, gammas[0] if by_row else gamma, detached)
        distance_from_target(out, target, others, pull * (weight / total))
        return losses * weight

    return _apply(call, of_block, (index, weight, gamma) if by_row else (index, weight))


def dual_loss(call: Call, index: Tensor, weight: Tensor, gamma: float) -> Tensor:
    """Dual focal loss -(q + p')^gamma log p of the classes `index` (N, 1), times `weight` (N, 1)."""

    def of_block(logits: Tensor, target: Tensor, weight: Tensor, *, out: Tensor) -> Tensor:
        limits = torch.finfo(out.dtype)
        score = torch.sub(logits, logits.amax(dim=1, keepdim=True), out=out).gather(1, target)
        # how far below the target's score the others are; the bound stands for those that are not below
        distance, runner_up = F.threshold(score - out, 0, limits.max).min(dim=1, keepdim=True)
        mass, others = take_out_target(out.exp_(), target)
        total = mass + others
        p, q, p_below = mass / total, others / total, torch.exp(score - distance) / total
        log_p = F.logsigmoid(score - torch.log(others))
        base = (q + p_below).clamp_(min=limits.tiny)
        factor = torch.exp(gamma * torch.log(base)) * weight
        # the base has the derivative p' ([j = r] - p_j) - p ([j = y] - p_j), r being the runner-up
        strength = -gamma * factor * log_p / base
        along, below = factor + strength * p, strength * p_below
        out.mul_((along - below) / total).scatter_(1, target, -along * q - below * p).scatter_add_(1, runner_up, below)
        return -factor * log_p

    return _apply(call, of_block, (index, weight))


def _smoothed_loss(call: Call, index: Tensor, settings: Settings) -> Tensor:
    """Focal loss of the classes `index` (N, 1), mixed with all others, whose weights (K,) count."""
    smoothing = settings.label_smoothing

    def of_block(logits: Tensor, target: Tensor, *uncounted: Tensor, out: Tensor) -> Tensor:
        share = smoothing / logits.shape[1]

        def add_up(values: Tensor) -> Tensor:
            return values.sum(dim=1, keepdim=True).mul_(share).add_(values.gather(1, target), alpha=1 - smoothing)

        def mix(values: Tensor) -> Tensor:
            of_target = values.gather(1, target).mul_(1 - smoothing)
            return values.mul_(share).scatter_add_(1, target, of_target)

        losses = _soft_block(logits, settings, mix, add_up, out)
        for counts in uncounted:
            out.mul_(counts)
            losses.mul_(counts)
        return losses

    keep = call.rows.target[:, None] != settings.ignore_index
    return _apply(call, of_block, (index,) if bool(keep.all()) else (index, keep))


def _soft_loss(call: Call, settings: Settings) -> Tensor:
    """Focal loss of class probabilities, smoothed, with class weights (K,)."""
    smoothing = settings.label_smoothing

    def of_block(logits: Tensor, target: Tensor, *, out: Tensor) -> Tensor:
        target = target.to(logits.dtype)
        if smoothing:
            target = (1 - smoothing) * target + smoothing / target.shape[1]

        def add_up(values: Tensor) -> Tensor:
            return (values * target).sum(dim=1, keepdim=True)

        return _soft_block(logits, settings, target.mul, add_up, out)

    return _apply(call, of_block, (call.rows.target,))


def _apply(call: Call, of_block: Callable[..., Tensor], by_row: tuple[Tensor, ...]) -> Tensor:
    """The loss: `of_block` gives losses (n, 1) of logits (n, K) and row tensors, and writes their gradient to `out`."""
    # beneath `Function.apply`, which looks for transformations of `torch.func`: there are none, and small batches wait
    apply = super(torch.autograd.Function, _OnePass).apply
    try:
        loss: Tensor = apply(call.rows.logits, call, of_block, by_row)  # type: ignore[no-untyped-call]
    except (RuntimeError, IndexError):
        call.plain(call.rows)  # a class out of bounds: raises in cross-entropy's words
        raise
    return loss


class _OnePass(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, call: Call, of_block: Callable[..., Tensor], by_row: tuple[Tensor, ...]
    ) -> Tensor:
        gradient = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
        blocks = row_blocks(logits)
        if len(blocks) == 1:
            losses = of_block(logits, *by_row, out=gradient)
        else:
            losses = logits.new_empty(len(logits), 1)
            for block in blocks:
                losses[block] = of_block(logits[block], *(each[block] for each in by_row), out=gradient[block])
        total = losses.sum()
        if not math.isfinite(total):
            _repair(call, losses[:, 0], gradient)
            total = losses.sum()
        ctx.save_for_backward(logits, call.rows.target, gradient)
        ctx.plain, ctx.divisor = call.plain, call.divisor
        if call.divisor is None:
            return losses[:, 0].clone()  # a view that leaves a Function cannot be changed in place
        return total / call.divisor

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None, None]:
        logits, target, gradient = ctx.saved_tensors
        again, reduced = torch.is_grad_enabled(), ctx.divisor is not None
        uncounted = reduced and not ctx.divisor  # no row counts: the gradient is 0, where 0 / 0 would be NaN
        if not (again or uncounted) and torch._C._has_storage(incoming):  # it has none where many come in at once
            return gradient * (incoming / ctx.divisor if reduced else incoming[:, None]), None, None, None
        with torch.enable_grad():
            losses = ctx.plain(Rows(logits, target, logits.shape[:1]))
            losses = losses.sum() / ctx.divisor if reduced else losses
        return torch.autograd.grad(losses, logits, incoming, create_graph=again)[0], None, None, None


def _repair(call: Call, losses: Tensor, gradient: Tensor) -> None:
    """Give rows whose loss is not finite what the plain formula says: scores may be masked or broken."""
    rows = call.rows
    wrong = losses.isfinite().logical_not_().nonzero()[:, 0]
    with torch.enable_grad():
        leaf = rows.logits.detach()[wrong].requires_grad_()
        found = call.plain(Rows(leaf, rows.target[wrong], leaf.shape[:1]))
        gradient[wrong] = torch.autograd.grad(found.sum(), leaf)[0]
    losses[wrong] = found.detach()


def _focal_and_pull(log_p: Tensor, p: Tensor, q: Tensor, gamma: Any, detached: bool) -> tuple[Tensor, Tensor]:
    """Losses -b^|gamma| log p and their pulls b^(|gamma| - 1) (b - gamma p log p): b is q, or 1 + p where gamma < 0."""
    if isinstance(gamma, GammaPolicy):
        gamma = torch.as_tensor(gamma(p[:, 0]), dtype=p.dtype, device=p.device).reshape(-1, 1)
    base = q
    if isinstance(gamma, Tensor):
        base = torch.where(gamma < 0, 1 + p, q)
    elif gamma < 0:
        base = 1 + p
    reduced = base ** (abs(gamma) - 1)
    factor = reduced * base
    if detached:
        return -factor * log_p, factor
    return -factor * log_p, reduced * _less_product(base, p, log_p, gamma)


def _less_product(q: Tensor, p: Tensor, log_p: Tensor, gamma: Any) -> Tensor:
    """Q - gamma p log p."""
    if isinstance(gamma, Tensor):
        return torch.addcmul(q, p * gamma, log_p, value=-1)
    return torch.addcmul(q, p, log_p, value=-gamma)


def _soft_block(
    logits: Tensor, settings: Settings, mix: Callable[[Tensor], Tensor], add_up: Callable[[Tensor], Tensor], out: Tensor
) -> Tensor:
    """Losses (n, 1) of distributions over the classes, with their gradient in `out`.

    `mix` multiplies values (n, K) with the distributions, in place or not, and `add_up` gives their means (n, 1).
    """
    gamma, weight, _, _, detached = settings
    log_p = logits - logits.amax(dim=1, keepdim=True)
    p = torch.exp(log_p, out=out)
    total = p.sum(dim=1, keepdim=True)
    top: Tensor | None = None
    rest = total
    # a class may have p > 1/2: its complement is the sum of the others; a row of NaN leaves it open whether one has
    if not total.amin().item() >= 2:
        top = log_p.max(dim=1, keepdim=True).indices
        rest = p.scatter(1, top, 0).sum(dim=1, keepdim=True)
    log_p.sub_(torch.log(total))
    p.div_(total)
    q = 1 - p
    if top is not None:
        q.scatter_(1, top, rest / total)
        log_p.scatter_(1, top, -torch.log1p(rest))
    reduced = _reduced_power(p, q, gamma, top)
    factor = reduced * q
    losses = factor * log_p
    pull = factor if detached else _less_product(q, p, log_p, gamma).mul_(reduced)
    if weight is not None:
        losses, pull = losses * weight, pull * weight
    losses, pull = add_up(losses).neg_(), mix(pull)
    if top is None:
        p.mul_(pull.sum(dim=1, keepdim=True)).sub_(pull)
        return losses
    at_top, others = take_out_target(pull, top)
    from_top = p.gather(1, top) * others - q.gather(1, top) * at_top
    p.mul_(others + at_top).sub_(pull).scatter_(1, top, from_top)
    return losses


def _reduced_power(p: Tensor, q: Tensor, gamma: Any, top: Tensor | None) -> Tensor:
    """q^(gamma - 1), where q = 1 - p but for the top class."""
    if isinstance(gamma, float) and gamma.is_integer() and 1 <= gamma <= _LARGEST_POWER:
        power = torch.ones_like(q) if gamma == 1 else q
        for _ in range(int(gamma) - 2):
            power = power * q
        return power
    log_q = torch.log1p(-p)
    if top is not None:
        log_q.scatter_(1, top, torch.log(q.gather(1, top)))
    return log_q.mul_(gamma - 1).exp_()
