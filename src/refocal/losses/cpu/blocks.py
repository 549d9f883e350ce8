"""The formulas of losses and gradients for a block of rows.

With e_j = exp(x_j - max x), the odds against class y are (sum of the other e_j) / e_y, without cancellation. The
gradient of a loss of p_y alone is one number per row, its pull -dl/dlog p, times the gradient of cross-entropy.
`torch.where`, `torch.log` and `torch.pow` of whole blocks are avoided: on a CPU each takes as long as fifty products.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from refocal.losses.cpu.one_pass import Call, Plain, apply, look_up, prepare
from refocal.losses.policies import GammaPolicy
from refocal.losses.rows import Rows, scale_distance, take_out_target
from refocal.losses.spec import LossSpec, copy_gammas

_LARGEST_POWER = 8  # up to this whole exponent, powers are products


def focal_loss(rows: Rows, weight: Tensor | None, spec: LossSpec, plain: Plain) -> Tensor:
    """Focal loss, reduced as `nn.CrossEntropyLoss` does. Rows and weights have the type to compute in."""
    gamma = spec.gamma
    if isinstance(gamma, tuple):
        gamma = copy_gammas(spec, rows.logits.dtype, rows.logits.device)
    if not rows.has_indices:
        call = Call(rows, plain, {"none": None, "mean": float(len(rows.logits)), "sum": 1.0}[spec.reduction])
        return _soft_loss(call, gamma, weight, spec)
    call, index, weights = prepare(rows, weight, spec, plain)
    if spec.label_smoothing:
        return _smoothed_loss(call, index, gamma, weight, spec)
    if isinstance(gamma, Tensor):
        gamma = look_up(gamma, index, rows, plain)
    return hard_loss(call, index, weights, gamma, detached=spec.detached)


def hard_loss(call: Call, index: Tensor, weight: Tensor, gamma: Any, *, detached: bool = False) -> Tensor:
    """Focal loss of the classes `index` (N, 1), times `weight` (N, 1).

    Gamma is a number, one value per row (N, 1), or a policy. If it is negative, the loss is -(1 + p)^|gamma| log p.
    """
    by_row = isinstance(gamma, Tensor)

    def compute(logits: Tensor, target: Tensor, weight: Tensor, *gammas: Tensor, out: Tensor) -> Tensor:
        return hard_block(logits, target, weight, gammas[0] if by_row else gamma, detached=detached, out=out)

    return apply(call, compute, (index, weight, gamma) if by_row else (index, weight))


def hard_block(logits: Tensor, target: Tensor, weight: Tensor, gamma: Any, *, detached: bool, out: Tensor) -> Tensor:
    """Focal losses (n, 1) of the classes `target` (n, 1), times `weight` (n, 1); their gradient is written to `out`.

    `out` may be `logits`.
    """
    score = torch.sub(logits, logits.amax(dim=1, keepdim=True), out=out).gather(1, target)
    mass, others = take_out_target(out.exp_(), target)
    others.clamp_(min=torch.finfo(out.dtype).tiny)  # powers below 0 of 0 would be infinite
    total = mass + others
    log_p = F.logsigmoid(score - torch.log(others))
    losses, pull = _focal_and_pull(log_p, mass / total, others / total, gamma, detached)
    scale_distance(out, target, others, pull * (weight / total))
    return losses * weight


def dual_loss(call: Call, index: Tensor, weight: Tensor, gamma: float) -> Tensor:
    """Dual focal loss -(q + p')^gamma log p of the classes `index` (N, 1), times `weight` (N, 1)."""

    def compute(logits: Tensor, target: Tensor, weight: Tensor, *, out: Tensor) -> Tensor:
        limits = torch.finfo(out.dtype)
        score = torch.sub(logits, logits.amax(dim=1, keepdim=True), out=out).gather(1, target)
        # The distance of each score below the target's score; scores that are not below get the largest number.
        distance, runner_up = F.threshold(score - out, 0, limits.max).min(dim=1, keepdim=True)
        mass, others = take_out_target(out.exp_(), target)
        total = mass + others
        p, q, p_below = mass / total, others / total, torch.exp(score - distance) / total
        log_p = F.logsigmoid(score - torch.log(others))
        base = (q + p_below).clamp_(min=limits.tiny)
        factor = torch.exp(gamma * torch.log(base)) * weight
        # The base has the derivative p' ([j = r] - p_j) - p ([j = y] - p_j), where r is the runner-up.
        strength = -gamma * factor * log_p / base
        along, below = factor + strength * p, strength * p_below
        out.mul_((along - below) / total).scatter_(1, target, -along * q - below * p).scatter_add_(1, runner_up, below)
        return -factor * log_p

    return apply(call, compute, (index, weight))


def _smoothed_loss(call: Call, index: Tensor, gamma: Any, weight: Tensor | None, spec: LossSpec) -> Tensor:
    """Focal loss of the classes `index` (N, 1), smoothed over all classes, with class weights (K,)."""

    def compute(logits: Tensor, index: Tensor, *uncounted: Tensor, out: Tensor) -> Tensor:
        target = _smoothed_target(index, logits, spec)
        for counts in uncounted:
            target.mul_(counts)
        return _soft_block(logits, target, gamma, weight, detached=spec.detached, out=out)

    keep = call.rows.target[:, None] != spec.ignore_index
    return apply(call, compute, (index,) if bool(keep.all()) else (index, keep))


def smoothed_block(
    logits: Tensor, index: Tensor, gamma: Any, weight: Tensor | None, spec: LossSpec, *, out: Tensor
) -> Tensor:
    """Focal losses (n, 1) of the classes `index` (n, 1), smoothed; their gradient is written to `out`.

    Gamma is a number or a tensor with one value per class.
    """
    target = _smoothed_target(index, logits, spec)
    return _soft_block(logits, target, gamma, weight, detached=spec.detached, out=out)


def _smoothed_target(index: Tensor, logits: Tensor, spec: LossSpec) -> Tensor:
    share = spec.label_smoothing / logits.shape[1]
    return torch.full_like(logits, share).scatter_(1, index, 1 - spec.label_smoothing + share)


def _soft_loss(call: Call, gamma: Any, weight: Tensor | None, spec: LossSpec) -> Tensor:
    """Focal loss of class probabilities, smoothed, with class weights (K,)."""
    smoothing = spec.label_smoothing

    def compute(logits: Tensor, target: Tensor, *, out: Tensor) -> Tensor:
        target = target.to(logits.dtype)
        if smoothing:
            target = (1 - smoothing) * target + smoothing / target.shape[1]
        return _soft_block(logits, target, gamma, weight, detached=spec.detached, out=out)

    return apply(call, compute, (call.rows.target,))


def _focal_and_pull(log_p: Tensor, p: Tensor, q: Tensor, gamma: Any, detached: bool) -> tuple[Tensor, Tensor]:
    """Losses -b^|gamma| log p and their pulls b^(|gamma| - 1) (b - gamma p log p); b is q, or 1 + p if gamma < 0."""
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
    finite = log_p.clamp(min=torch.finfo(log_p.dtype).min)  # 0 log 0 = 0
    return -factor * log_p, reduced * _subtract_product(base, p, finite, gamma)


def _subtract_product(q: Tensor, p: Tensor, log_p: Tensor, gamma: Any) -> Tensor:
    """q - gamma p log p."""
    if isinstance(gamma, Tensor):
        return torch.addcmul(q, p * gamma, log_p, value=-1)
    return torch.addcmul(q, p, log_p, value=-gamma)


def _soft_block(
    logits: Tensor, target: Tensor, gamma: Any, weight: Tensor | None, *, detached: bool, out: Tensor
) -> Tensor:
    """Losses (n, 1) of class probabilities (n, K), times class weights (K,); their gradient is written to `out`."""
    if weight is not None:
        target = target * weight
    log_p = logits - logits.amax(dim=1, keepdim=True)
    p = torch.exp(log_p, out=out)
    total = p.sum(dim=1, keepdim=True)
    top: Tensor | None = None
    rest = total
    # If some class may have p > 1/2, its complement is the sum of the others. A row of NaN counts as such a row.
    if not total.amin().item() >= 2:
        top = log_p.max(dim=1, keepdim=True).indices
        rest = p.scatter(1, top, 0).sum(dim=1, keepdim=True)
        rest.clamp_(min=torch.finfo(rest.dtype).tiny)  # powers below 0 of 0 would be infinite
    log_p.sub_(torch.log(total))
    p.div_(total)
    q = 1 - p
    if top is not None:
        q.scatter_(1, top, rest / total)
        log_p.scatter_(1, top, -torch.log1p(rest))
    reduced = _reduced_power(p, q, gamma, top)
    factor = reduced * q
    losses = (factor * log_p).mul_(target).sum(dim=1, keepdim=True).neg_()
    log_p.clamp_(min=torch.finfo(log_p.dtype).min)  # 0 log 0 = 0
    pull = factor if detached else _subtract_product(q, p, log_p, gamma).mul_(reduced)
    pull.mul_(target)
    if top is None:
        p.mul_(pull.sum(dim=1, keepdim=True)).sub_(pull)
        return losses
    at_top, others = take_out_target(pull, top)
    from_top = p.gather(1, top) * others - q.gather(1, top) * at_top
    p.mul_(others + at_top).sub_(pull).scatter_(1, top, from_top)
    return losses


def _reduced_power(p: Tensor, q: Tensor, gamma: Any, top: Tensor | None) -> Tensor:
    """q^(gamma - 1), where q = 1 - p except for the top class."""
    if isinstance(gamma, float) and gamma.is_integer() and 1 <= gamma <= _LARGEST_POWER:
        power = torch.ones_like(q) if gamma == 1 else q
        for _ in range(int(gamma) - 2):
            power = power * q
        return power
    log_q = torch.log1p(-p)
    if top is not None:
        log_q.scatter_(1, top, torch.log(q.gather(1, top)))
    return log_q.mul_(gamma - 1).exp_()
