"""The proper part of focal loss and its gradient, without a graph of the search for the minimizer.

For the posterior eta = softmax(logits), the minimizer q solves h(q_i) = lambda eta_i with sum q_i = 1. With
s_i = d log q_i / d log h_i, the implicit function theorem gives the gradient of the loss at label y,

    phi(q_y) s_y (M_j / sum(M) - [j = y]),    M_i = q_i s_i,

one number per row times the distance of a distribution from the label, as in cross-entropy. With a single gamma, only
the top class can have q > 1/2. The unknowns are then the log-odds of the top class and log q of the others, and a few
Newton steps on all equations at once suffice (`refocal.maps.newton` has the equations). Rows that do not converge, and
losses with one gamma per class, use the bracketed search there.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from array_api_compat import torch as xp
from torch import Tensor

from refocal._arrays import bounded_exp
from refocal.losses.rows import row_blocks, scale_distance, take_out_target
from refocal.maps.focal import focus_of_top
from refocal.maps.minimizer import proper_focal_partial_unchecked
from refocal.maps.newton import log_h_of_top, solve
from refocal.maps.posterior import MapSettings
from refocal.maps.simplex import softplus

_MOST_STEPS = 16
_LOG_HALF = -math.log(2)


def proper_focal_rows(logits: Tensor, target: Tensor, gamma: Any) -> Tensor:
    """Losses (N,) of rows (N, K) and class indices (N,), in one operator with its gradient."""
    settings = MapSettings.check(gamma, None, 0.0, False, classes=logits.shape[1], least=0.0)
    losses, _ = _operator(logits, target, [settings.gamma] if settings.one_gamma else list(settings.gamma))
    return losses


def proper_focal_rows_plain(logits: Tensor, target: Tensor, gamma: Any) -> Tensor:
    """The same in plain operations: differentiable any number of times, and open to `torch.func`."""
    log_probs = torch.log_softmax(logits, dim=1)
    broken = log_probs.isnan().any(dim=1, keepdim=True)  # such rows have no minimizer and stay NaN
    losses = proper_focal_partial_unchecked(torch.where(broken, 0, log_probs), target, gamma=gamma, in_logs=True, xp=xp)
    return torch.where(broken[:, 0], log_probs.gather(1, target[:, None])[:, 0], losses)


@torch.library.custom_op("refocal::proper_focal_loss", mutates_args=())
def _operator(logits: Tensor, target: Tensor, gamma: list[float]) -> tuple[Tensor, Tensor]:
    """Losses (N,) and their gradients (N, K)."""
    classes = logits.shape[1]
    settings = MapSettings.check(gamma if len(gamma) > 1 else gamma[0], None, 0.0, False, classes=classes, least=0.0)
    losses, gradient = logits.new_empty(len(logits)), torch.empty_like(logits, memory_format=torch.contiguous_format)
    for block in row_blocks(logits):
        log_probs, labels = torch.log_softmax(logits[block], dim=1), target[block, None]
        compute = _solve_by_newton if settings.one_gamma else _solve_by_search
        loss, gradient[block] = compute(log_probs, labels, settings)
        losses[block] = torch.where(log_probs.gather(1, labels) == -torch.inf, torch.inf, loss)[:, 0]
    return losses, gradient


@_operator.register_fake
def _(logits: Tensor, target: Tensor, gamma: list[float]) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return logits.new_empty(logits.shape[:1]), torch.empty_like(logits, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, target, ctx.gamma = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(logits, target, output[1])


def _backward(ctx: Any, incoming: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, None, None]:
    logits, target, gradient = ctx.saved_tensors
    if incoming is None:
        return None, None, None
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return incoming[:, None] * gradient, None, None
    gamma = ctx.gamma if len(ctx.gamma) > 1 else ctx.gamma[0]
    losses = proper_focal_rows_plain(logits, target, gamma)
    return torch.autograd.grad(losses, logits, incoming, create_graph=True)[0], None, None


_operator.register_autograd(_backward, setup_context=_setup_context)


class _Step(NamedTuple):
    """The state of the equations of the classes below the top: a = log q solves log h(a) = log h_top + relative."""

    mass: Tensor  # (n, K) q over e^largest
    largest: Tensor  # (n, 1) the largest a of a row
    log_phi: Tensor  # (n, K) a - log h
    slope: Tensor  # (n, K) d log h / da = 1 / s


def _evaluate(a: Tensor, gamma: float) -> _Step:
    largest = a.amax(dim=1, keepdim=True)
    mass = torch.exp(a - largest)
    q = mass * torch.exp(largest)
    ratio, slope = _ratio_and_slope(a, q, gamma)
    # torch.log takes six times as long as torch.log1p.
    return _Step(mass, largest, ratio.mul_(gamma).log1p_().add_(torch.log1p(-q), alpha=gamma), slope)


def _ratio_and_slope(a: Tensor, q: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """s(q) = -q log q / (1 - q), and d log h / d log q, for q = e^a up to 1/2."""
    inverse = torch.reciprocal(1 - q)
    ratio = (q * a).mul_(inverse).neg_()
    focus = torch.mul(ratio, gamma).add_(1)
    return ratio, (q - ratio).div_(focus).add_(q).mul_(inverse).mul_(gamma).add_(1)


def _solve_by_newton(log_probs: Tensor, labels: Tensor, settings: MapSettings) -> tuple[Tensor, Tensor]:
    """Losses (n, 1) and gradients (n, K) for a single gamma, by Newton's method."""
    gamma, limits = settings.gamma, torch.finfo(log_probs.dtype)
    top_log_prob, top = log_probs.max(dim=1, keepdim=True)
    lowest = -(limits.max**0.75)  # replaces -inf, so that q log q is 0
    relative = (log_probs - top_log_prob).scatter_(1, top, lowest).clamp_(min=lowest)
    largest = relative.amax(dim=1, keepdim=True)
    log_rest = largest + torch.exp(relative - largest).sum(dim=1, keepdim=True).log_()
    # With a single gamma, 1/K <= q_top <= max(eta_top, 1/2).
    low, high = -math.log(max(1, log_probs.shape[1] - 1)) - 1e-6, 1e-6 - log_rest.clamp(max=0)
    # If no class stands out, q is close to eta. Near q = 1, the top class has log h = gamma x - log(1 + gamma).
    x = torch.minimum(-log_rest, (math.log1p(gamma) - log_rest) / (1 + gamma)).clamp_(min=low)
    a = (relative - (log_rest + softplus(x, xp=xp))).clamp_(max=_LOG_HALF)
    tolerance, rounding = limits.eps**0.5, 4 * limits.eps
    broken = top_log_prob.isnan()
    for _ in range(_MOST_STEPS):
        log_h_top, slope_top = log_h_of_top(x, settings, xp=xp)
        mass, largest, log_phi, slope = _evaluate(a, gamma)
        residual = log_phi.sub_(a).add_(relative).add_(log_h_top)
        off = residual.abs().add_(relative, alpha=rounding).amax(dim=1, keepdim=True) - rounding * log_h_top.abs()
        total = mass.sum(dim=1, keepdim=True)
        share = mass.div_(slope)
        violation = largest + torch.log(total) + softplus(x, xp=xp) + (share * residual).sum(1, keepdim=True) / total
        step = -violation / (torch.sigmoid(x) + slope_top * (share.sum(dim=1, keepdim=True) / total))
        new_x = torch.minimum((x + step).clamp_(min=low), high)
        converged = broken | ((off < tolerance) & ((new_x - x).abs() < tolerance * (1 + x.abs())))
        a.add_(residual.add_(slope_top * (new_x - x)).div_(slope)).clamp_(max=_LOG_HALF)
        x = new_x
        if bool(converged.all()):
            return _assemble(x, a, top, labels, settings)
    losses, gradient = _assemble(x, a, top, labels, settings)
    stuck = (~converged)[:, 0].nonzero()[:, 0]
    losses[stuck], gradient[stuck] = _solve_by_search(log_probs[stuck], labels[stuck], settings)
    return losses, gradient


