"""Calibrated heads: pure functions from the logits of a network to calibrated probabilities, for any array library.

Each function takes `logits` of shape (..., K) and returns probabilities, or their logarithms if `log=True`. The
parameters are numbers or arrays of the same library. Numbers may be arrays without axes, whose values are never read:
this lets an exported module keep them in its state.
"""

from __future__ import annotations

from typing import Any

from refocal._arrays import Array, ArrayT, Namespace, device
from refocal.maps.posterior import MapSettings, map_rows
from refocal.maps.simplex import log_or_minus_inf, log_p_and_q, softplus, split_logits

_LEAD = 1.001  # the least ratio of the top class to the runner-up, if only the top class is calibrated


def to_logits(scores: ArrayT, *, probs: bool, least: float, gap: float, xp: Namespace) -> ArrayT:
    """Convert scores of shape (..., K), or (..., 1) for the second of two classes, to logits of shape (..., K).

    Args:
        scores: Logits or probabilities. A single column holds log-odds or probabilities of the second class.
        probs: Whether the scores are probabilities.
        least: The least probability; smaller ones are raised to it.
        gap: The same for 1 - p, where p is a single column.
        xp: The array namespace.
    """
    if scores.shape[-1] > 1:
        return xp.log(xp.where(scores > least, scores, least)) if probs else scores
    if not probs:
        return xp.concat([0.0 * scores, scores], axis=-1)
    other = xp.where(1 - scores > gap, 1 - scores, gap)
    return xp.log(xp.concat([other, xp.where(scores > least, scores, least)], axis=-1))


def probability_edges(limits: Any) -> tuple[float, float]:
    """Return `least` and `gap` of `to_logits` for a dtype, given its `finfo`, if no floor was fitted.

    `least` is the smallest normal number. For float16 it is the smallest subnormal number, because float16 is computed
    in a wider dtype that can represent it. `gap` is half the distance from 1 to the next smaller number.
    """
    tiny, eps = float(limits.tiny), float(limits.eps)
    return (tiny * eps if tiny > 1e-30 else tiny), eps / 4


def focal_head(
    logits: ArrayT, *, settings: MapSettings, temperature: float | Array = 1.0, log: bool, xp: Namespace
) -> ArrayT:
    """Compute Psi^gamma(softmax(logits / temperature)); for gamma = 0 this is temperature scaling."""
    return map_rows(split_logits(logits, temperature=temperature, xp=xp), settings.like(logits, xp=xp), log=log, xp=xp)


def structured_head(
    logits: ArrayT,
    weights: Array,
    bias: Array,
    *,
    temperature: float,
    settings: MapSettings,
    uniform: float,
    centered: bool,
    log: bool,
    xp: Namespace,
) -> ArrayT:
    """Compute softmax(W x + b) from `structured_features` x; W has shape (K, K), or (K,) for a diagonal matrix."""
    features = structured_features(
        logits, temperature=temperature, settings=settings, uniform=uniform, centered=centered, xp=xp
    )
    scores = features * weights if weights.ndim == 1 else xp.matmul(features, xp.permute_dims(weights, (1, 0)))
    log_probs = _log_softmax(scores + bias, xp=xp)
    return log_probs if log else xp.exp(log_probs)


def structured_features(
    logits: ArrayT, *, temperature: float, settings: MapSettings, uniform: float, centered: bool, xp: Namespace
) -> ArrayT:
    """Compute log((1 - u) Psi^gamma(softmax(logits / T)) + u / K), on request minus its mean over the classes."""
    probs = focal_head(logits, temperature=temperature, settings=settings, log=False, xp=xp)
    features = xp.log((1 - uniform) * probs + uniform / logits.shape[-1])
    return features - xp.mean(features, axis=-1, keepdims=True) if centered else features


def mixture_head(logits: ArrayT, weights: Any, *, temperature: float | Array, log: bool, xp: Namespace) -> ArrayT:
    """Compute w_1 softmax(logits / T) + w_2 softmax(logits) + w_3 / K."""
    shifted = logits - xp.max(logits, axis=-1, keepdims=True)
    scaled, plain = _log_softmax(shifted / temperature, xp=xp), _log_softmax(shifted, xp=xp)
    probs = weights[0] * xp.exp(scaled) + weights[1] * xp.exp(plain) + weights[2] / logits.shape[-1]
    return log_or_minus_inf(probs, xp=xp) if log else probs


