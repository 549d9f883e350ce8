"""p(y|x) from hidden states and the last layer of a network trained with focal loss, without keeping the logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from array_api_compat import torch as xp
from torch import Tensor

from refocal import _check
from refocal.losses.gpu import dispatch
from refocal.losses.linear.chunks import allocate_logits, rows_per_chunk
from refocal.losses.linear.products import compute_logits
from refocal.maps.posterior import MapSettings, posterior_from_logits_unchecked

_TEMPORARIES = 40  # the map without a kernel takes about 20 arrays in float32, each twice as large as 16-bit logits
_CAP_ROUNDING = 8 * torch.finfo(torch.float32).eps  # times the bound: how far two ways to bound a score may differ
_FAINT = 1e-30  # in float32, masses much below this lose digits or vanish


class TopPosterior(NamedTuple):
    """The most probable classes of each row.

    Attributes:
        probs: Their probabilities (..., k), from the largest to the smallest.
        classes: Their indices (..., k).
    """

    probs: Tensor
    classes: Tensor


class Layer(NamedTuple):
    """The last layer of a network: weights (V, D), bias (V,), bound of the logits (0 for none), and its memory."""

    head: Tensor
    bias: Tensor | None
    softcap: float
    dtype: torch.dtype
    chunk_bytes: int


class LabeledStates(NamedTuple):
    """The samples of a batch that count.

    Attributes:
        hidden: Their hidden states (n, D).
        target: Their class indices (n,).
        keep: (N,) which samples of the batch they are.
        layer: The last layer.
    """

    hidden: Tensor
    target: Tensor
    keep: Tensor
    layer: Layer


def top_posterior(hidden: Tensor, layer: Layer, settings: MapSettings, *, top: int) -> TopPosterior:
    """The `top` largest posteriors of each row of hidden states (N, D)."""
    shape = (len(hidden), top)
    probs = torch.empty(shape, dtype=torch.promote_types(layer.dtype, torch.float32), device=hidden.device)
    classes = torch.empty(shape, dtype=torch.int64, device=hidden.device)
    settings = settings.like(probs, xp=xp)
    for rows, logits in logits_of_chunks(hidden, layer):
        if _keeps_order(settings):
            scores, classes[rows] = torch.topk(logits, top)
            probs[rows] = torch.exp(_log_posterior_of(logits, scores, classes[rows], layer.softcap, settings))
            continue
        for block in _blocks(logits):
            log_probs, classes[rows][block] = torch.topk(map_block(logits[block], layer.softcap, settings), top)
            probs[rows][block] = torch.exp(log_probs)
    return TopPosterior(probs, classes)


def log_posterior(hidden: Tensor, target: Tensor, layer: Layer, settings: MapSettings) -> Tensor:
    """log p(y|x) (N,) of the classes `target` (N,), given hidden states (N, D)."""
    result = torch.empty(len(hidden), dtype=torch.promote_types(layer.dtype, torch.float32), device=hidden.device)
    settings = settings.like(result, xp=xp)
    for rows, logits in logits_of_chunks(hidden, layer):
        index = target[rows, None]
        result[rows] = _log_posterior_of(logits, logits.gather(1, index), index, layer.softcap, settings)[:, 0]
    return result


def logits_of_chunks(hidden: Tensor, layer: Layer) -> Iterator[tuple[slice, Tensor]]:
    """Slices of rows and their logits, which the next chunk overwrites."""
    head, bias, _, dtype, chunk_bytes = layer
    head, bias = head.to(dtype), None if bias is None else bias.to(dtype)
    step = rows_per_chunk(len(hidden), len(head), dtype, chunk_bytes)
    room = allocate_logits(min(step, len(hidden)), len(head), dtype, hidden.device)
    for start in range(0, len(hidden), step):
        rows = slice(start, min(start + step, len(hidden)))
        logits = room[: rows.stop - start]
        compute_logits(hidden[rows].to(dtype), head, bias, out=logits)
        yield rows, logits


def _log_posterior_of(logits: Tensor, scores: Tensor, classes: Tensor, softcap: float, settings: MapSettings) -> Tensor:
    """log p(y|x) (n, k) of given classes (n, k) with their scores (n, k), from logits (n, V)."""
    if not (_keeps_order(settings) and dispatch.supports_normalizers(logits, settings.gamma)):
        blocks = [map_block(logits[block], softcap, settings).gather(1, classes[block]) for block in _blocks(logits)]
        return torch.cat(blocks)
    top, ties, rest, others = dispatch.find_normalizers(logits, settings.gamma, softcap)
    beside = rest + (ties - 1)  # the mass of all classes but one of the top
    scores = cap(scores.float(), softcap)
    if softcap:  # a kernel rounds otherwise; next to p = 1, a difference in the last digits of the score would be large
        scores = torch.where(scores > top - _CAP_ROUNDING * softcap, top, scores)
    result = _log_h(scores, top, beside, settings.gamma)
    log_h_top = _log_h(top, top, beside, settings.gamma)
    result -= torch.logaddexp(log_h_top + torch.log(ties), torch.log(others))
    for rows in torch.split((beside < _FAINT)[:, 0].nonzero()[:, 0], _rows_at_once(logits)):
        result[rows] = map_block(logits[rows], softcap, settings).gather(1, classes[rows])
    return result


def _log_h(scores: Tensor, top: Tensor, rest: Tensor, gamma: float) -> Tensor:
    """log h = log p - log phi of scores (n, k), of rows with a top score and the others' mass (n, 1) relative to it."""
    log_p = scores - top - torch.log1p(rest)
    q = torch.where(scores == top, rest / (1 + rest), -torch.expm1(log_p)).clamp(min=torch.finfo(rest.dtype).tiny)
    return log_p - (gamma - 1) * torch.log(q) - torch.log(q - gamma * torch.exp(log_p) * log_p)


def map_block(logits: Tensor, softcap: float, settings: MapSettings) -> Tensor:
    """Log-posteriors (n, V) by the general map, at least in float32."""
    wide = cap(logits.to(torch.promote_types(logits.dtype, torch.float32)), softcap)
    _check.logits(wide, "logits", xp=xp)
    return posterior_from_logits_unchecked(wide, settings, temperature=1.0, log=True, xp=xp)


def cap(scores: Tensor, softcap: float) -> Tensor:
    """Scores between -c and c, c tanh(score / c), if the bound c is not 0."""
    return softcap * torch.tanh(scores / softcap) if softcap else scores


def _keeps_order(settings: MapSettings) -> bool:
    """Whether the map keeps the order of the classes: one gamma, without class weights."""
    plain = settings.log_weight is None and not settings.label_smoothing and not settings.detached
    return plain and isinstance(settings.gamma, float)


def _rows_at_once(logits: Tensor) -> int:
    return max(1, len(logits) // _TEMPORARIES)


def _blocks(logits: Tensor) -> list[slice]:
    step = _rows_at_once(logits)
    return [slice(start, start + step) for start in range(0, len(logits), step)]