def _assemble(x: Tensor, a: Tensor, top: Tensor, labels: Tensor, settings: MapSettings) -> tuple[Tensor, Tensor]:
    """Losses and gradients from the log-odds x of the top class and log q of the others."""
    gamma = settings.gamma
    log_h_top, slope_top = log_h_of_top(x, settings, xp=xp)
    log_q_top, log_complement = -softplus(-x, xp=xp), -softplus(x, xp=xp)
    mass = _normalize_rest(a)
    _, slope = _ratio_and_slope(a, mass * torch.exp(log_complement), gamma)
    mass = _join_masses(mass.div_(slope), top, torch.exp(log_q_top), slope_top)
    log_q = a.gather(1, labels)
    ratio, slope = _ratio_and_slope(log_q, torch.exp(log_q), gamma)
    log_complement_of_label = torch.log1p(-torch.exp(log_q))
    pull = torch.exp(gamma * log_complement_of_label) * (1 + gamma * ratio) / slope
    share = torch.where(slope_top > 0, torch.exp(log_complement) / slope_top, 1)  # at gamma = 0, it is 1
    is_top = labels == top
    pull = torch.where(is_top, torch.exp(log_q_top - log_h_top) * share, pull)
    log_q = torch.where(is_top, log_q_top, log_q)
    log_complement = torch.where(is_top, log_complement, log_complement_of_label)
    return -torch.exp(gamma * log_complement) * log_q, _scale_masses(mass, labels, pull)