def blend_head(logits: ArrayT, *, parts: Any, uniform: float, log: bool, xp: Namespace, **arrays: Array) -> ArrayT:
    """Compute the weighted sum of several heads, plus `uniform` / K.

    `parts` has the function, the names of its arrays, its settings and its weight for each head. The arrays of head k
    have the suffix "_k".
    """
    total: Any = uniform / logits.shape[-1]
    for k, (function, names, settings, weight) in enumerate(parts):
        own = {name: arrays[f"{name}_{k}"] for name in names}
        total = total + weight * function(logits, **own, **settings, log=False, xp=xp)
    return log_or_minus_inf(total, xp=xp) if log else total


def logistic_head(logits: ArrayT, on_p: Array, on_q: Array, bias: Array, *, log: bool, xp: Namespace) -> ArrayT:
    """Compute sigmoid(a log p - b log(1 - p) + c) for each class and normalize each row.

    With two classes only class 1 is mapped, and class 0 gets the rest.
    """
    log_p, log_q = _mapped_log_p_and_q(logits, xp=xp)
    return _normalize_sigmoids(on_p * log_p - on_q * log_q + bias, log=log, xp=xp)


def quadratic_head(logits: ArrayT, ends: Any, slopes: Any, bias: Array, *, log: bool, xp: Namespace) -> ArrayT:
    """Compute sigmoid(g(s)) of the log-odds s of each class and normalize each row, as `logistic_head` does.

    g is a quadratic polynomial between two ends. It is `bias` at the lower end, and `slopes` are its slopes at both.
    Outside, it is constant. Ends and slopes have shape (2, C).
    """
    log_p, log_q = _mapped_log_p_and_q(logits, xp=xp)
    at_low, at_high = quadratic_features(log_p - log_q, ends[0], ends[1], xp=xp)
    return _normalize_sigmoids(slopes[0] * at_low + slopes[1] * at_high + bias, log=log, xp=xp)


def quadratic_features(log_odds: ArrayT, low: Any, high: Any, *, xp: Namespace) -> tuple[ArrayT, ArrayT]:
    """Compute two functions of the log-odds that are 0 at `low`: the factors of the slopes in `quadratic_head`.

    The first has slope 1 at `low` and 0 at `high`, the second the reverse. Their sum is log_odds - low between these.
    """
    above = xp.where(log_odds > low, log_odds, low)
    inside = xp.where(above > high, high, above) - low
    width = high - low
    bend = inside * (inside / xp.where(width > 0, 2 * width, 1.0))
    return inside - bend, bend


def _mapped_log_p_and_q(logits: Array, *, xp: Namespace) -> tuple[Array, Array]:
    """Compute log p and log(1 - p) of the classes that have a map: the second of two, or each of more."""
    log_p, log_q = log_p_and_q(split_logits(logits, temperature=1.0, xp=xp), xp=xp)
    return (log_p[..., 1:], log_q[..., 1:]) if logits.shape[-1] == 2 else (log_p, log_q)


def _normalize_sigmoids(scores: ArrayT, *, log: bool, xp: Namespace) -> ArrayT:
    """Compute the probabilities of all classes from one score per map."""
    if scores.shape[-1] == 1:
        log_probs = -softplus(xp.concat([scores, -scores], axis=-1), xp=xp)
    else:
        log_probs = _log_softmax(-softplus(-scores, xp=xp), xp=xp)
    return log_probs if log else xp.exp(log_probs)


