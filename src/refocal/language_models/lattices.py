"""Losses and confidences of outlined rows at all pairs (gamma, T) of a lattice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import array_api_compat.torch as xp
import torch
from torch import Tensor

from refocal.language_models.outlines import BETAS, OCTAVE, TAIL_BETAS, RowOutlines
from refocal.maps.focal import focus_of_top

_GAMMA_STEP = 0.2  # of log(1 + gamma)
LOG_GAMMAS = tuple(_GAMMA_STEP * step for step in range(-5, 12))  # log(1 + gamma): gamma from -0.63 to 8.03, with 0
LOG_BETAS = tuple(map(math.log, BETAS))
GAMMAS = tuple(map(math.expm1, LOG_GAMMAS))
SOFTMAX_PLACE = (LOG_GAMMAS.index(0.0), LOG_BETAS.index(0.0))  # of gamma = 0 and T = 1
_BLOCK = 1 << 18  # elements of a temporary on a CPU, of which a few fit into its cache
_LARGE_BLOCK = 1 << 26  # on other devices


class LatticeValues(NamedTuple):
    """The NLL and the top-label confidence (gammas, betas, n) of each row at each pair of the lattice."""

    losses: Tensor
    confidences: Tensor


def evaluate_lattice(rows: RowOutlines) -> Iterator[LatticeValues]:
    """Evaluate the lattice, some rows at a time."""
    size = _BLOCK if rows.gap.device.type == "cpu" else _LARGE_BLOCK
    step = max(1, size // (len(GAMMAS) * rows.leaders.shape[1]))
    for start in range(0, len(rows.gap), step):
        part = rows.take(slice(start, start + step))
        room = part.leaders.new_empty(2, len(GAMMAS), *part.leaders.shape)
        losses, confidences = zip(*(_evaluate(part, place, room) for place in range(len(BETAS))), strict=True)
        yield LatticeValues(torch.stack(losses, dim=1), torch.stack(confidences, dim=1))


def _evaluate(rows: RowOutlines, place: int, room: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and confidences (gammas, n) at the inverse temperature of this place, with room (2, gammas, n, m).

    With t = log p, q = 1 - p and s = -p t / q, log h = t - gamma log q - log(1 + gamma s). The q of the top class is
    the sum over the others. All others have p <= 1/2.
    """
    beta = BETAS[place]
    gamma = torch.tensor(GAMMAS, dtype=rows.gap.dtype, device=rows.gap.device)[:, None, None]
    odds = torch.exp(beta * rows.leaders)
    rest = odds.sum(dim=1, keepdim=True) + rows.masses[place]
    against = rest * torch.exp(-beta * rows.gap)
    log_total = torch.log1p(against)
    log_p_next = -beta * rows.gap - log_total
    log_q_top = torch.log(rest) + log_p_next

    # h of the leaders divided by p of the runner-up, summed, and of the top class
    log_q, s = _log_q_and_s(beta * rows.leaders + log_p_next)
    shares = torch.mul(-gamma, log_q, out=room[0]).exp_().div_(torch.mul(gamma, s, out=room[1]).add_(1))
    others = shares.mul_(odds).sum(dim=2, keepdim=True) + _tail_mass(rows, place, log_p_next, gamma)
    focus, _ = focus_of_top(against, gamma=gamma, gamma_plus_one=gamma + 1, xp=xp)
    log_h_top = -log_total - gamma * log_q_top - torch.log(focus)
    log_sum = torch.log1p(torch.exp(log_p_next - log_h_top) * others)

    log_p = beta * torch.where(rows.is_top, 0.0, rows.label) + log_p_next
    log_q, s = _log_q_and_s(log_p)
    log_h = log_p - gamma * log_q - torch.log1p(gamma * s)
    losses = log_sum + torch.where(rows.is_top, 0.0, log_h_top - log_h)
    return losses[:, :, 0], torch.exp(-log_sum)[:, :, 0]


def _log_q_and_s(log_p: Tensor) -> tuple[Tensor, Tensor]:
    """Log(1 - p) and -p log p / (1 - p) of classes with p <= 1/2."""
    p = torch.exp(log_p)
    return torch.log1p(-p), -p * log_p / (1 - p)


def _tail_mass(rows: RowOutlines, place: int, log_p_next: Tensor, gamma: Tensor) -> Tensor:
    """The sum of h over the classes of the tail, divided by p of the runner-up, (gammas, n, 1).

    By orders of p it is a (1 + b + c + ...) with a = sum p, a b = gamma sum p^2 (1 + t) and
    a c = sum p^3 (gamma (gamma + 1) (1/2 + t) + gamma^2 t^2). It is returned as a / (1 - b - c + b^2).
    """
    beta, mass = BETAS[place], rows.masses[place]
    inverse = torch.exp(log_p_next) / torch.where(mass > 0, mass, 1.0)
    twice = place + OCTAVE
    b = gamma * inverse * ((1 + log_p_next) * rows.masses[twice] + beta * rows.moments[twice])

    cubes, mean, variance = _at_triple(rows, place)
    t = log_p_next + beta * mean
    polynomial = gamma * (gamma + 1) * (0.5 + t) + gamma**2 * (t * t + beta**2 * variance)
    c = inverse * torch.exp(log_p_next) * cubes * polynomial
    return mass / (1 - b - c + b * b)


def _at_triple(rows: RowOutlines, place: int) -> tuple[Tensor, Tensor, Tensor]:
    """A_0(3 beta), and mean and variance of x under the masses e^(3 beta x), by interpolation in beta.

    The derivative of log A_0 is the mean, and that of the mean is the variance.
    """
    low = place + math.floor(OCTAVE * math.log2(3))
    below, above = TAIL_BETAS[low], TAIL_BETAS[low + 1]
    share = (3 * BETAS[place] - below) / (above - below)
    tiny = torch.finfo(rows.masses.dtype).tiny
    log_masses = torch.log(rows.masses[low : low + 2].clamp(min=tiny))
    means = rows.moments[low : low + 2] / rows.masses[low : low + 2].clamp(min=tiny)
    variance = (means[1] - means[0]) / (above - below)
    # log A_0 is convex: between the two places it lies below the line by this much
    sag = 0.5 * share * (1 - share) * (above - below) ** 2 * variance
    masses = torch.exp(torch.lerp(log_masses[0], log_masses[1], share) - sag)
    return masses, torch.lerp(means[0], means[1], share), variance
