"""Per-sample losses of a softmax output. Classes are on dimension 1, as in `torch.nn.functional.cross_entropy`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from array_api_compat import torch as xp
from torch import Tensor
from torch.autograd import forward_ad

from refocal import _check
from refocal._arrays import constant, is_transformed
from refocal.losses import one_pass
from refocal.losses.gpu import dispatch
from refocal.losses.gpu.plan import Settings
from refocal.losses.policies import GammaPolicy
from refocal.losses.proper_solver import proper_focal_rows, proper_focal_rows_plainly
from refocal.losses.rows import (
    Rows,
    as_rows,
    at_least_float32,
    check_fit,
    gather_target,
    loss_dtype,
    reduce,
    rows_of,
)
from refocal.maps.focal import focal_partial_unchecked
from refocal.maps.simplex import log_p_and_q, softplus, split_logits


def focal_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: Any,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    detached: bool = False,
) -> Tensor:
    """Focal loss of each sample: sum_c t_c w_c (1 - p_c)^gamma (-log p_c), p = softmax(logits).

    Args:
        logits: Scores (N, K, ...), or (K,) for one sample.
        target: Class indices (N, ...), or class probabilities t of the shape of `logits`.
        gamma: Focusing parameter >= 0: a number, one value a class, or a policy (see `refocal.losses.policies`).
        weight: Class weights w (K,).
        ignore_index: Samples with this class index have loss 0.
        label_smoothing: Mixes t with the uniform distribution.
        detached: Stop the gradient through (1 - p)^gamma, as some implementations do. Training then settles at another
            point, whose posterior map takes `detached=True` too.

    Returns:
        Losses, of the shape that a class-index target has. At gamma = 0 they are those of cross-entropy.

    Example:
        >>> round(focal_loss(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]), gamma=2.0).item(), 4)
        0.0109

    Reference: 001, Eq. 5.
    """
    ignore_index = _check.whole(ignore_index, "ignore_index")
    label_smoothing = _check.label_smoothing(label_smoothing, allow_one=True)
    exponent = resolve_gamma(gamma, classes=_classes(logits))
    settings = Settings(exponent, weight, ignore_index, label_smoothing, detached)
    return reduced_focal_loss(logits, target, settings, "none")


def reduced_focal_loss(logits: Tensor, target: Tensor, settings: Settings, reduction: str) -> Tensor:
    """Focal loss, reduced as `nn.CrossEntropyLoss` does."""
    fast = dispatch.focal_loss(logits, target, *settings, reduction)
    return focal_loss_otherwise(logits, target, settings, reduction) if fast is None else fast


def focal_loss_otherwise(logits: Tensor, target: Tensor, settings: Settings, reduction: str) -> Tensor:
    """The same, of tensors that no kernel serves as they lie; cross-entropy says what is wrong with them."""
    gamma, weight, ignore_index, smoothing, _ = settings
    if isinstance(gamma, GammaPolicy) and gamma.current_gamma is not None:
        return reduced_focal_loss(logits, target, settings._replace(gamma=gamma.current_gamma), reduction)
    check_fit(logits, target, weight=weight, label_smoothing=smoothing, ignore_index=ignore_index, reduction=reduction)
    gamma = resolve_gamma(gamma, classes=_classes(logits))
    if gamma == 0.0 or not _classes(logits):  # without classes, there is no probability to focus on
        return F.cross_entropy(
            logits, target, weight=weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=smoothing
        )
    dtype, rows = loss_dtype(logits, target, weight), rows_of(logits, target)
    weight = None if weight is None else weight.flatten().to(dtype)  # of images, it may have another shape
    settings = settings._replace(gamma=gamma, weight=weight)
    if dispatch.runs_kernels(rows.logits, rows.target, weight):  # where the tensors lay otherwise, on a copy
        fast = dispatch.focal_loss(rows.logits.contiguous(), rows.target.contiguous(), *settings, reduction)
        if fast is not None:
            return fast.reshape(rows.shape) if reduction == "none" else fast
    soft_policy = isinstance(gamma, GammaPolicy) and (smoothing or not rows.has_indices)
    if dispatch.runs_in_one_pass(logits, target, weight) and not soft_policy:
        wide = rows._replace(logits=at_least_float32(rows.logits, rows.target, weight))
        loss = one_pass.focal_loss(wide, settings, reduction, functools.partial(focal_rows, settings=settings))
        return (loss.reshape(rows.shape) if reduction == "none" else loss).to(dtype)
    losses = focal_rows(rows, settings).reshape(rows.shape)
    return reduce(losses, rows, reduction, weight=weight, ignore_index=ignore_index).to(dtype)


def _classes(logits: Any) -> int:
    return logits.shape[min(logits.ndim - 1, 1)] if isinstance(logits, Tensor) and logits.ndim else 0


def resolve_gamma(gamma: Any, *, classes: int) -> Any:
    """A number, a tuple with one a class, or a policy whose gamma depends on the sample."""
    if isinstance(gamma, GammaPolicy):
        return gamma if gamma.current_gamma is None else gamma.current_gamma
    return _check.gamma(gamma, classes=classes, least=0.0)


def focal_rows(rows: Rows, settings: Settings) -> Tensor:
    """Focal losses (N,), at least in float32, by plain tensor operations: twice differentiable, on any device."""
    logits = at_least_float32(rows.logits, rows.target, settings.weight)
    weight = None if settings.weight is None else settings.weight.to(logits.dtype)
    if rows.has_indices and not settings.label_smoothing:
        log_p, log_q, counted, safe = _target_log_p_and_q(logits, rows.target, settings.ignore_index)
        gamma = settings.gamma
        if isinstance(gamma, tuple):
            gamma = constant(gamma, like=logits, xp=xp)[safe]
        losses = _partial(log_p, log_q, gamma, detached=settings.detached)
        if weight is not None:
            losses = losses * weight[safe]
        losses = torch.where(counted, losses, 0)
    else:
        target, keep = soft_target(rows, settings, dtype=logits.dtype)
        target = target if weight is None else target * weight
        log_p, log_q = log_p_and_q(split_logits(logits, temperature=1.0, xp=xp), xp=xp)
        log_p = torch.where((target == 0) & (log_p == -torch.inf), 0, log_p)  # 0 log 0 = 0, and so its derivatives
        gamma = constant(settings.gamma, like=logits, xp=xp) if isinstance(settings.gamma, tuple) else settings.gamma
        losses = (target * _partial(log_p, log_q, gamma, detached=settings.detached)).sum(dim=1)
        if keep is not None:
            losses = torch.where(keep, losses, 0)
    return losses


def soft_target(rows: Rows, settings: Settings, *, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Class probabilities (N, K), smoothed, and the mask of counted rows (None: all)."""
    classes = rows.logits.shape[1]
    if rows.has_indices:
        _, keep, safe = gather_target(rows.logits, rows.target, settings.ignore_index)
        # not F.one_hot: it looks at values, which vmap has not
        target = torch.zeros_like(rows.logits, dtype=dtype).scatter(1, safe[:, None], 1)
    else:
        keep, target = None, rows.target.to(dtype)
    if settings.label_smoothing:
        target = (1 - settings.label_smoothing) * target + settings.label_smoothing / classes
        if keep is not None:
            target = torch.where(keep[:, None], target, 0)
    return target, keep


