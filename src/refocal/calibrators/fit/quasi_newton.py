"""A minimizer for smooth convex functions of many parameters that starts with what is known about their curvature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

_MEMORY = 10  # pairs of steps and changes of the gradient that describe the curvature
# Factors of a step. Below the first one, a search ends if rounding hides what a shorter step gains. Below the second
# one, it ends in any case; this is for values of 0.
_SHORT, _SHORTEST = 1e-6, 1e-60

Pair = tuple[np.ndarray, np.ndarray]  # a step, and how it changed the gradient


class Descent(NamedTuple):
    """The end of a descent.

    Attributes:
        x: The point.
        done: Whether less than the tolerance is left to gain, by the model of the curvature.
        gradient: The gradient in variables for which the diagonal of the Hessian is 1.
        pairs: The last steps, and how they changed the gradient.
        iterations: The number of steps, and of searches that found none.
    """

    x: np.ndarray
    done: bool
    gradient: np.ndarray
    pairs: list[Pair]
    iterations: int


def descend(
    function: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    *,
    diagonal: np.ndarray,
    pairs: Sequence[Pair] = (),
    tolerance: float,
    rounding: float,
    most: int,
) -> Descent:
    """Minimize a convex function by the L-BFGS method, until the next step would gain less than the tolerance.

    Args:
        function: A function of a point (d,) that returns its value and its gradient (d,).
        start: The first point (d,).
        diagonal: An estimate of the diagonal of the Hessian (d,), positive.
        pairs: Steps and changes of the gradient that are known already, such as those of a similar function. With a
            good description of the curvature, few steps are needed.
        tolerance: The gain of the last step, by the model of the curvature.
        rounding: The relative rounding error of values. A step may increase the value by that.
        most: The largest number of steps.

    Reference: Nocedal and Wright, "Numerical Optimization", 2006, algorithm 7.4.
    """
    x, known = start, [pair for pair in pairs if _is_convex(pair)][-_MEMORY:]
    value, gradient = function(x)
    for iteration in range(most + 1):
        step = _find_step(gradient, diagonal, known)
        slope = float(gradient @ step)
        if 0 <= -slope / 2 < tolerance or iteration == most:
            break
        factor = 1.0
        allowed = rounding * abs(value)
        least = min(_SHORT, max(_SHORTEST, allowed / abs(slope)))
        while True:
            following = x + factor * step
            there, gradient_there = function(following)
            if there <= value + 1e-4 * factor * slope + allowed or factor < least:
                break
            # the minimum of the parabola through the two values, with the slope at the first
            bend = (there - value) / factor - slope
            factor *= min(0.5, max(0.1, -slope / (2 * bend))) if np.isfinite(bend) else 0.1
        if factor < least:
            if not known:
                break
            known = []  # the pairs mislead, for example by rounding: begin anew
            continue
        pair = following - x, gradient_there - gradient
        if _is_convex(pair):
            known = [*known, pair][-_MEMORY:]
        x, value, gradient = following, there, gradient_there
    return Descent(x, 0 <= -slope / 2 < tolerance, gradient / np.sqrt(diagonal), known, iteration)


def _is_convex(pair: Pair) -> bool:
    """Whether the gradient grows along the step, by more than rounding."""
    taken, change = pair
    return bool(taken @ change > 1e-10 * np.sqrt((taken @ taken) * (change @ change)))


def _find_step(gradient: np.ndarray, diagonal: np.ndarray, pairs: list[Pair]) -> np.ndarray:
    """Multiply the negative gradient by the inverse of the Hessian that the diagonal and the pairs describe."""
    step = -gradient
    shares = []
    for taken, change in reversed(pairs):
        share = (taken @ step) / (taken @ change)
        shares.append(share)
        step = step - share * change
    step = step / diagonal
    if pairs:
        taken, change = pairs[-1]
        step *= (taken @ change) / (change @ (change / diagonal))
    for (taken, change), share in zip(pairs, reversed(shares), strict=True):
        step += (share - (change @ step) / (taken @ change)) * taken
    return step
