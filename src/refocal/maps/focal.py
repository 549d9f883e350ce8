"""The focal loss of one probability, and the function phi that determines its properties.

The partial loss is l(p) = -(1 - p)^gamma log p, and phi^gamma(p) = -p l'(p) (Charoenphakdee et al., 2021, Eq. 10).
With q = 1 - p and

    s(p) = -p log(p) / q,    0 at p = 0, 1 at p = 1,

phi^gamma = q^gamma (1 + gamma s). All formulas of this package are written in log p, log q and s.
"""

from __future__ import annotations

from typing import Any

from refocal import _check
from refocal._arrays import Array, ArrayT, Namespace, PerClass, constant, widen

# The series s(p) = 1 - sum_k q^k / (k (k + 1)) is used for q below this bound. There, 1 - s would cancel and its
# derivatives would divide zero by zero. Eighteen terms reach 1e-18.
_SERIES_BOUND = 0.125
_SERIES = tuple(1.0 / (k * (k + 1)) for k in range(18, 0, -1))


def focal_partial(log_p: ArrayT, log_q: ArrayT, *, gamma: PerClass) -> ArrayT:
    """Compute the focal loss -(1 - p)^gamma log p of the true class from log p and log q = log(1 - p).

    Args:
        log_p: Log-probability of the true class, any shape.
        log_q: log(1 - p), the same shape. Compute it by summing the *other* classes; this stays accurate if p is
            near 1.
        gamma: Focusing parameter, > -1: a number, or one value for each entry of the last axis.

    Returns:
        Array of the same shape. It is 0 at p = 1 and infinite at p = 0.

    Example:
        >>> import numpy as np
        >>> float(focal_partial(np.log(0.8), np.log(0.2), gamma=2.0).round(6))
        0.008926

    Reference: Charoenphakdee et al. (2021), Eq. 5.
    """
    xp, log_p = _check.floating(log_p, "log_p")
    _, log_q = _check.floating(log_q, "log_q")
    _check.same_shape(log_p, log_q, "log_p and log_q")
    for values, name in ((log_p, "log_p"), (log_q, "log_q")):
        _check.log_probabilities(values, name, xp=xp)
    exponents = _check.gamma(gamma, classes=log_p.shape[-1] if log_p.ndim else None)
    wide_p, wide_q = widen(log_p, xp=xp), widen(log_q, xp=xp)
    loss = focal_partial_unchecked(wide_p, wide_q, gamma=constant(exponents, like=wide_p, xp=xp), xp=xp)
    return xp.astype(loss, log_p.dtype, copy=False)


def focal_partial_unchecked(log_p: ArrayT, log_q: ArrayT, *, gamma: float | Array, xp: Namespace) -> ArrayT:
    """Compute `focal_partial` without checking the arguments."""
    if isinstance(gamma, float):
        if gamma == 0.0:
            return -log_p
        if gamma > 0.0:
            return -xp.exp(gamma * log_q) * log_p
        certain = log_q == -xp.inf
        return xp.where(certain, 0.0, -xp.exp(gamma * xp.where(certain, 0.0, log_q)) * log_p)
    # 0 * -inf counts as 0; at p = 1 the loss is 0 even if gamma < 0 makes the factor infinite
    unfocused = (gamma == 0) | ((log_q == -xp.inf) & (gamma < 0))
    return -xp.exp(xp.where(unfocused, 0.0, gamma * xp.where(unfocused, 0.0, log_q))) * log_p


def phi(p: ArrayT, *, gamma: PerClass) -> ArrayT:
    """Compute the factor by which focal loss changes the gradient of cross-entropy.

    phi^gamma(p) = (1 - p)^gamma - gamma (1 - p)^(gamma - 1) p log p. This is -p times the derivative of the partial
    loss. Mukhoti et al. (2020), Prop. 1, call it g.

    Args:
        p: Probabilities in [0, 1], any shape.
        gamma: Focusing parameter, > -1: a number, or one value for each entry of the last axis.

    Returns:
        Array of the same shape. It is 1 at p = 0. At p = 1 it is 0 for gamma > 0, 1 for gamma = 0 and infinite for
        gamma < 0.

    Example:
        >>> import numpy as np
        >>> phi(np.array([0.0, 0.25, 0.5, 1.0]), gamma=1.0).round(4).tolist()
        [1.0, 1.0966, 0.8466, 0.0]

    Reference: Charoenphakdee et al. (2021), Eq. 10.
    """
    xp, p = _check.floating(p, "p")
    _check.probabilities(p, "p", xp=xp)
    wide = widen(p, xp=xp)
    exponent = constant(_check.gamma(gamma, classes=p.shape[-1] if p.ndim else None), like=wide, xp=xp)
    q = 1 - wide
    possible = wide > 0
    log_p = xp.where(possible, xp.log(xp.where(possible, wide, 1.0)), 0.0)
    safe_q = xp.where(q < _SERIES_BOUND, 1.0, q)
    deficit = near_one_deficit(xp.where(q < _SERIES_BOUND, q, 0.0))
    ratio = xp.where(q < _SERIES_BOUND, 1 - deficit, -wide * log_p / safe_q)
    # 1 - p is exact for p >= 1/2; below that, log1p avoids a rounding error that gamma would multiply
    log_q = xp.where(wide < 0.5, xp.log1p(-xp.where(wide < 0.5, wide, 0.0)), xp.log(xp.where(q > 0, q, 1.0)))
    sign = exponent + xp.zeros_like(q)
    at_one = xp.where(sign > 0, 0.0, xp.where(sign < 0, xp.inf, xp.ones_like(q)))
    factor = xp.where(q > 0, xp.exp(exponent * log_q), at_one)
    return xp.astype(factor * (1 + exponent * ratio), p.dtype, copy=False)


def near_one_deficit(q: ArrayT) -> ArrayT:
    """Compute 1 - s(p) by its series in q, to full relative precision for small q."""
    total: Any = 0.0
    for coefficient in _SERIES:
        total = q * (coefficient + total)
    return total


def focus_of_top(
    odds_against: ArrayT, *, gamma: float | Array, gamma_plus_one: float | Array, xp: Namespace
) -> tuple[ArrayT, ArrayT]:
    """Compute 1 + gamma s and s - p of a class with odds q / p against it, for any odds >= 0 and gamma > -1.

    s = log(1 + odds) / odds. Near p = 1 it is expressed by its deficit 1 - s, so that the terms of
    (1 + gamma) - gamma (1 - s) do not cancel for gamma < 0 and derivatives stay finite.
    """
    q = odds_against / (1 + odds_against)
    near_one = q < _SERIES_BOUND
    deficit = near_one_deficit(xp.where(near_one, q, 0.0))
    safe_odds = xp.where(near_one, 1.0, odds_against)
    ratio = xp.log1p(safe_odds) / safe_odds
    focus = xp.where(near_one, gamma_plus_one - gamma * deficit, 1 + gamma * ratio)
    return focus, xp.where(near_one, q - deficit, ratio - 1 / (1 + safe_odds))
