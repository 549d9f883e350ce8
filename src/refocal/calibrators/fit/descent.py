"""Minimizers for one and for two parameters. Safeguards ensure that they end at an optimum or at a stated bound.

The function to minimize takes the point and whether to be exact. Far from the optimum the precision of the data is
enough; the last evaluations are in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_MAX_EVALUATIONS = 100
_PATIENCE = 20  # after this many evaluations, all are exact
_NEWTON_EVALUATIONS = 40  # after this many evaluations, brackets are halved
_CLOSE_STEP = 0.1  # two points this close determine a cubic well
_COARSE_STEP = 1e-3  # relative; once a step is smaller than this, evaluations are exact
_SECANT_STEP = 0.03  # relative; after a step smaller than this, two slopes give the curvature to 1e-3
_LEAST_RADIUS = 1e-9  # if a trust region shrinks below this, the derivatives do not match the values
_LAST_STEP = 1e-5  # a Newton step of this size leaves an error of about its square


class Slope(NamedTuple):
    """A function of one variable at a point: its value, slope and, on request, curvature."""

    value: float
    slope: float
    curvature: float | None


class Root(NamedTuple):
    """The minimum of a convex function. The value is exact to rounding, the curvature to 1e-3."""

    x: float
    value: float
    curvature: float
    at_bound: bool
    evaluations: int


def minimize_convex(
    function: Callable[[float, bool, bool], Slope],
    start: float,
    *,
    low: float,
    high: float,
    last_step: float = _LAST_STEP,
    sharpen: bool = True,
) -> Root:
    """Minimize a convex function >= 0 over [low, high], 0 < low, by Newton's method inside a shrinking bracket.

    Steps are taken in 1/x, because the slope of an NLL by inverse temperature is nearly linear in the temperature. If
    a few rows have a scale of their own, such as logits of 1e6, Newton's steps may be too short. Then the bracket is
    halved in log x, which always ends.

    Args:
        function: A function of a point, whether to be exact, and whether to compute the curvature. Near the optimum,
            the curvature comes from two slopes and the last curvature instead.
        start: First guess.
        low: Lower bound.
        high: Upper bound.
        last_step: The search ends after a Newton step of this relative size; the error is about its square.
        sharpen: Whether the last evaluations must be exact.
    """
    left, right = low, high
    untried = {low, high} - {start}
    x, exact, near, curvature = start, False, False, 0.0
    before: tuple[float, float, float] | None = None
    for evaluation in itertools.count(1):
        at = function(x, exact, not near)
        if at.curvature is not None:
            curvature = at.curvature
        elif before is not None and abs(x * before[1] - 1) > _COARSE_STEP:
            # The quotient of differences is the curvature halfway between the two points.
            curvature = 2 * (at.slope - before[0]) / (x - 1 / before[1]) - curvature
        if not (math.isfinite(at.slope) and math.isfinite(curvature)):
            msg = f"the function to be minimized is not finite at {x:g}"
            raise RuntimeError(msg)
        if (x == low and at.slope >= 0) or (x == high and at.slope <= 0):
            return Root(x, at.value, curvature, True, evaluation)
        if at.value == 0 and low < x < high:  # the rest is below rounding and decreases toward a bound
            x, near, before = (low if at.slope > 0 else high), False, None
            continue
        left, right = (left, x) if at.slope > 0 else (x, right)
        here = (at.slope, 1 / x, -1 / (x * x * curvature)) if curvature > 0 else None
        inverse = _inverse_root(here, before) if here else math.inf * at.slope
        following = 1 / inverse if inverse > 0 else math.inf
        if not left <= following <= right or evaluation >= _NEWTON_EVALUATIONS:
            edge = left if at.slope > 0 else right
            # Try a bound of the search itself once, but halve a bracket that came from an evaluation.
            following = edge if edge in untried else math.sqrt(left * right)
        untried.discard(following)
        step = abs(following / x - 1)
        if step < last_step and (exact or not sharpen):
            return Root(following, at.value, curvature, following in (low, high), evaluation)
        near = step < _SECANT_STEP
        exact = exact or (step < _COARSE_STEP and sharpen)
        x, before = following, here if at.curvature is not None and step < _CLOSE_STEP else None
    raise AssertionError  # the count has no end


def _inverse_root(here: tuple[float, float, float], before: tuple[float, float, float] | None) -> float:
    """Estimate the t at which the slope g is 0, from (g, t, dt/dg) at one point or, by a cubic, at two points.

    One point gives Newton's step. With two close points, the error is about the product of the squares of both errors.
    """
    slope, t, rate = here
    if before is None or before[0] == slope:
        return t - slope * rate
    first, t_first, rate_first = before
    width = slope - first
    u = -first / width
    return (
        (1 + 2 * u) * (1 - u) ** 2 * t_first
        + u * (1 - u) ** 2 * width * rate_first
        + u * u * (3 - 2 * u) * t
        + u * u * (u - 1) * width * rate
    )


class Quadratic(NamedTuple):
    """A function of several variables at a point: its value, gradient (d,) and, on request, Hessian (d, d)."""

    value: float
    gradient: np.ndarray
    hessian: np.ndarray | None


class Minimum(NamedTuple):
    """A local minimum within a box. The value is exact to rounding, the Hessian to 1e-3."""

    x: np.ndarray
    value: float
    hessian: np.ndarray
    at_bound: bool
    evaluations: int


def minimize_in_trust_region(
    function: Callable[[np.ndarray, bool, bool], Quadratic],
    start: np.ndarray,
    *,
    low: np.ndarray,
    high: np.ndarray,
    last_step: float = _LAST_STEP,
    sharpen: bool = True,
) -> Minimum:
    """Find a local minimum within a box by Newton's method in a trust region that starts with radius 1.

    Args:
        function: A function of a point, whether to be exact, and whether to compute the Hessian. Near the optimum,
            the last Hessian is used again.
        start: First guess (d,).
        low: Lower bounds (d,).
        high: Upper bounds (d,).
        last_step: The search ends after a Newton step of this size; the error is about its square. It ends earlier if
            the change of the Hessian predicts an error as small, or if the step would gain less than rounding.
        sharpen: Whether the last evaluations must be exact.
    """
    x, exact = start, False
    at = function(x, exact, True)
    assert at.hessian is not None
    hessian = at.hessian
    before: tuple[np.ndarray, np.ndarray] | None = None
    radius, evaluation = 1.0, 1
    while evaluation < _MAX_EVALUATIONS and radius > _LEAST_RADIUS:
        free = ~_find_pressed(x, at.gradient, low, high)
        step, error = _newton_step(at.gradient, hessian, free=free, radius=radius), math.inf
        at_end = hessian
        if before is not None:
            step, at_end, error = _bent_step(step, at.gradient, hessian, before, free=free, radius=radius)
        step = np.clip(x + step, low, high) - x
        size = float(np.linalg.norm(step))
        expected = -float(at.gradient @ step + step @ hessian @ step / 2)
        # in a flat valley, where the parameters cannot be told apart, steps need not become short
        near_enough = size < last_step or error < 10 * last_step**2 or (exact and expected < 1e-13 * abs(at.value))
        if size < 0.9 * radius and near_enough and (exact or not sharpen):
            x = x + step
            return Minimum(x, at.value, at_end, bool(np.any((x <= low) | (x >= high))), evaluation)
        near = size < min(_COARSE_STEP, 0.9 * radius)
        if evaluation == _PATIENCE and not exact:  # rounding may prevent progress
            exact, at, evaluation = True, function(x, True, False), evaluation + 1
            continue
        there, evaluation = function(x + step, exact or near, not near), evaluation + 1
        # The first exact value cannot be compared with the one before. It need not be: the step was short.
        rounding = math.inf if near and not exact else (1e-13 if exact else 1e-6) * abs(at.value)
        exact = exact or near
        if at.value - there.value >= 0.1 * expected - rounding:
            radius = max(radius, 2 * size) if size > 0.9 * radius else radius
            if there.hessian is not None:
                before, hessian = (step, hessian) if size > 0 else None, there.hessian
            x, at = x + step, there
        else:
            radius = size / 4
    msg = f"no minimum found in {evaluation} evaluations; the last step had size {size:.1e}"
    raise RuntimeError(msg)


def _bent_step(
    newton: np.ndarray,
    gradient: np.ndarray,
    hessian: np.ndarray,
    before: tuple[np.ndarray, np.ndarray],
    *,
    free: np.ndarray,
    radius: float,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Compute Newton's step with the Hessian halfway along it, the Hessian at its end, and a bound of its error.

    The Hessian is assumed to change along the step as it did along the last one, as far as both have the same
    direction. In a valley they do, and the error is of third order. `before` is the last step and the Hessian at its
    beginning. If the step would be longer than the last one, Newton's step is returned unchanged.
    """
    last, earlier = before
    step = newton
    for _ in range(2):
        share = float(step @ last) / float(last @ last)
        if abs(share) > 1:
            return newton, hessian, math.inf
        step = _newton_step(gradient, hessian + share / 2 * (hessian - earlier), free=free, radius=radius)
    size = np.linalg.norm(step)
    foretold = np.linalg.norm(step - newton) * (np.linalg.norm(last) + size)
    aside = np.linalg.norm(step - share * last) * size  # nothing is known about the change in that direction
    return step, hessian + share * (hessian - earlier), float(foretold + 3 * aside)


def _find_pressed(x: np.ndarray, gradient: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Find the coordinates at a bound that a descent would cross."""
    pressed: np.ndarray = (x <= low) & (gradient > 0) | (x >= high) & (gradient < 0)
    return pressed


def _newton_step(gradient: np.ndarray, hessian: np.ndarray, *, free: np.ndarray, radius: float) -> np.ndarray:
    """Compute Newton's step in the free coordinates, no longer than the radius."""
    step = np.zeros_like(gradient)
    if np.any(free):
        curvature, axes = np.linalg.eigh(hessian[np.ix_(free, free)])
        # Newton's step would climb along a direction of negative curvature: reverse it and keep its size.
        steepness = np.maximum(np.abs(curvature), 1e-12 * np.max(np.abs(curvature)) + 1e-300)
        along = axes.T @ gradient[free] / steepness
        length = float(np.linalg.norm(along))
        step[free] = -axes @ along * min(1.0, radius / max(length, 1e-300))
    return step
