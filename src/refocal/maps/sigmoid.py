"""The posterior map of sigmoid focal loss, for binary, multi-label and detection heads.

Each label has one score x, with p = sigmoid(x), trained with -alpha (1 - p)^gamma log p on positives and
-(1 - alpha) p^gamma log(1 - p) on negatives. The log-odds of the posterior are

    log h(p) - log h(1 - p) - log(alpha / (1 - alpha)).

Without the last term this is an odd function of x: it is computed for |x| and then gets the sign of x.
"""

from __future__ import annotations

import math

from refocal import _check
from refocal._arrays import Array, ArrayT, Namespace, PerClass, constant, stop_gradient, widen
from refocal._check import Constants
from refocal.maps.focal import focus_of_top
from refocal.maps.posterior import plus_one
from refocal.maps.simplex import softplus

_NEWTON_STEPS = 6  # enough for any gamma, starting at the bound of Komisarenko and Kull (2024), Prop. 3


def sigmoid_posterior(
    logits: ArrayT, *, gamma: PerClass, alpha: PerClass | None = None, normalize: bool = False
) -> ArrayT:
    """Recover p(y=1|x) from the logits of a network trained with (alpha-balanced) sigmoid focal loss.

    Args:
        logits: Scores before the sigmoid, any shape. Each score is a binary problem of its own.
        gamma: Focusing parameter of the loss, > -1: a number, or one value for each entry of the last axis.
        alpha: Weight of the positives, in (0, 1); negatives have weight 1 - alpha, as in torchvision. A number, or
            one value for each entry of the last axis. None gives both the same weight.
        normalize: Whether to normalize each row over the last axis, for one-vs-rest heads used as multiclass.

    Returns:
        Probabilities, an array like `logits`.

    Example:
        >>> import numpy as np
        >>> q = np.array([0.5974, 0.6471, 0.7744])  # outputs for a posterior of 0.9 and gamma = 5, 3, 1
        >>> [float(sigmoid_posterior(np.log(p / (1 - p)), gamma=g).round(3)) for p, g in zip(q, (5, 3, 1))]
        [0.9, 0.9, 0.9]

    Reference: Charoenphakdee et al. (2021), Thm. 11 for two classes; Komisarenko and Kull (2024), Prop. 2.
    """
    xp, logits = _check.floating(logits, "logits")
    _check.real(logits, "logits", xp=xp)
    exponents, offset = _settings(logits, gamma, alpha, least=None)
    if normalize:
        _check.classes_last(logits, "logits")
        _check.possible_class(logits, "logits", xp=xp)
    wide = widen(logits, xp=xp)
    log_odds = _log_odds(
        wide, constant(exponents, like=wide, xp=xp), constant(plus_one(exponents), like=wide, xp=xp), xp=xp
    )
    log_odds = log_odds - constant(offset, like=wide, xp=xp)
    log_probs = -softplus(-log_odds, xp=xp)
    if normalize:
        log_probs = log_probs - stop_gradient(xp.max(log_probs, axis=-1, keepdims=True))
    probs = xp.exp(log_probs)
    if normalize:
        probs = probs / xp.sum(probs, axis=-1, keepdims=True)
    return xp.astype(probs, logits.dtype, copy=False)