def _solve_by_search(log_probs: Tensor, labels: Tensor, settings: MapSettings) -> tuple[Tensor, Tensor]:
    """Losses and gradients for any settings, by the bracketed search."""
    broken = log_probs[:, :1].isnan()
    found = solve(torch.where(broken, 0, log_probs), settings, in_logs=True, xp=xp)
    constants = settings.like(log_probs, xp=xp)
    gamma, complement = constants.gamma, torch.exp(found.log_complement)
    odds_against = bounded_exp(found.log_complement - found.log_q, xp=xp)
    focus, above = focus_of_top(odds_against, gamma=gamma, gamma_plus_one=constants.gamma_plus_one, xp=xp)
    slope = complement + gamma * (found.q - above / focus)  # (1 - q) / s
    log_share = torch.where(slope > 0, found.log_complement - torch.log(slope), 0)  # at gamma = 0, s is 1
    largest, top = found.log_q.max(dim=1, keepdim=True)
    rest = _normalize_rest(found.log_q.scatter(1, top, torch.finfo(log_probs.dtype).min)) * torch.exp(log_share)
    mass = _join_masses(rest, top, torch.exp(largest), slope.gather(1, top))
    is_zero = torch.as_tensor(gamma == 0, device=log_probs.device)
    factor = torch.where(is_zero, 1, torch.exp(gamma * found.log_complement))
    losses, pull = -factor * found.log_q, factor * focus * torch.exp(log_share)
    losses, pull = (torch.where(broken, torch.nan, each.gather(1, labels)) for each in (losses, pull))
    return losses, _scale_masses(mass, labels, pull)


def _normalize_rest(log_q: Tensor) -> Tensor:
    """q / (1 - q_top) of the rest, given log q with a very low value at the top. The sum is 1, whatever q_top is."""
    shares = torch.exp(log_q - log_q.amax(dim=1, keepdim=True))
    return shares.div_(shares.sum(dim=1, keepdim=True))


def _join_masses(rest: Tensor, top: Tensor, q_top: Tensor, slope_top: Tensor) -> Tensor:
    """M up to a common factor, from M / (1 - q_top) of the rest and the slope d log h / dx = (1 - q) / s of the top.

    There is no division by 1 - q_top or by the slope, because both may underflow.
    """
    return rest.mul_(slope_top.clamp(max=1)).scatter_(1, top, q_top / slope_top.clamp(min=1))


def _scale_masses(masses: Tensor, labels: Tensor, pull: Tensor) -> Tensor:
    """Pull (n, 1) times (M / sum(M) - [j = y]); overwrites `masses`."""
    of_label, rest = take_out_target(masses, labels)
    return scale_distance(masses, labels, rest, pull / (of_label + rest))
