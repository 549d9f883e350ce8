"""Rows of the simplex, split into the most probable class and the rest.

Every formula of the focal map needs both p and q = 1 - p to full relative precision. Only the top class of a row can
have p > 1/2, so only its q can cancel; summing the *other* classes gives this q accurately. Odds are relative to the
runner-up (the second most probable class): for any logits they neither overflow nor all vanish.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from refocal._arrays import Array, ArrayT, Namespace, device, pick, replace_at, stop_gradient


class TopSplit(NamedTuple):
    """Rows as odds relative to their runner-up; quantities of a row have a last axis of length 1.

    Attributes:
        is_top: (..., K) mask of the most probable class (one per row, the first if several are equal).
        odds: (..., K) p_j / p_runner_up, 0 at the top class.
        log_odds: (..., K) logarithm of `odds`, -inf at the top class and at impossible classes.
        gap: (..., 1) log(p_top / p_runner_up) >= 0.
        rest: (..., 1) the sum of `odds`; 1 instead of 0 if the top class is alone.
        is_alone: (..., 1) whether only the top class is possible; the runner-up is then the top class itself.
    """

    is_top: Array
    odds: Array
    log_odds: Array
    gap: Array
    rest: Array
    is_alone: Array


def split_logits(logits: Array, *, temperature: float | Array, xp: Namespace) -> TopSplit:
    """Split softmax(logits / temperature); logits are subtracted first and divided afterwards."""
    is_top, top, runner_up = _leaders(logits, xp=xp)
    alone = xp.isinf(runner_up)  # every other class is masked with -inf
    runner_up = xp.where(alone, top, runner_up)
    log_odds = logits - runner_up
    gap = top - runner_up
    if not isinstance(temperature, float) or temperature != 1.0:  # the values of an array are not read
        log_odds, gap = log_odds / temperature, gap / temperature
    log_odds = xp.where(is_top, -xp.inf, log_odds)
    odds = xp.exp(log_odds)
    rest = xp.where(alone, 1.0, xp.sum(odds, axis=-1, keepdims=True))
    return TopSplit(is_top, odds, log_odds, gap, rest, alone)


def split_probs(probs: Array, *, xp: Namespace) -> TopSplit:
    """Split rows of probabilities; zeros are allowed and have finite derivatives."""
    is_top, top, runner_up = _leaders(probs, xp=xp)
    alone = runner_up == 0
    runner_up = xp.where(alone, top, runner_up)
    odds = xp.where(is_top, 0.0, probs) / runner_up
    log_odds = log_or_minus_inf(odds, xp=xp)
    # top - runner_up is exact if the two are close; log1p then keeps the relative precision of the gap
    close = 2 * runner_up > top
    shortfall = xp.where(close, (top - runner_up) / top, 0.0)
    ratio = xp.where(close, 1.0, runner_up / top)
    gap = xp.where(close, -xp.log1p(-shortfall), -xp.log(ratio))
    rest = xp.where(alone, 1.0, xp.sum(odds, axis=-1, keepdims=True))
    return TopSplit(is_top, odds, log_odds, gap, rest, alone)


def _leaders(scores: Array, *, xp: Namespace) -> tuple[Any, Any, Any]:
    """Return the mask of the top class, its score and the score of the runner-up."""
    top_index = xp.argmax(scores, axis=-1, keepdims=True)
    is_top = xp.arange(scores.shape[-1], device=device(scores)) == top_index
    others = xp.where(is_top, -xp.inf, scores)
    runner_up_index = xp.argmax(others, axis=-1, keepdims=True)
    return is_top, pick(scores, top_index, xp=xp), pick(others, runner_up_index, xp=xp)


def log_p_and_q(split: TopSplit, *, xp: Namespace) -> tuple[Any, Any]:
    """Compute log p and log(1 - p) of every class."""
    odds_against_top = xp.where(split.is_alone, 0.0, split.rest * xp.exp(-split.gap))
    log_total = xp.log1p(odds_against_top)
    log_p = xp.where(split.is_top, 0.0, split.log_odds - split.gap) - log_total
    # 1 - p of the top class is the sum of the others; every other class has p <= 1/2
    log_q_top = xp.where(split.is_alone, -xp.inf, xp.log(split.rest) - split.gap - log_total)
    log_q = xp.where(split.is_top, log_q_top, xp.log1p(-split.odds * xp.exp(-split.gap - log_total)))
    return log_p, log_q


def log_odds_against(logits: Array, labels: Array, *, xp: Namespace) -> Any:
    """Compute log((1 - p) / p) of the class `labels` (...) of each row of softmax(logits), in one pass.

    The labels must be within the classes. As the softmax, it is NaN if the label's score is inf or all scores are -inf.
    """
    index = xp.expand_dims(labels, axis=-1)
    picked: Any = pick(logits, index, xp=xp)
    score = picked[..., 0]
    others = replace_at(logits, index, -xp.inf, xp=xp)
    # not logsumexp: in PyTorch its slope is NaN if all others are masked with -inf
    shift = stop_gradient(xp.max(others, axis=-1))
    is_alone = shift == -xp.inf
    shift = xp.where(is_alone, 0.0, shift)
    mass = xp.sum(xp.exp(others - shift[..., None]), axis=-1)
    # Scores are subtracted first. The logarithm keeps its precision when it is added to their difference.
    result = xp.log(xp.where(is_alone, 1.0, mass)) + (shift - score)
    result = xp.where(is_alone, -xp.inf - xp.where(is_alone, score, 0.0), result)
    return result + xp.where(score == xp.inf, xp.nan, xp.zeros_like(score))  # a sum, so that derivatives are NaN too


def log_p_and_q_from_odds(against: ArrayT, *, xp: Namespace) -> tuple[ArrayT, ArrayT]:
    """Compute log p and log(1 - p) from the log-odds against a class, for formulas in which p log p = 0 at p = 0."""
    log_p, log_q = -softplus(against, xp=xp), -softplus(-against, xp=xp)
    return log_p, xp.where(log_p == -xp.inf, 0.0, log_q)  # there, derivatives are 0


def guard_impossible(log_p: ArrayT, log_q: ArrayT, share: Array, *, xp: Namespace) -> tuple[ArrayT, ArrayT]:
    """Make log p and log(1 - p) safe for a sum of `share` times functions of them, if some p is 0.

    A share of 0 counts as 0 log 0 = 0. With a positive share, log p stays -inf, and derivatives of p log p are 0.
    """
    impossible = log_p == -xp.inf
    return xp.where(impossible & (share == 0), 0.0, log_p), xp.where(impossible, 0.0, log_q)


def log_or_minus_inf(x: ArrayT, *, xp: Namespace) -> ArrayT:
    """Compute log(x), or -inf if x = 0, without a warning and with a derivative of 0 there."""
    positive = x > 0
    return xp.where(positive, xp.log(xp.where(positive, x, 1.0)), -xp.inf)


def softplus(x: ArrayT, *, xp: Namespace) -> ArrayT:
    """Compute log(1 + e^x) without overflow."""
    # not logaddexp: in PyTorch its second derivative is NaN if it saturates
    positive = x > 0
    return xp.where(positive, x, 0.0) + xp.log1p(xp.exp(xp.where(positive, -x, x)))
