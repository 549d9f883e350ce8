"""Calibrated heads: from the logits of a network to calibrated probabilities, as pure functions of any array library.

Each takes `logits` (..., K) and returns probabilities, or their logarithms with `log=True`; parameters are numbers
or arrays of the same library.
"""

from __future__ import annotations

from typing import Any

from refocal._arrays import Array, ArrayT, Namespace, device
from refocal.maps.posterior import MapSettings, map_rows
from refocal.maps.simplex import log_or_minus_inf, log_p_and_q, softplus, split_logits


def to_logits(scores: ArrayT, *, probs: bool, least: float, gap: float, xp: Namespace) -> ArrayT:
    """Logits (..., K) from scores (..., K), or (..., 1) of the second of two classes.

    Args:
        scores: Logits or probabilities; one column is a log-odds or a probability.
        probs: Whether they are probabilities.
        least: What to take for a probability of 0: the smallest number of its dtype.
        gap: What to take for 1 - p where p is 1: half of the distance to the next number below.
        xp: The array namespace.
    """
    if scores.shape[-1] > 1:
        return xp.log(xp.where(scores > least, scores, least)) if probs else scores
    if not probs:
        return xp.concat([0.0 * scores, scores], axis=-1)
    other = xp.where(scores < 1, 1 - scores, gap)
    return xp.log(xp.concat([other, xp.where(scores > least, scores, least)], axis=-1))


def edges_of_probability(limits: Any) -> tuple[float, float]:
    """The `least` and `gap` of `to_logits` for a dtype, from its `finfo`.

    The smallest normal number; but float16 is computed in a wider dtype, which holds its subnormal numbers, too.
    """
    tiny, eps = float(limits.tiny), float(limits.eps)
    return (tiny * eps if tiny > 1e-30 else tiny), eps / 4


def focal_head(logits: ArrayT, *, temperature: float, settings: MapSettings, log: bool, xp: Namespace) -> ArrayT:
    """Psi^gamma(softmax(logits / temperature)); temperature scaling for gamma = 0."""
    return map_rows(split_logits(logits, temperature=temperature, xp=xp), settings.like(logits, xp=xp), log=log, xp=xp)


def linear_head(logits: ArrayT, weights: Array, bias: Array, *, of_log_probs: bool, log: bool, xp: Namespace) -> ArrayT:
    """softmax(W x + b), x being log-probabilities, or logits less their mean; W is (K, K), or (K,) for a diagonal."""
    features = linear_features(logits, of_log_probs=of_log_probs, xp=xp)
    scores = features * weights if weights.ndim == 1 else xp.matmul(features, xp.permute_dims(weights, (1, 0)))
    log_probs = _log_softmax(scores + bias, xp=xp)
    return log_probs if log else xp.exp(log_probs)


def linear_features(logits: ArrayT, *, of_log_probs: bool, xp: Namespace) -> ArrayT:
    """What a linear map sees of a row: its log-probabilities, or its logits less their mean."""
    if of_log_probs:
        return _log_softmax(logits, xp=xp)
    return logits - xp.mean(logits, axis=-1, keepdims=True)


def mixture_head(logits: ArrayT, weights: Any, *, temperature: float, log: bool, xp: Namespace) -> ArrayT:
    """w_1 softmax(logits / T) + w_2 softmax(logits) + w_3 / K."""
    shifted = logits - xp.max(logits, axis=-1, keepdims=True)
    scaled, plain = _log_softmax(shifted / temperature, xp=xp), _log_softmax(shifted, xp=xp)
    probs = weights[0] * xp.exp(scaled) + weights[1] * xp.exp(plain) + weights[2] / logits.shape[-1]
    return log_or_minus_inf(probs, xp=xp) if log else probs


def logistic_head(logits: ArrayT, on_p: Array, on_q: Array, bias: Array, *, log: bool, xp: Namespace) -> ArrayT:
    """sigmoid(a log p - b log(1 - p) + c) of each class, scaled to sum 1; of class 1 alone if there are two classes."""
    log_p, log_q = log_p_and_q(split_logits(logits, temperature=1.0, xp=xp), xp=xp)
    if logits.shape[-1] == 2:
        score = on_p * log_p[..., 1:] - on_q * log_q[..., 1:] + bias
        log_probs = -softplus(xp.concat([score, -score], axis=-1), xp=xp)
    else:
        log_sigmoid = -softplus(-(on_p * log_p - on_q * log_q + bias), xp=xp)
        log_probs = _log_softmax(log_sigmoid, xp=xp)
    return log_probs if log else xp.exp(log_probs)


def table_head(
    logits: ArrayT, knots: Array, values: Array, slopes: Array, *, top_label: bool, log: bool, xp: Namespace
) -> ArrayT:
    """A piecewise linear function of the log-odds: of each class, scaled to sum 1, or of the top class.

    Tables are (C, M) with M a power of two, for C classes: one, the top class or class 1 of two, or all. A knot
    is the left end of its piece, open: a log-odds equal to it belongs to the piece before. Unused knots are infinite.
    """
    split = split_logits(logits, temperature=1.0, xp=xp)
    log_p, log_q = log_p_and_q(split, xp=xp)
    log_odds = log_p - log_q
    if top_label:
        top = xp.max(log_odds, axis=-1, keepdims=True)
        confidence = look_up(top, knots, values, slopes, xp=xp)
        others = (1 - confidence) * (xp.where(split.is_top, 0.0, split.odds) / split.rest)
        probs = xp.where(split.is_top, confidence, others)
    elif logits.shape[-1] == 2:
        second = look_up(log_odds[..., 1:], knots, values, slopes, xp=xp)
        probs = xp.concat([1 - second, second], axis=-1)
    else:
        probs = look_up(log_odds, knots, values, slopes, xp=xp)
        probs = probs / xp.sum(probs, axis=-1, keepdims=True)
    return log_or_minus_inf(probs, xp=xp) if log else probs


def look_up(x: ArrayT, knots: Array, values: Array, slopes: Array, *, xp: Namespace) -> ArrayT:
    """The value at x (..., C) of C piecewise linear functions (C, M), by bisection on the knots.

    Pieces are found by the number of knots below x, less one: before the first knot, the first piece counts, and
    its left end stands for x.
    """
    classes, size = knots.shape
    flat = [xp.reshape(table, (-1,)) for table in (knots, values, slopes)]
    # index arithmetic in the dtype of x: exact, and the same in every library
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
