"""The posterior map of inverse focal loss, -(1 + p)^gamma log p."""

from __future__ import annotations

from refocal import _check
from refocal._arrays import ArrayT, ClassWeights, constant, stop_gradient, widen
from refocal.maps.simplex import log_p_and_q, split_logits


def inverse_focal_posterior_from_logits(logits: ArrayT, *, gamma: float, weight: ClassWeights = None) -> ArrayT:
    """Recover class-posterior probabilities from the logits of a network trained with inverse focal loss.

    eta_i is proportional to p_i / ((1 + p_i)^gamma + gamma p_i (1 + p_i)^(gamma - 1) log p_i) for
    p = softmax(logits).

    Args:
        logits: Scores before the softmax, classes last, shape (..., K) with K >= 2.
        gamma: Exponent of the loss, in [0, 1]. Above 1 the loss is not convex in p and may have no unique minimizer.
        weight: Class weights of the loss, shape (K,), positive.

    Returns:
        Array like `logits`. Each row sums to 1.

    Example:
        >>> import numpy as np
        >>> inverse_focal_posterior_from_logits(np.array([2.0, 0.0, 0.0]), gamma=1).round(4).tolist()
        [0.6673, 0.1663, 0.1663]

    Reference: Komisarenko and Kull (2024), Sec. 5.1: AdaFocal uses this loss for negative gamma. The map follows from
    the derivative of the loss.
    """
    xp, logits = _check.floating(logits, "logits")
    _check.classes_last(logits, "logits")
    _check.logits(logits, "logits", xp=xp)
    gamma = _check.scalar_gamma(gamma, least=0.0)
    if gamma > 1:
        msg = f"gamma must lie in [0, 1], got {gamma}: above 1 inverse focal loss has no unique posterior map"
        raise ValueError(msg)
    wide = widen(logits, xp=xp)
    log_p, _ = log_p_and_q(split_logits(wide, temperature=1.0, xp=xp), xp=xp)
    p = xp.exp(log_p)
    log_p_safe = xp.where(p > 0, log_p, 0.0)
    log_h = log_p - gamma * xp.log1p(p) - xp.log1p(gamma * p * log_p_safe / (1 + p))
    checked_weight = _check.weight(weight, classes=logits.shape[-1])
    if checked_weight is not None:
        log_h = log_h - xp.log(constant(checked_weight, like=wide, xp=xp))
    mass = xp.exp(log_h - stop_gradient(xp.max(log_h, axis=-1, keepdims=True)))
    return xp.astype(mass / xp.sum(mass, axis=-1, keepdims=True), logits.dtype, copy=False)
