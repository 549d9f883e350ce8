"""The map Psi^gamma from focal scores to p(y|x), and its variants for class weights, label smoothing and others.

A minimizer q of the expected loss satisfies eta_i proportional to h(q_i) / w_i, with h(p) = p / phi^gamma(p)
(Charoenphakdee et al., 2021, Thm. 11) and the class weights w of the loss. If an implementation stops the gradient
through (1 - p)^gamma, training converges to h(p) = p / (1 - p)^gamma instead.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

from refocal import _check
from refocal._arrays import (
    Array,
    ArrayT,
    ClassWeights,
    Namespace,
    PerClass,
    bounded_exp,
    constant,
    expm1,
    map_row_blocks,
    move_axis,
    namespace,
    stop_gradient,
    widen,
)
from refocal.maps.focal import focus_of_top
from refocal.maps.simplex import TopSplit, log_or_minus_inf, split_logits, split_probs

SmoothingEdge = Literal["soft", "exact"]

# Beyond this gap between the two largest logits, e^gap is not computed (float32 overflows at 88).
_FAR_GAP = 40.0
_FAINT_ODDS = 1e-30  # in float32, odds much below this lose digits or vanish


def posterior(
    probs: ArrayT,
    *,
    gamma: PerClass,
    weight: ClassWeights = None,
    label_smoothing: float = 0.0,
    smoothing_edge: SmoothingEdge = "soft",
    detached: bool = False,
    axis: int = -1,
) -> ArrayT:
    """Recover class-posterior probabilities p(y|x) from the softmax output of a network trained with focal loss.

    Psi_i = h(p_i) / sum_l h(p_l) with h(p) = p / ((1 - p)^gamma - gamma (1 - p)^(gamma - 1) p log p).

    Args:
        probs: Softmax probabilities of K >= 2 classes on `axis`, shape (..., K) by default. A softmax loses digits near
            0 and 1: if you have logits, use `posterior_from_logits`.
        gamma: Focusing parameter of the loss, > -1: a number, or one value per class.
        weight: Class weights of the loss, shape (K,), positive.
        label_smoothing: Label smoothing epsilon of the loss, in [0, 1). The network then estimates the smoothed target
            t = (1 - epsilon) eta + epsilon / K, and this map undoes the smoothing.
        smoothing_edge: How classes near the level epsilon / K that smoothing adds to each class are treated. Estimation
            error puts many of them below it. "soft" keeps the order, and no probability is 0 unless it underflows: with
            d = min(epsilon, 1 - epsilon) / K and e = d + epsilon / K, classes with t >= e keep t - epsilon / K, and
            those below get d (t / e)^(e / d), which is t^2 / (4 epsilon / K) for epsilon up to 1/2; then the row is
            normalized. Values and slopes agree at e, and the order of the classes is kept. "exact" is the exact
            inverse: max(t - epsilon / K, 0), normalized.
        detached: Whether the loss stops the gradient through (1 - p)^gamma.
        axis: The axis of the classes: 1 for images (N, K, H, W).

    Returns:
        Array like `probs`. Each row sums to 1. With a scalar gamma and no weight, one-hot and uniform rows do not
        change.

    Example:
        >>> import numpy as np
        >>> posterior(np.array([0.4206, 0.3272, 0.1642, 0.0880]), gamma=3).round(3).tolist()
        [0.55, 0.3, 0.1, 0.05]

    Reference: Charoenphakdee et al. (2021), Eqs. 11-13.
    """
    xp, probs = _check.floating(probs, "probs")
    place, last = _check.class_axis(axis, probs, "probs"), probs.ndim - 1
    probs = move_axis(probs, place, last, xp=xp)
    _check.simplex(probs, "probs", xp=xp)
    settings = MapSettings.check(
        gamma, weight, label_smoothing, detached, classes=probs.shape[-1], smoothing_edge=smoothing_edge
    )

    def block(rows: ArrayT) -> ArrayT:
        wide = widen(rows, xp=xp)
        result = map_rows(split_probs(wide, xp=xp), settings.like(wide, xp=xp), log=False, xp=xp)
        return xp.astype(result, rows.dtype, copy=False)

    return move_axis(map_row_blocks(block, probs), last, place, xp=xp)


def posterior_from_logits(
    logits: ArrayT,
    *,
    gamma: PerClass,
    temperature: float = 1.0,
    weight: ClassWeights = None,
    label_smoothing: float = 0.0,
    smoothing_edge: SmoothingEdge = "soft",
    detached: bool = False,
    log: bool = False,
    axis: int = -1,
) -> ArrayT:
    """Recover class-posterior probabilities p(y|x) from the logits of a network trained with focal loss.

    The result is Psi^gamma(softmax(logits / temperature)). The softmax itself is never computed, so the result is
    accurate to a few units in the last place for logits of any size.

    Args:
        logits: Scores before the softmax, of K >= 2 classes on `axis`, shape (..., K) by default. A class masked with
            -inf gets probability 0.
        gamma: Focusing parameter of the loss, > -1: a number, or one value per class.
        temperature: Number by which the logits are divided first, > 0.
        weight: Class weights of the loss, shape (K,), positive.
        label_smoothing: Label smoothing epsilon of the loss, in [0, 1); see `posterior`.
        smoothing_edge: "soft" for positive probabilities, "exact" for the exact inverse; see `posterior`.
        detached: Whether the loss stops the gradient through (1 - p)^gamma.
        log: Whether to return log-probabilities.
        axis: The axis of the classes: 1 for images (N, K, H, W).

    Returns:
        Array like `logits`. 16-bit input is computed in float32.

    Example:
        >>> import numpy as np
        >>> logits = np.array([[2.0, 0.0, 0.0], [800.0, 0.0, -800.0]])
        >>> posterior_from_logits(logits, gamma=2).round(4).tolist()
        [[0.973, 0.0135, 0.0135], [1.0, 0.0, 0.0]]

    Reference: Charoenphakdee et al. (2021), Eqs. 11-13; with a temperature, Komisarenko and Kull (2024), Sec. 4.2.
    """
    xp, logits = _check.floating(logits, "logits")
    place, last = _check.class_axis(axis, logits, "logits"), logits.ndim - 1
    logits = move_axis(logits, place, last, xp=xp)
    _check.logits(logits, "logits", xp=xp)
    temperature = _check.positive(temperature, "temperature")
    settings = MapSettings.check(
        gamma, weight, label_smoothing, detached, classes=logits.shape[-1], smoothing_edge=smoothing_edge
    )

    mapped = posterior_from_logits_unchecked(logits, settings, temperature=temperature, log=log, xp=xp)
    return move_axis(mapped, last, place, xp=xp)


def posterior_from_logits_unchecked(
    logits: ArrayT, settings: MapSettings, *, temperature: float, log: bool, xp: Namespace
) -> ArrayT:
    """Compute `posterior_from_logits` of checked logits with checked settings, classes last."""

    def block(rows: ArrayT) -> ArrayT:
        wide = widen(rows, xp=xp)
        split = split_logits(wide, temperature=temperature, xp=xp)
        result = map_rows(split, settings.like(wide, xp=xp), log=log, xp=xp)
        return xp.astype(result, rows.dtype, copy=False)

    return map_row_blocks(block, logits)


def plus_one(gamma: float | tuple[float, ...]) -> float | tuple[float, ...]:
    """Compute gamma + 1 in float64; in float32 it would lose its digits if gamma is near -1."""
    return tuple(number + 1 for number in gamma) if isinstance(gamma, tuple) else gamma + 1


class MapSettings(NamedTuple):
    """The settings of a loss that its posterior map depends on.

    Hyper-parameters are numbers or tuples with one number per class; `like` makes arrays of the tuples. In exported
    modules they are arrays with the dtype of the rows.
    """

    gamma: Any
    gamma_plus_one: Any
    log_weight: Any
    label_smoothing: float
    detached: bool
    smoothing_edge: SmoothingEdge

    @classmethod
    def check(
        cls,
        gamma: PerClass,
        weight: ClassWeights,
        label_smoothing: float,
        detached: bool,
        *,
        classes: int,
        least: float | None = None,
        smoothing_edge: SmoothingEdge = "exact",
    ) -> MapSettings:
        """Check each setting; `least` is the smallest gamma allowed (None: any gamma above -1).

        The edge plays no role without label smoothing and for the minimizer.
        """
        numbers = _check.gamma(gamma, classes=classes, least=least)
        return cls(
            numbers,
            plus_one(numbers),
            _logarithm(_check.weight(weight, classes=classes)),
            _check.label_smoothing(label_smoothing),
            detached,
            _check.one_of(smoothing_edge, "smoothing_edge", get_args(SmoothingEdge)),
        )

    def like(self, rows: Array, *, xp: Namespace) -> MapSettings:
        """Convert the settings to the dtype and device of `rows`."""
        return self._replace(
            gamma=constant(self.gamma, like=rows, xp=xp),
            gamma_plus_one=constant(self.gamma_plus_one, like=rows, xp=xp),
            log_weight=constant(self.log_weight, like=rows, xp=xp),
        )

    @property
    def one_gamma(self) -> bool:
        """Whether all classes share one gamma."""
        return isinstance(self.gamma, float) or getattr(self.gamma, "ndim", 1) == 0

    def at(self, is_top: Array, *, xp: Namespace) -> tuple[Any, Any]:
        """Return gamma and gamma + 1 of the class that the mask selects in each row."""
        if self.one_gamma:
            return self.gamma, self.gamma_plus_one
        pick = [
            xp.sum(xp.where(is_top, value, 0.0), axis=-1, keepdims=True) for value in (self.gamma, self.gamma_plus_one)
        ]
        return pick[0], pick[1]


def _logarithm(weights: Any) -> Any:
    """Take the logarithm of class weights: numbers, or a tensor whose values are unknown during compilation."""
    if weights is None:
        return None
    return tuple(map(math.log, weights)) if isinstance(weights, tuple) else namespace(weights).log(weights)


def map_rows(split: TopSplit, settings: MapSettings, *, log: bool, xp: Namespace) -> Any:
    """Compute Psi of split rows: exp(shift_j) odds_j for each class and 1 for the top class, divided by their sum."""
    shift = log_h_shift(split, settings, xp=xp)
    shift = xp.where(split.is_top, 0.0, shift)
    odds = xp.where(split.is_top, 1.0, split.odds)
    if settings.log_weight is None and settings.one_gamma:
        scale: Any = 0.0
        # the map keeps the arg max, so nothing exceeds 1; without this, rounding could break ties
        log_mass = stop_gradient(xp.where(split.is_top, 0.0, split.log_odds) + shift)
        shift = shift - xp.where(log_mass > 0, log_mass, 0.0)
        mass = odds * xp.exp(shift)
    else:
        if settings.log_weight is not None:
            shift = shift - settings.log_weight
        log_mass = xp.where(split.is_top, 0.0, split.log_odds) + shift
        scale = stop_gradient(xp.max(log_mass, axis=-1, keepdims=True))
        # a large shift can bring back odds that vanish; an impossible class keeps its odds, for its derivative
        faint = (odds < _FAINT_ODDS) & (split.log_odds > -xp.inf)
        mass = xp.where(
            faint,
            xp.exp(xp.where(faint, log_mass - scale, 0.0)),
            odds * bounded_exp(xp.where(faint, 0.0, shift - scale), xp=xp),
        )
    total = xp.sum(mass, axis=-1, keepdims=True)
    if not (log or settings.label_smoothing):
        return mass / total
    log_probs = xp.where(split.is_top, 0.0, split.log_odds) + (shift - scale) - xp.log(total)
    if not settings.label_smoothing:
        return log_probs
    # class weights act on the smoothed target, so smoothing is undone last
    excess = _exceed_level(mass / total, settings.label_smoothing, xp=xp)
    if settings.smoothing_edge == "soft":
        return _unsmooth_softly(excess, log_probs, settings.label_smoothing, log=log, xp=xp)
    kept = xp.where(excess > 0, excess, 0.0)
    probs = kept / xp.sum(kept, axis=-1, keepdims=True)
    return log_or_minus_inf(probs, xp=xp) if log else probs


def log_h_shift(split: TopSplit, settings: MapSettings, *, xp: Namespace) -> Array:
    """Compute log h(p_j) - log h(p_top) - log odds_j for the classes below the top (any value at the top).

    With a_j = log(p_j / p_top) = log odds_j - gap, and L_j = log(q_j / q_top),

        log h_j - log h_top = a_j - gamma_top L_j - (gamma_j - gamma_top) log q_j
                              - log(1 + gamma_j s_j) + log(1 + gamma_top s_top).

    L_j comes from one of two forms of q_j / q_top, each exact where it is used:
      near: log1p((e^gap - odds_j) / rest), relatively exact down to a tie, so that a large gamma may multiply it;
      far:  gap - log rest + log1p((rest - odds_j) e^-gap), without overflow; here the sum of gap and gamma gap is one
            product (1 + gamma) gap, because the sum is small for gamma near -1.
    """
    is_top, odds, log_odds, gap, rest, is_alone = split
    gamma = settings.gamma
    if isinstance(gamma, float) and gamma == 0.0:  # h is the identity
        return -gap
    gamma_top, gamma_top_plus_one = settings.at(is_top, xp=xp)
    exp_minus_gap = xp.exp(-gap)
    odds_against_top = rest * exp_minus_gap

    sign = gamma_top + 0 * gap  # always an array: TorchScript cannot combine a mask with a Python bool
    far = (gap > _FAR_GAP) | (sign < 0)
    offset = xp.where(far, rest - 1, expm1(xp.where(far, 0.0, gap), xp=xp))
    scale = xp.where(far, exp_minus_gap, 1 / rest)
    base = xp.where(far, gamma_top * xp.log(rest) - gamma_top_plus_one * gap, -gap)
    # at a class of probability 1, h is infinite for gamma > 0: only the derivative of the others remains, and it is 0
    base = xp.where(is_alone & (sign > 0), -xp.inf, base)
    shift = base - gamma_top * xp.log1p(((1 - odds) + offset) * scale)
    if settings.one_gamma and settings.detached:
        return shift

    p = odds * (exp_minus_gap / (1 + odds_against_top))
    if not settings.one_gamma:
        shift = shift - (gamma - gamma_top) * xp.log1p(-p)
    if settings.detached:
        return shift
    log_p = xp.where(p > 0, log_odds - (gap + xp.log1p(odds_against_top)), 0.0)
    focus, _ = focus_of_top(odds_against_top, gamma=gamma_top, gamma_plus_one=gamma_top_plus_one, xp=xp)
    return shift + (xp.log(focus) - xp.log1p(gamma * (-p * log_p / (1 - p))))


def _exceed_level(probs: Array, epsilon: float, *, xp: Namespace) -> Array:
    """Compute p - epsilon / K without rounding epsilon; it is positive for the top class."""
    even = 1 / probs.shape[-1]
    # the top class has at least 1 / K, up to rounding
    largest = stop_gradient(xp.max(probs, axis=-1, keepdims=True))
    return probs - xp.where(largest < even, largest, even) + (1 - epsilon) * even


def _unsmooth_softly(excess: Array, log_probs: Array, epsilon: float, *, log: bool, xp: Namespace) -> Array:
    """Undo label smoothing with positive results: a power of p below the edge, p - epsilon / K from there on.

    With d and e of `posterior`, both are d at p = e, with slope 1. The top class lies above the edge, since e <= 1 / K.
    """
    classes = log_probs.shape[-1]
    width, edge = min(epsilon, 1 - epsilon) / classes, min(2 * epsilon, 1) / classes
    low = excess < width
    # log(p / edge), which a large power multiplies: near the edge from the difference, far below from log p
    far = log_probs < math.log(edge / 2)
    near_shortfall = xp.where(low & ~far, (excess - width) / edge, 0.0)
    log_ratio = xp.where(far, xp.where(far, log_probs, 0.0) - math.log(edge), xp.log1p(near_shortfall))
    log_low = math.log(width) + (edge / width) * log_ratio
    high = xp.where(low, 1.0, excess)
    mass = xp.where(low, xp.exp(log_low), high)
    total = xp.sum(mass, axis=-1, keepdims=True)
    return xp.where(low, log_low, xp.log(high)) - xp.log(total) if log else mass / total
