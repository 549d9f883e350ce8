"""Theory of the focusing parameter: confidence thresholds and regimes, gamma*, and the closest temperature.

`scipy.optimize` takes longer to import than the rest of the package, so it is imported only where it is used.
"""

from __future__ import annotations

import math
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy

from refocal import _check
from refocal._arrays import Array
from refocal.maps.posterior import MapSettings, log_h_shift, posterior_from_logits
from refocal.maps.simplex import split_probs


class Thresholds(NamedTuple):
    """Top confidences <= `tau_oc` are overconfident; those >= `tau_uc` are underconfident."""

    tau_oc: float
    tau_uc: float


def thresholds(gamma: float) -> Thresholds:
    """Compute the confidences below and above which a focal risk minimizer is over- and underconfident.

    tau_oc maximizes phi^gamma, and phi^gamma(tau_uc) = 1 with tau_uc in (tau_oc, 1/2).

    Args:
        gamma: Focusing parameter, > 0.

    Returns:
        `(tau_oc, tau_uc)`.

    Example:
        >>> [round(tau, 6) for tau in thresholds(3)]
        [0.085461, 0.252584]

    Reference: Charoenphakdee et al. (2021), Thm. 8.
    """
    from scipy.optimize import brentq

    gamma = _check.scalar_gamma(gamma, above=0.0)

    def slope(log_v: float) -> float:  # has the sign of phi' (Mukhoti et al., 2020, Eq. 8)
        v = math.exp(log_v)
        return -(1 - v) * (2 + log_v) + (gamma - 1) * v * log_v

    def log_phi(log_v: float) -> float:  # divided by gamma: a tiny gamma loses no digits
        v = math.exp(log_v)
        ratio = -v * log_v / (1 - v)
        return math.log1p(-v) + ratio * _log1p_ratio(gamma * ratio)

    log_half = math.log(0.5)
    # phi' > 0 for v below both 1 / (4 (1 + gamma)) and e^-3, and phi' < 0 at 1/2
    log_tau_oc = brentq(slope, min(-3.0, -math.log(4) - math.log1p(gamma)), log_half, xtol=1e-15)
    # for a small gamma log phi(1/2) is about -gamma^2 / 4; if it rounds to 0, tau_uc is 1/2
    log_tau_uc = brentq(log_phi, log_tau_oc, log_half, xtol=1e-15) if log_phi(log_half) < 0 else log_half
    return Thresholds(math.exp(log_tau_oc), math.exp(log_tau_uc))


def _log1p_ratio(x: float) -> float:
    """Compute log(1 + x) / x, which is 1 at x = 0."""
    return math.log1p(x) / x if x > 1e-9 else 1 - x / 2


class Regime(IntEnum):
    """How the top confidence of a focal risk minimizer compares with that of the true posterior."""

    UNDERCONFIDENT = -1
    EXACT = 0
    OVERCONFIDENT = 1


def confidence_regime(probs: Array, *, gamma: float) -> Array:
    """Tell for each row of focal scores whether it is overconfident, underconfident or exact.

    The rows are assumed to minimize the focal risk.

    Args:
        probs: Softmax output of a network trained with focal loss, shape (..., K).
        gamma: Focusing parameter, >= 0.

    Returns:
        Integer array of shape (...) with the values of `Regime`: 1 if the top score exceeds the top posterior, -1 if
        it is below, and 0 if they are equal (gamma = 0, or all nonzero scores are equal).

    Example:
        >>> import numpy as np
        >>> scores = np.array([[0.6, 0.4, 0.0], [0.5, 0.5, 0.0]])
        >>> [Regime(int(r)).name for r in confidence_regime(scores, gamma=2)]
        ['UNDERCONFIDENT', 'EXACT']

    Reference: Charoenphakdee et al. (2021), Prop. 6, Def. 7 and Thm. 8; between the thresholds, Thm. 11.
    """
    xp, probs = _check.floating(probs, "probs")
    _check.classes_last(probs, "probs")
    _check.simplex(probs, "probs", xp=xp)
    gamma = _check.scalar_gamma(gamma, least=0.0)
    top = xp.max(probs, axis=-1)
    exact = xp.all((probs == 0) | (probs == xp.expand_dims(top, axis=-1)), axis=-1)
    if gamma == 0.0:
        return xp.zeros_like(exact, dtype=xp.int8)
    wide = xp.astype(probs, xp.float64)
    split = split_probs(wide, xp=xp)
    settings = MapSettings.check(gamma, None, 0.0, False, classes=probs.shape[-1])
    # relative growth of the odds of each other class against the top class: phi_top / phi_j - 1
    growth = xp.expm1(log_h_shift(split, settings, xp=xp) + split.gap)
    excess = xp.sum(split.odds * growth, axis=-1)
    # outside the thresholds the theorem decides, so rounding has no effect there
    top = xp.max(wide, axis=-1)
    tau_oc, tau_uc = thresholds(gamma)
    over = (top <= tau_oc) | ((top < tau_uc) & (excess > 0))
    under = (top >= tau_uc) | ((top > tau_oc) & (excess < 0))
    sign = xp.astype(over, xp.int8) - xp.astype(under, xp.int8)
    return xp.where(exact, xp.zeros_like(sign), sign)