def sigmoid_minimizer(posterior: ArrayT, *, gamma: PerClass, alpha: PerClass | None = None) -> ArrayT:
    """Compute the sigmoid output that minimizes the expected sigmoid focal loss: the inverse of `sigmoid_posterior`.

    Args:
        posterior: p(y=1|x) in [0, 1], any shape.
        gamma: Focusing parameter, >= 0: a number, or one value for each entry of the last axis.
        alpha: Weight of the positives, in (0, 1), as in `sigmoid_posterior`.

    Returns:
        Probabilities sigmoid(x), an array like `posterior`. At 0 and 1 the slope is infinite unless gamma = 0.

    Example:
        >>> import numpy as np
        >>> sigmoid_minimizer(np.array([0.0, 0.5, 0.8, 1.0]), gamma=2).round(4).tolist()
        [0.0, 0.5, 0.6266, 1.0]

    Reference: Komisarenko and Kull (2024), Props. 2 and 3.
    """
    xp, posterior = _check.floating(posterior, "posterior")
    _check.probabilities(posterior, "posterior", xp=xp)
    exponents, log_balance = _settings(posterior, gamma, alpha, least=0.0)
    wide = widen(posterior, xp=xp)
    exponent = constant(exponents, like=wide, xp=xp)
    exponent_plus_one = constant(plus_one(exponents), like=wide, xp=xp)
    open_interval = (wide > 0) & (wide < 1)
    safe = xp.where(open_interval, wide, 0.5)
    offset = constant(log_balance, like=wide, xp=xp) + xp.zeros_like(wide)
    target = xp.log(safe) - xp.log1p(-safe) + offset
    distance = xp.where(target >= 0, target, -target)
    # (1 + gamma) |x| is a tight upper bound of the posterior's log-odds (Komisarenko and Kull, 2024, Prop. 3)
    x = stop_gradient(distance) / exponent_plus_one
    for step in range(_NEWTON_STEPS + 2):
        # the solution is a constant; two more steps carry the derivatives (implicit function theorem)
        goal = distance if step >= _NEWTON_STEPS else stop_gradient(distance)
        value, slope = _magnitude(x, exponent, exponent_plus_one, xp=xp)
        x = x + (goal - value) / slope
    probs = xp.exp(-softplus(-xp.where(target >= 0, x, -x), xp=xp))
    # Near 0 and 1 the odds are those of the posterior to the power 1 / (1 + gamma), so the slope is infinite unless
    # gamma = 0. This is a product because the derivative of a power of a quotient would be 0 times infinity.
    beside = xp.where(open_interval, 0.5, xp.where(wide > 0, 1 - wide, wide))
    power = 1 / exponent_plus_one
    odds = xp.exp(xp.where(wide > 0, -offset, offset) * power) * beside**power * (1 - beside) ** -power
    end = odds / (1 + odds)
    return xp.astype(xp.where(open_interval, probs, xp.where(wide > 0, 1 - end, end)), posterior.dtype, copy=False)


def _settings(
    array: Array, gamma: PerClass, alpha: PerClass | None, *, least: float | None
) -> tuple[Constants, Constants]:
    """Check gamma and alpha; return gamma and log(alpha / (1 - alpha))."""
    classes = array.shape[-1] if array.ndim else None
    balance = _check.alpha(alpha, classes=classes)
    offset: Constants = 0.0
    if balance is not None:
        offset = tuple(map(_logit, balance)) if isinstance(balance, tuple) else _logit(balance)
    return _check.gamma(gamma, classes=classes, least=least), offset


def _logit(probability: float) -> float:
    return math.log(probability) - math.log1p(-probability)


def _log_odds(logits: Array, gamma: float | Array, gamma_plus_one: float | Array, *, xp: Namespace) -> Array:
    """Compute log h(p) - log h(1 - p) for p = sigmoid(logits)."""
    positive = logits >= 0
    magnitude, _ = _magnitude(xp.where(positive, logits, -logits), gamma, gamma_plus_one, xp=xp)
    return xp.where(positive, magnitude, -magnitude)


def _magnitude(x: Array, gamma: float | Array, gamma_plus_one: float | Array, *, xp: Namespace) -> tuple[Array, Array]:
    """Compute log h(p) - log h(1 - p) and its derivative in x, for p = sigmoid(x) and x >= 0."""
    odds = xp.exp(-x)  # of the less likely outcome
    focus_top, ratio_top_above_p = focus_of_top(odds, gamma=gamma, gamma_plus_one=gamma_plus_one, xp=xp)
    p = odds / (1 + odds)
    ratio = odds * (xp.where(odds > 0, x, 0.0) + xp.log1p(odds))  # s of the less likely outcome
    focus = 1 + gamma * ratio
    value = gamma_plus_one * x + (xp.log(focus) - xp.log(focus_top))
    slope = gamma_plus_one - gamma * (ratio_top_above_p / focus_top + (ratio - p) / focus)
    return value, slope