def _target_log_p_and_q(logits: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log p and log(1 - p) of each row's class, the mask of counted rows, and indices safe to use."""
    score, keep, safe = gather_target(logits, target, ignore_index)
    others = logits.scatter(1, safe[:, None], -torch.inf)
    # not torch.logsumexp, whose slope is NaN where all others are masked with -inf
    shift = others.amax(dim=1, keepdim=True).detach()
    mass = torch.exp(others - torch.where(shift == -torch.inf, 0, shift)).sum(dim=1)
    none = mass == 0
    # the scores are subtracted first: added to their difference, the logarithm keeps its digits wherever they lie
    log_odds_against = torch.log(torch.where(none, 1, mass)) + (shift[:, 0] - score)
    log_odds_against = torch.where(none, -torch.inf - score, log_odds_against)
    log_odds_against = torch.where(score == torch.inf, torch.nan, log_odds_against)  # as the softmax of such a row
    log_odds_against = torch.where(keep, log_odds_against, 0)  # a row that does not count may be masked at its index
    log_p, log_q = -softplus(log_odds_against, xp=xp), -softplus(-log_odds_against, xp=xp)
    return log_p, torch.where(log_p == -torch.inf, 0, log_q), keep, safe  # p log p = 0 there, and so its derivatives


def _partial(log_p: Tensor, log_q: Tensor, gamma: Any, *, detached: bool) -> Tensor:
    """The loss of one class's probability; where a policy says gamma < 0, -(1 + p)^|gamma| log p."""
    if not isinstance(gamma, GammaPolicy):
        return focal_partial_unchecked(log_p, log_q.detach() if detached else log_q, gamma=gamma, xp=xp)
    p = torch.exp(log_p)
    chosen = torch.as_tensor(gamma(p.detach()), dtype=log_p.dtype, device=log_p.device)
    log_factor = torch.where(
        chosen >= 0, chosen * log_q.clamp(min=torch.finfo(log_q.dtype).min), -chosen * torch.log1p(p)
    )
    factor = torch.exp(log_factor)
    return -(factor.detach() if detached else factor) * log_p


def inverse_focal_loss(
    logits: Tensor, target: Tensor, *, gamma: float, weight: Tensor | None = None, ignore_index: int = -100
) -> Tensor:
    """Inverse focal loss of each sample: -(1 + p)^gamma log p, which sharpens where focal loss softens.

    Args:
        logits: Scores (N, K, ...).
        target: Class indices (N, ...).
        gamma: Exponent >= 0.
        weight: Class weights (K,).
        ignore_index: Samples with this class index have loss 0.

    Returns:
        Losses (N, ...).

    Example:
        >>> round(inverse_focal_loss(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]), gamma=1.0).item(), 4)
        0.4281

    Reference: the part of AdaFocal with negative gamma, 003, section 5.1.
    """
    return reduced_inverse_focal_loss(logits, target, _settings(gamma, weight, ignore_index), "none")


def reduced_inverse_focal_loss(logits: Tensor, target: Tensor, settings: Settings, reduction: str) -> Tensor:
    """Inverse focal loss, reduced as `nn.CrossEntropyLoss` does."""

    def in_one_pass(call: one_pass.Call, index: Tensor, weights: Tensor) -> Tensor:
        return one_pass.hard_loss(call, index, weights, -settings.gamma)

    return _of_indices(logits, target, settings, reduction, (_inverse_rows, in_one_pass))


def _inverse_rows(rows: Rows, settings: Settings) -> Tensor:
    log_p, _, keep, safe = _target_log_p_and_q(rows.logits, rows.target, settings.ignore_index)
    return _masked(-torch.exp(settings.gamma * torch.log1p(torch.exp(log_p))) * log_p, keep, safe, settings.weight)


def dual_focal_loss(
    logits: Tensor, target: Tensor, *, gamma: float, weight: Tensor | None = None, ignore_index: int = -100
) -> Tensor:
    """Dual focal loss of each sample: -(1 - p + p')^gamma log p, p' the largest probability below p (0 if none).

    Args:
        logits: Scores (N, K, ...).
        target: Class indices (N, ...).
        gamma: Focusing parameter >= 0.
        weight: Class weights (K,).
        ignore_index: Samples with this class index have loss 0.

    Returns:
        Losses (N, ...).

    Example:
        >>> round(dual_focal_loss(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]), gamma=2.0).item(), 4)
        0.0245

    Reference: Tao, Dong, Xu: Dual Focal Loss for Calibration. ICML 2023, Eq. 5.
    """
    return reduced_dual_focal_loss(logits, target, _settings(gamma, weight, ignore_index), "none")


def reduced_dual_focal_loss(logits: Tensor, target: Tensor, settings: Settings, reduction: str) -> Tensor:
    """Dual focal loss, reduced as `nn.CrossEntropyLoss` does."""

    def in_one_pass(call: one_pass.Call, index: Tensor, weights: Tensor) -> Tensor:
        return one_pass.dual_loss(call, index, weights, settings.gamma)

    return _of_indices(logits, target, settings, reduction, (_dual_rows, in_one_pass))


def _dual_rows(rows: Rows, settings: Settings) -> Tensor:
    gamma = settings.gamma
    log_p, log_q, keep, safe = _target_log_p_and_q(rows.logits, rows.target, settings.ignore_index)
    log_probs = F.log_softmax(rows.logits, dim=1)
    score = rows.logits.gather(1, safe[:, None])
    runner_up = torch.where(rows.logits < score, log_probs, -torch.inf).max(dim=1).values
    # 1 - p + p' as a sum of positive terms, in log space; not by logaddexp, whose second derivative is NaN at -inf
    beaten = runner_up > -torch.inf
    log_ratio = torch.where(beaten, runner_up, 0) - torch.where(beaten, log_q, 0)
    log_base = log_q + torch.where(beaten, softplus(log_ratio, xp=xp), 0)
    losses = -torch.exp(gamma * log_base) * log_p if gamma else -log_p
    return _masked(losses, keep, safe, settings.weight)


def _settings(gamma: Any, weight: Tensor | None, ignore_index: Any) -> Settings:
    exponent = _check.scalar_gamma(gamma, least=0.0)
    return Settings(exponent, weight, _check.whole(ignore_index, "ignore_index"), 0.0, False)


def _of_indices(
    logits: Tensor, target: Tensor, settings: Settings, reduction: str, ways: tuple[Callable[..., Tensor], ...]
) -> Tensor:
    """A loss of class indices, reduced, by one of two ways: plain tensor operations, or together with its gradient."""
    weight, ignore_index = settings.weight, settings.ignore_index
    rows, dtype = _index_rows(logits, target, weight=weight), loss_dtype(logits)
    plain, in_one_pass = functools.partial(ways[0], settings=settings), ways[1]
    if not dispatch.runs_in_one_pass(logits, target, weight):
        losses = plain(rows).to(dtype).reshape(rows.shape)
        return reduce(losses, rows, reduction, weight=weight, ignore_index=ignore_index)
    loss = in_one_pass(*one_pass.call_of_indices(rows, ignore_index, weight, reduction, plain))
    return (loss.reshape(rows.shape) if reduction == "none" else loss).to(dtype)


def brier_loss(logits: Tensor, target: Tensor, *, ignore_index: int = -100) -> Tensor:
    """Brier score of each sample: sum_c (p_c - t_c)^2.

    Args:
        logits: Scores (N, K, ...).
        target: Class indices (N, ...), or class probabilities t of the shape of `logits`.
        ignore_index: Samples with this class index have loss 0.

    Returns:
        Losses, of the shape that a class-index target has.

    Example:
        >>> brier_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0])).tolist()
        [0.5]

    Reference: 002, section 5.
    """
    ignore_index = _check.whole(ignore_index, "ignore_index")
    rows = as_rows(logits, target, weight=None, ignore_index=ignore_index)
    wide = at_least_float32(rows.logits, rows.target)
    target, keep = soft_target(rows, Settings(0.0, None, ignore_index, 0.0, False), dtype=wide.dtype)
    losses = ((torch.softmax(wide, dim=1) - target) ** 2).sum(dim=1)
    if keep is not None:
        losses = torch.where(keep, losses, 0)
    return losses.to(loss_dtype(logits, rows.target)).reshape(rows.shape)


def proper_focal_loss(
    logits: Tensor, target: Tensor, *, gamma: Any, weight: Tensor | None = None, ignore_index: int = -100
) -> Tensor:
    """The proper part of focal loss of each sample: softmax(logits) is trained to be p(y|x) itself.

    Args:
        logits: Scores (N, K, ...).
        target: Class indices (N, ...).
        gamma: Focusing parameter >= 0: a number, or one value a class.
        weight: Class weights (K,).
        ignore_index: Samples with this class index have loss 0.

    Returns:
        Losses (N, ...). The gradient comes from the implicit function theorem.

    Example:
        >>> round(proper_focal_loss(torch.tensor([[2.1972, 0.0]]), torch.tensor([0]), gamma=1.0).item(), 4)
        0.0577

    Reference: 003, Props. 2 and 4.
    """
    rows = _index_rows(logits, target, weight=weight)
    _, keep, safe = gather_target(rows.logits, rows.target, _check.whole(ignore_index, "ignore_index"))
    transformed = not torch.compiler.is_compiling() and (is_transformed(rows.logits) or forward_ad._current_level >= 0)
    of_rows = proper_focal_rows_plainly if transformed else proper_focal_rows
    losses = of_rows(rows.logits, safe, gamma)
    return _masked(losses, keep, safe, weight).to(loss_dtype(logits)).reshape(rows.shape)


def _index_rows(logits: Tensor, target: Tensor, *, weight: Tensor | None) -> Rows:
    """Rows of a loss that takes class indices only, at least in float32."""
    rows = as_rows(logits, target, weight=weight)
    if not rows.has_indices:
        msg = "this loss takes class indices as its target, not class probabilities"
        raise TypeError(msg)
    wide = at_least_float32(rows.logits)
    return rows._replace(logits=wide)


def _masked(losses: Tensor, keep: Tensor, safe: Tensor, weight: Tensor | None) -> Tensor:
    if weight is not None:
        losses = losses * weight.flatten().to(losses.dtype)[safe]
    return torch.where(keep, losses, 0)