def gamma_star(p0: float) -> float:
    """Find the gamma at which focal loss and cross-entropy have equal gradients at probability p0.

    It solves phi^gamma(p0) = 1. Above p0, focal loss then has the smaller gradient. With s = -p0 log(p0) / (1 - p0)
    and c = log(1 - p0) / s, gamma* = (W_-1(c e^c) / c - 1) / s, where W_-1 is the lower branch of Lambert's function.

    Args:
        p0: Probability in (0, 1/2]. At 1/2 the answer is 0, and above it no solution exists.

    Returns:
        gamma* >= 0.

    Example:
        >>> round(gamma_star(0.25), 4)
        3.0702

    Reference: Mukhoti et al. (2020), Prop. 2.
    """
    p0 = _check.positive(p0, "p0")
    if not 1e-300 <= p0 <= 0.5:
        reason = ": above 0.5 focal loss has the smaller gradient for every gamma > 0" if p0 > 0.5 else ""
        msg = f"p0 must lie in [1e-300, 0.5], got {p0}{reason}"
        raise ValueError(msg)
    ratio = -p0 * math.log(p0) / (1 - p0)
    c = math.log1p(-p0) / ratio
    gamma = (float(scipy.special.lambertw(c * math.exp(c), -1).real) / c - 1) / ratio
    if p0 < 0.4:
        return gamma
    # Near the branch point at p0 = 1/2, Lambert's function loses digits. There, solve
    # (x - log(1 + x)) / x = surplus for x = gamma s; surplus = (s + log(1 - p0)) / s, in a form without cancellation.
    t = 0.5 - p0
    surplus = (math.atanh(2 * t) + t * math.log(p0 * (1 - p0))) / (1 - p0) / ratio
    x = 2 * surplus
    for _ in range(8):  # Newton's method for a concave function, from below: converges at least quadratically
        series = sum((-x) ** k / (k + 2) for k in range(60)) if x < 0.5 else (x - math.log1p(x)) / x**2
        slope = 1 / (1 + x) - series
        x += (surplus - x * series) / slope
    return x / ratio


class TemperatureBounds(NamedTuple):
    """Temperatures whose scalings bound the binary focal map."""

    lower: float
    upper: float


def temperature_bounds(gamma: float) -> TemperatureBounds:
    """Compute the two temperatures whose scalings bound the binary focal map.

    They are 1 / (1 + gamma) and 1 / (1 + gamma - log(1 + gamma) / 2).

    Args:
        gamma: Focusing parameter, >= 0.

    Returns:
        `(lower, upper)`: the map is at least as sharp as scaling by `upper` and at most as sharp as by `lower`.

    Example:
        >>> [round(t, 4) for t in temperature_bounds(4)]
        [0.2, 0.2384]

    Reference: Komisarenko and Kull (2024), Prop. 3.
    """
    gamma = _check.scalar_gamma(gamma, least=0.0)
    return TemperatureBounds(1 / (1 + gamma), 1 / (1 + gamma - math.log1p(gamma) / 2))


class ClosestTemperature(NamedTuple):
    """The temperature whose scaling is closest to the focal map, and their largest difference."""

    temperature: float
    error: float


# Number of grid points along each gap between logits, by the number of classes.
_GRID_POINTS = {2: 20_001, 3: 401, 4: 81}


def closest_temperature(gamma: float, *, classes: int, logit_range: float | tuple[float, float]) -> ClosestTemperature:
    """Find the temperature scaling that is closest to the focal map.

    It attains min over T of max over z of |Psi^gamma(softmax(z)) - softmax(z / T)|, with each of the K logits in a
    range. The maximum is taken on a grid.

    Args:
        gamma: Focusing parameter, > -1.
        classes: Number of classes: 2, 3 or 4.
        logit_range: Range of each logit: a pair, or r for (-r, r).

    Returns:
        `(temperature, error)`.

    Example:
        >>> nearest = closest_temperature(3, classes=2, logit_range=20)
        >>> round(nearest.temperature, 3), round(nearest.error, 4)
        (0.276, 0.0001)

    Reference: Komisarenko and Kull (2024), Figs. 2 and 6.
    """
    from scipy.optimize import minimize_scalar

    gamma = _check.scalar_gamma(gamma)
    low, high = _check.interval(logit_range, "logit_range")
    width = _check.positive(high - low, "the width of logit_range")
    classes = _check.count(classes, "classes", least=min(_GRID_POINTS), most=max(_GRID_POINTS))
    # Both maps commute with permutations and ignore shifts: the top logit is 0, the others are in descending order.
    # Both maps vary at gaps of about 1 / (1 + gamma): the grid is uniform below that and geometric above.
    scale = 1 / max(1.0, 1 + gamma)
    gaps = scale * np.sinh(np.linspace(0, np.arcsinh(width / scale), _GRID_POINTS[classes]))
    axes = np.meshgrid(*[gaps] * (classes - 1), indexing="ij")
    descending = np.ones_like(axes[0], dtype=bool)
    for higher, lower in pairwise(axes):
        descending &= higher <= lower
    below = -np.stack([axis[descending] for axis in axes])  # one row per class: NumPy is slow at sums of few terms
    mapped = posterior_from_logits(np.stack([np.zeros_like(below[0]), *below], axis=-1), gamma=gamma)
    mapped_top, mapped_below = mapped[:, 0].copy(), mapped[:, 1:].T.copy()

    def error(inverse_temperature: float) -> float:
        scaled = np.exp(inverse_temperature * below)
        total = sum(scaled, start=1.0)
        scaled /= total
        return float(max(np.max(np.abs(1 / total - mapped_top)), np.max(np.abs(scaled - mapped_below))))

    bounds = (0.5 * min(1.0, 1 + gamma), 1.5 * max(1.0, 1 + gamma))
    best = minimize_scalar(error, bounds=bounds, method="bounded", options={"xatol": 1e-9 * bounds[1]})
    if not best.success:
        msg = f"the search for the closest temperature failed: {best.message}"
        raise RuntimeError(msg)
    return ClosestTemperature(float(1 / best.x), float(best.fun))
