"""The losses in plain tensor operations: on any device, traceable, and differentiable any number of times.

Every fast path falls back to these, and the tests compare it with them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from array_api_compat import torch as xp
from torch import Tensor

from refocal._arrays import constant
from refocal.losses.policies import GammaPolicy
from refocal.losses.rows import Rows, at_least_float32, gather_target, weigh
from refocal.losses.spec import LossSpec
from refocal.maps.focal import focal_partial_unchecked
from refocal.maps.simplex import (
    guard_impossible,
    log_odds_against,
    log_p_and_q,
    log_p_and_q_from_odds,
    softplus,
    split_logits,
)


def focal_rows(rows: Rows, weight: Tensor | None, spec: LossSpec) -> Tensor:
    """Focal losses (N,), at least in float32, with class weights (K,)."""
    logits = at_least_float32(rows.logits, rows.target, weight)
    weight = None if weight is None else weight.to(logits.dtype)
    gamma = spec.gamma
    if rows.has_indices and not spec.label_smoothing:
        log_p, log_q, keep, safe = _target_log_p_and_q(logits, rows.target, spec.ignore_index)
        if isinstance(gamma, tuple):
            gamma = constant(gamma, like=logits, xp=xp)[safe]
        return weigh(_focal_partial(log_p, log_q, gamma, detached=spec.detached), keep, safe, weight)
    target, counted = soft_target(rows, spec, dtype=logits.dtype)
    target = target if weight is None else target * weight
    log_p, log_q = log_p_and_q(split_logits(logits, temperature=1.0, xp=xp), xp=xp)
    log_p, log_q = guard_impossible(log_p, log_q, target, xp=xp)
    gamma = constant(gamma, like=logits, xp=xp) if isinstance(gamma, tuple) else gamma
    losses = (target * _focal_partial(log_p, log_q, gamma, detached=spec.detached)).sum(dim=1)
    return losses if counted is None else torch.where(counted, losses, 0)


def inverse_focal_rows(rows: Rows, weight: Tensor | None, spec: LossSpec) -> Tensor:
    """Inverse focal losses (N,)."""
    log_p, _, keep, safe = _target_log_p_and_q(rows.logits, rows.target, spec.ignore_index)
    return weigh(-torch.exp(spec.gamma * torch.log1p(torch.exp(log_p))) * log_p, keep, safe, weight)


def dual_focal_rows(rows: Rows, weight: Tensor | None, spec: LossSpec) -> Tensor:
    """Dual focal losses (N,)."""
    gamma = spec.gamma
    log_p, log_q, keep, safe = _target_log_p_and_q(rows.logits, rows.target, spec.ignore_index)
    log_probs = F.log_softmax(rows.logits, dim=1)
    score = rows.logits.gather(1, safe[:, None])
    runner_up = torch.where(rows.logits < score, log_probs, -torch.inf).max(dim=1).values
    # 1 - p + p' is a sum of positive terms, taken in log space. torch.logaddexp is avoided: its second derivative is
    # NaN at -inf.
    beaten = runner_up > -torch.inf
    log_ratio = torch.where(beaten, runner_up, 0) - torch.where(beaten, log_q, 0)
    log_base = log_q + torch.where(beaten, softplus(log_ratio, xp=xp), 0)
    losses = -torch.exp(gamma * log_base) * log_p if gamma else -log_p
    return weigh(losses, keep, safe, weight)


def sigmoid_focal(logits: Tensor, target: Tensor, spec: LossSpec) -> Tensor:
    """Sigmoid focal losses, at least in float32: of the shape of `logits`, or their sum or mean."""
    keep = target != spec.ignore_index
    wide = at_least_float32(logits)
    wide = torch.where(keep, wide, 0)  # a score that does not count may be infinite, and its gradient is 0
    gamma = constant(spec.gamma, like=wide, xp=xp)
    alpha = constant(spec.alpha, like=wide, xp=xp)
    t = torch.where(keep, target, 0).to(wide.dtype)
    log_p, log_q = F.logsigmoid(wide), F.logsigmoid(-wide)
    positive = -torch.exp(gamma * log_q) * log_p
    negative = -torch.exp(gamma * log_p) * log_q
    losses = (
        t * positive + (1 - t) * negative if alpha is None else alpha * t * positive + (1 - alpha) * (1 - t) * negative
    )
    losses = torch.where(keep, losses, 0)
    if spec.reduction == "none":
        return losses
    return losses.sum() / keep.sum() if spec.reduction == "mean" else losses.sum()


def soft_target(rows: Rows, spec: LossSpec, *, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Class probabilities (N, K) after smoothing, and the mask of rows that count (None if all do)."""
    classes = rows.logits.shape[1]
    if rows.has_indices:
        _, keep, safe = gather_target(rows.logits, rows.target, spec.ignore_index)
        # F.one_hot would read the values, which do not exist under vmap.
        target = torch.zeros_like(rows.logits, dtype=dtype).scatter(1, safe[:, None], 1)
    else:
        keep, target = None, rows.target.to(dtype)
    if spec.label_smoothing:
        target = (1 - spec.label_smoothing) * target + spec.label_smoothing / classes
        if keep is not None:
            target = torch.where(keep[:, None], target, 0)
    return target, keep


def _target_log_p_and_q(logits: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log p and log(1 - p) of each row's class, the mask of rows that count, and indices that are safe to use."""
    _, keep, safe = gather_target(logits, target, ignore_index)
    # a row that does not count may be masked at its index
    against = torch.where(keep, log_odds_against(logits, safe, xp=xp), 0)
    return *log_p_and_q_from_odds(against, xp=xp), keep, safe


def _focal_partial(log_p: Tensor, log_q: Tensor, gamma: Any, *, detached: bool) -> Tensor:
    """The loss of one class's probability: -(1 - p)^gamma log p, or -(1 + p)^|gamma| log p if a policy's gamma < 0."""
    if not isinstance(gamma, GammaPolicy):
        return focal_partial_unchecked(log_p, log_q.detach() if detached else log_q, gamma=gamma, xp=xp)
    p = torch.exp(log_p)
    chosen = torch.as_tensor(gamma(p.detach()), dtype=log_p.dtype, device=log_p.device)
    log_factor = torch.where(
        chosen >= 0, chosen * log_q.clamp(min=torch.finfo(log_q.dtype).min), -chosen * torch.log1p(p)
    )
    factor = torch.exp(log_factor)
    return -(factor.detach() if detached else factor) * log_p
