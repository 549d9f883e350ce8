"""Class masses under focal temperature scaling: the top class by itself, the others as arrays.

The model is Psi^gamma(softmax(beta logits)), Psi_j = h(p_j) / sum h. With t = log p, q = 1 - p, o = p / q and
s = -o t,

    log h = t - gamma log q - log(1 + gamma s).

The q of the top class may be tiny. So this class is computed in float64, many rows at a time. The other classes have
p <= 1/2 and need only one formula. They are arrays in the requested precision, processed in blocks that fit into a
core's cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from refocal.calibrators.fit.temperature_likelihood import LabeledLogits, in_blocks, top_softmax
from refocal.maps.focal import focus_of_top

BLOCK_BYTES = 1 << 17  # size of one temporary: all of them fit into the cache
_ROWS = 1 << 13  # rows for which the top classes are computed together
_FAINT = -45.0  # e^-45 is below the rounding of 1
_FAINT_P = 1e-18  # below this, h(p) = p to the last digit, and p^2 may be subnormal, which is slow


class Parameters(NamedTuple):
    """A point of the model: gamma > -1 and beta = 1 / T > 0."""

    gamma: float
    beta: float


class RankedLogits(NamedTuple):
    """Labeled logits, and the two largest logits of each row.

    Attributes:
        data: The logits and labels.
        argmax: (N,) the top class; the first one in a tie.
        runner_up: (N,) the largest of the other logits, in their dtype.
        depth: A bound: no logit lies farther than this below the largest of its row.
    """

    data: LabeledLogits
    argmax: np.ndarray
    runner_up: np.ndarray
    depth: float

    @classmethod
    def prepare(cls, data: LabeledLogits) -> RankedLogits:
        """Find the two largest logits of each row."""
        argmax = np.empty(len(data.logits), np.intp)
        runner_up = np.empty_like(data.top)
        depth = 0.0
        for block, (room,) in in_blocks(data.logits, data.logits.dtype, arrays=1, size=BLOCK_BYTES):
            rows = np.arange(len(room))
            np.copyto(room, data.logits[block])
            depth = max(depth, float(np.max(data.top[block])) - float(np.min(room)))
            np.argmax(room, axis=1, out=argmax[block])
            room[rows, argmax[block]] = -np.inf
            runner_up[block] = room[rows, np.argmax(room, axis=1)]  # faster than a maximum of rows
        return cls(data, argmax, runner_up, depth)

    def take(self, rows: np.ndarray | slice) -> RankedLogits:
        """Some of the rows. Their shares do not sum to 1."""
        data = self.data
        kept = data._replace(logits=data.logits[rows], labels=data.labels[rows], share=data.share[rows])
        kept = kept._replace(top=data.top[rows], label_gap=data.label_gap[rows])
        return RankedLogits(kept, self.argmax[rows], self.runner_up[rows], self.depth)

    def thin(self, step: int) -> RankedLogits:
        """Every `step`-th row."""
        rows = slice(None, None, step)
        return RankedLogits(self.data.thin(step), self.argmax[rows], self.runner_up[rows], self.depth)


def top_confidences(ranked: RankedLogits, at: Parameters) -> np.ndarray:
    """Compute the largest probability of each row of Psi^gamma(softmax(beta logits)), (N,) in float64."""
    if at.gamma == 0.0:
        return top_softmax(ranked.data, at.beta)
    dtype = ranked.data.logits.dtype
    confidence = []
    for part in split_rows(ranked):
        top = compute_top_classes(part, at, dtype, square=False)
        mass = np.empty(len(part.argmax))
        for block, room in in_blocks(part.data.logits, dtype, arrays=7, size=BLOCK_BYTES):
            rest = Rest(*room, *room[:3])
            fill_masses(part, block, top, rest, at)
            mass[block] = np.einsum("ij->i", rest.mass)
        confidence.append(1 / (1 + top.scale * mass))
    return np.concatenate(confidence)


def log_probs_with_uniform(ranked: RankedLogits, at: Parameters, uniform: float) -> np.ndarray:
    """Compute log((1 - u) Psi^gamma(softmax(beta logits)) + u / K), (N, K) in the dtype of the logits."""
    dtype = ranked.data.logits.dtype
    parts = []
    for part in split_rows(ranked):
        top = compute_top_classes(part, at, dtype, square=False)
        probs = np.empty(part.data.logits.shape, dtype)
        for block, room in in_blocks(part.data.logits, dtype, arrays=7, size=BLOCK_BYTES):
            rest = Rest(*room, *room[:3])
            fill_masses(part, block, top, rest, at)
            share = (1 - uniform) / (1 + top.scale[block] * np.einsum("ij->i", rest.mass))
            own = np.multiply(rest.mass, (share * top.scale[block]).astype(dtype)[:, None], out=probs[block])
            own[np.arange(len(own)), part.argmax[block]] = share
            own += dtype.type(uniform / own.shape[1])
            np.log(own, out=own)
        parts.append(probs)
    return np.concatenate(parts)


def split_rows(ranked: RankedLogits) -> Iterator[RankedLogits]:
    """Iterate over parts of the rows, large enough for cheap work on (n,) arrays and small enough for memory."""
    for start in range(0, len(ranked.argmax), _ROWS):
        yield ranked.take(slice(start, start + _ROWS))


class TopClasses(NamedTuple):
    """The top class of each row, and the values that the others need from it: (n,) in float64, without underflow."""

    runner_up: np.ndarray  # the logit of the runner-up minus the top logit, <= 0
    log_p: np.ndarray
    log_q: np.ndarray
    p: np.ndarray
    q: np.ndarray
    focus: np.ndarray  # 1 + gamma s
    excess: np.ndarray  # s - p
    log_p_next: np.ndarray  # log p of the runner-up
    scale: np.ndarray  # p of the runner-up divided by h of the top class
    mean: np.ndarray  # mean of the other logits minus the top logit, under the softmax
    square: np.ndarray | None  # mean of the squares of the same differences


class Rest(NamedTuple):
    """Arrays (n, K) of the classes below the top; the top class has mass 0 in them."""

    distance: np.ndarray  # d, the logit minus that of the runner-up; later u = dt / d beta
    log_p: np.ndarray  # t; later G = d log h / dt
    mass: np.ndarray  # h divided by p of the runner-up
    odds: np.ndarray  # o
    log_q: np.ndarray  # log q; later d log h / d gamma
    inverse: np.ndarray  # 1 / (1 + gamma s)
    ratio: np.ndarray  # -s; later -s / (1 + gamma s)
    slope: np.ndarray  # -(ds / dt) / (1 + gamma s)
    moment: np.ndarray  # h u
    spare: np.ndarray


def compute_top_classes(part: RankedLogits, at: Parameters, dtype: np.dtype, *, square: bool) -> TopClasses:
    """Compute the top classes from sums over the others."""
    gamma, beta = at
    total, mean, squares = (np.empty(len(part.argmax)) for _ in range(3))
    for block, room in in_blocks(part.data.logits, dtype, arrays=2, size=2 * BLOCK_BYTES):
        distance, mass = room
        _fill_odds(part, block, distance, mass, beta=beta, out=mass)
        total[block] = np.einsum("ij->i", mass)
        mean[block] = np.vecdot(mass, distance)
        if square:
            mass *= distance
            squares[block] = np.vecdot(mass, distance)
    mean /= total
    runner_up = part.runner_up.astype(np.float64) - part.data.top
    gap = -beta * runner_up
    against = total * np.exp(-gap)
    log_total = np.log1p(against)
    focus, excess = focus_of_top(against, gamma=gamma, gamma_plus_one=gamma + 1, xp=np)
    log_q = np.log(total) - gap - log_total
    return TopClasses(
        runner_up,
        -log_total,
        log_q,
        1 / (1 + against),
        against / (1 + against),
        focus,
        excess,
        -gap - log_total,
        np.exp(gamma * log_q - gap) * focus,
        mean + runner_up,
        squares / total + runner_up * (2 * mean + runner_up) if square else None,
    )


def _fill_odds(
    part: RankedLogits, block: slice, distance: np.ndarray, exponent: np.ndarray, *, beta: float, out: np.ndarray
) -> None:
    """Fill in d, beta d (bounded below where it no longer matters), and p_j / p of the runner-up.

    The last is 0 for the top class. It must be exactly 0, not merely small, for masked classes, whose logits are far
    below the others.
    """
    at_top = np.arange(len(distance)), part.argmax[block]
    np.subtract(part.data.logits[block], part.runner_up[block, None], out=distance, dtype=distance.dtype)
    distance[at_top] = 0.0
    with np.errstate(over="ignore"):
        np.multiply(distance, beta, out=exponent)
    vanishing = exponent < _FAINT if beta * part.depth > -_FAINT else None
    if vanishing is not None:
        np.maximum(exponent, _FAINT, out=exponent)
    np.exp(exponent, out=out)
    if vanishing is not None:
        np.putmask(out, vanishing, 0.0)
    out[at_top] = 0.0


def fill_masses(part: RankedLogits, block: slice, top: TopClasses, rest: Rest, at: Parameters) -> None:
    """Fill in the arrays of `rest` up to `ratio`, except `log_p`."""
    gamma, beta = at
    distance, log_p, mass, odds, log_q, inverse, ratio = rest[:7]
    log_p_next = top.log_p_next[block, None]
    _fill_odds(part, block, distance, log_p, beta=beta, out=mass)
    np.multiply(mass, np.exp(log_p_next).astype(mass.dtype), out=odds)
    if beta * part.depth + math.log(mass.shape[1]) > -math.log(_FAINT_P):
        np.maximum(odds, _FAINT_P, out=odds)
    np.subtract(1, odds, out=log_q)
    odds /= log_q
    np.log(log_q, out=log_q)
    log_p += log_p_next.astype(mass.dtype)
    np.multiply(odds, log_p, out=ratio)
    np.multiply(ratio, -gamma, out=inverse)
    inverse += 1
    np.divide(1, inverse, out=inverse)
    factor = np.exp(np.multiply(log_q, -gamma, out=log_p), out=log_p)
    factor *= inverse
    mass *= factor