def table_head(
    logits: ArrayT,
    knots: Array,
    values: Array,
    slopes: Array,
    *,
    top_label: bool,
    temperature: float | Array = 1.0,
    log: bool,
    xp: Namespace,
) -> ArrayT:
    """Map log-odds of softmax(logits / temperature) by piecewise linear functions.

    If `top_label`, one function gives the probability of the top class, and the others keep their proportions. The
    predicted class stays: the top class gets at least 1.001 times the probability of the runner-up, and a row whose two
    best classes are equal does not change. Otherwise each class has its function, and rows are normalized.

    Tables have shape (C, M), with M a power of two. C is 1 if only the top class or class 1 of two is mapped, else the
    number of classes. A knot is the open left end of its piece: log-odds equal to a knot belong to the piece before.
    Unused knots are infinite.
    """
    split = split_logits(logits, temperature=temperature, xp=xp)
    log_p, log_q = log_p_and_q(split, xp=xp)
    log_odds = log_p - log_q
    if top_label:
        top = xp.max(log_odds, axis=-1, keepdims=True)
        confidence = look_up(top, knots, values, slopes, xp=xp)
        least = _LEAD / (split.rest + _LEAD)
        confidence = xp.where(confidence > least, confidence, least)
        others = xp.log1p(-confidence) + (xp.where(split.is_top, 0.0, split.log_odds) - xp.log(split.rest))
        log_probs = xp.where(split.gap > 0, xp.where(split.is_top, xp.log(confidence), others), log_p)
        return log_probs if log else xp.exp(log_probs)
    if logits.shape[-1] == 2:
        second = look_up(log_odds[..., 1:], knots, values, slopes, xp=xp)
        probs = xp.concat([1 - second, second], axis=-1)
    else:
        probs = look_up(log_odds, knots, values, slopes, xp=xp)
        probs = probs / xp.sum(probs, axis=-1, keepdims=True)
    return log_or_minus_inf(probs, xp=xp) if log else probs


def interval_head(logits: ArrayT, knots: Array, lower: Array, upper: Array, *, xp: Namespace) -> ArrayT:
    """Map log-odds by pairs of step functions to intervals: the lower ends of all classes, then the upper (..., 2 K).

    The tables are those of `table_head`, for each class against the rest.
    """
    log_p, log_q = _mapped_log_p_and_q(logits, xp=xp)
    low, high = (look_up(log_p - log_q, knots, ends, 0.0 * ends, xp=xp) for ends in (lower, upper))
    return xp.concat([1 - high, low, 1 - low, high] if logits.shape[-1] == 2 else [low, high], axis=-1)


def columns_head(
    scores: Any, *, parts: Any, probs: bool, least: float, gap: float, log: bool, xp: Namespace, **arrays: Array
) -> Any:
    """Compute P(y = 1) of each column of scores (..., K) by a head of its own.

    `parts` has the function, the names of its arrays, its settings and its floor (or None) for each column. The arrays
    of column k have the suffix "_k". The other arguments are those of `to_logits`.
    """
    columns = []
    for k, (function, names, settings, floor) in enumerate(parts):
        edges = {"least": least, "gap": gap} if floor is None else {"least": floor, "gap": floor}
        logits = to_logits(scores[..., k : k + 1], probs=probs, **edges, xp=xp)
        own = {name: arrays[f"{name}_{k}"] for name in names}
        columns.append(function(logits, **own, **settings, log=log, xp=xp)[..., 1:])
    return xp.concat(columns, axis=-1)


def look_up(x: ArrayT, knots: Array, values: Array, slopes: Array, *, xp: Namespace) -> ArrayT:
    """Evaluate C piecewise linear functions (C, M) at x (..., C), by bisection on the knots.

    The index of a piece is the number of knots below x, minus one. Below the first knot, the value is that of the first
    piece at its left end.
    """
    classes, size = knots.shape
    flat = [xp.reshape(table, (-1,)) for table in (knots, values, slopes)]
    # indices have the dtype of x: this is exact, and works the same way in every library
    offset = xp.astype(xp.arange(classes, device=device(x)), x.dtype) * size
    index = 0.0 * xp.astype(x > 0, x.dtype)
    step = size // 2
    while step:
        further = _take(flat[0], index + (offset + step), xp=xp) < x
        index = index + step * xp.astype(further, x.dtype)
        step //= 2
    left, value, slope = (_take(table, index + offset, xp=xp) for table in flat)
    return value + slope * xp.where(x > left, x - left, 0.0)


def _take(table: Array, index: Array, *, xp: Namespace) -> Array:
    flat = xp.take(table, xp.reshape(xp.astype(index, xp.int64), (-1,)), axis=0)
    return xp.reshape(flat, index.shape)


def _log_softmax(scores: ArrayT, *, xp: Namespace) -> ArrayT:
    shifted = scores - xp.max(scores, axis=-1, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))
