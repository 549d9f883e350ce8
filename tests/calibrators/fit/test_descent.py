"""Minimizers of one and of two parameters, on functions with a known minimum and a known number of steps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from refocal.calibrators.fit.descent import Quadratic, Slope, minimize_convex, minimize_in_trust_region

WIDE = {"low": np.full(2, -99.0), "high": np.full(2, 99.0)}


def linear_slope_in_the_inverse(root, scale=1.0):
    """A function whose slope is linear in 1/x, as Newton's step assumes: scale (x / root - 1 - log(x / root)) + 1."""

    def function(x, exact, curvature):
        value = scale * (x / root - 1 - math.log(x / root)) + 1
        return Slope(value, scale * (1 / root - 1 / x), scale / x**2 if curvature else None)

    return function


@pytest.mark.parametrize("start", [0.02, 0.7, 3.0, 40.0])
@pytest.mark.parametrize(("root", "scale"), [(0.05, 1.0), (3.0, 0.2), (30.0, 7.0)])
def test_one_step_reaches_the_root_of_a_slope_that_is_linear_in_the_inverse(root, scale, start):
    """The first evaluation gives the step, the second finds that no more is needed, and the third is exact."""
    found = minimize_convex(linear_slope_in_the_inverse(root, scale), start, low=1e-3, high=1e3)
    assert found.x == pytest.approx(root, rel=1e-12)
    assert found.value == pytest.approx(1, rel=1e-12)
    assert found.evaluations == (2 if start == root else 3)
    assert not found.at_bound
    rough = minimize_convex(linear_slope_in_the_inverse(root, scale), start, low=1e-3, high=1e3, sharpen=False)
    assert rough.evaluations == (1 if start == root else 2)


def test_curvature_is_asked_for_far_from_the_root_and_exactness_near_it():
    asked = []

    def function(x, exact, curvature):
        asked.append((exact, curvature))
        value = 1 + math.log(math.cosh(x - 2))
        return Slope(value, math.tanh(x - 2), 1 / math.cosh(x - 2) ** 2 if curvature else None)

    found = minimize_convex(function, 1.0, low=1e-2, high=1e2)
    assert found.x == pytest.approx(2, rel=1e-9)
    assert found.curvature == pytest.approx(1, rel=1e-3)
    assert asked[0] == (False, True)
    assert asked[-1] == (True, False)
    exact = [flag for flag, _ in asked]
    assert exact == sorted(exact)  # once exact, always exact
    assert len(asked) == found.evaluations <= 8
    asked.clear()
    minimize_convex(function, 1.0, low=1e-2, high=1e2, sharpen=False)
    assert not any(flag for flag, _ in asked)


def test_a_minimum_at_a_bound_needs_no_search():
    for bound, slope in ((9.0, 0.0), (9.0, -1.0), (0.1, 0.0), (0.1, 1.0)):
        found = minimize_convex(lambda *_, slope=slope: Slope(1.0, slope, 1.0), bound, low=0.1, high=9.0)
        assert (found.x, found.at_bound, found.evaluations) == (bound, True, 1)


def test_a_vanishing_value_leads_to_the_bound_toward_which_it_falls():
    found = minimize_convex(lambda x, *_: Slope(math.exp(-x), -math.exp(-x), math.exp(-x)), 800.0, low=0.1, high=5e3)
    assert (found.x, found.at_bound, found.evaluations) == (5e3, True, 2)
    found = minimize_convex(lambda *_: Slope(0.0, 1e-300, 1e-300), 5.0, low=0.1, high=9.0)
    assert (found.x, found.at_bound, found.evaluations) == (0.1, True, 2)


def bowl(center, hessian):
    """A quadratic with its smallest value, 1, at the center."""

    def function(x, exact, curvature):
        away = x - center
        return Quadratic(1 + away @ hessian @ away / 2, hessian @ away, hessian if curvature else None)

    return function


def test_a_trust_region_doubles_while_its_steps_end_at_its_border():
    """Steps of 1, 2, 4, 8 and 16 cover 31. One more evaluation ends the search and one is exact."""
    found = minimize_in_trust_region(bowl(np.array([0.0, 31.0]), np.eye(2)), np.zeros(2), **WIDE)
    np.testing.assert_allclose(found.x, [0, 31], atol=1e-12)
    assert found.evaluations == 7
    assert found.value == pytest.approx(1)
    assert not found.at_bound


@pytest.mark.parametrize("angle", [0.0, 0.4, 2.0])
def test_newtons_step_ends_at_the_minimum_of_a_bowl(angle):
    """For any axes, one step and one exact evaluation are enough."""
    axes = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    center = np.array([0.3, -0.4])
    found = minimize_in_trust_region(bowl(center, axes @ np.diag([1.0, 50.0]) @ axes.T), np.zeros(2), **WIDE)
    np.testing.assert_allclose(found.x, center, rtol=1e-9)
    assert found.evaluations <= 3
    np.testing.assert_allclose(found.hessian, axes @ np.diag([1.0, 50.0]) @ axes.T, rtol=1e-9)


@pytest.mark.parametrize(
    ("low", "high", "end"),
    [
        ([0.5, -9], [9, 9], [0.5, -0.4]),
        ([-9, -9], [9, -0.6], [0.3, -0.6]),
        ([0.5, -0.1], [9, 9], [0.5, -0.1]),
    ],
)
def test_a_bowl_with_its_center_outside_the_box_ends_at_the_border(low, high, end):
    hessian = np.diag([1.0, 50.0])
    start = np.array([2.0, -0.7]) if high[1] < 0 else np.array([2.0, 3.0])
    found = minimize_in_trust_region(
        bowl(np.array([0.3, -0.4]), hessian), start, low=np.array(low, float), high=np.array(high, float)
    )
    np.testing.assert_allclose(found.x, end, rtol=1e-9)
    assert found.at_bound


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_coordinate_at_its_bound_does_not_bend_the_steps_of_the_other(side):
    """With x at its bound of 1/2, y ends where its own slope is 0. This is not the center: the axes are tilted."""
    hessian = np.array([[2.0, 1.5], [1.5, 2.0]])
    low, high = (np.array([0.5, -9.0]), np.full(2, 9.0)) if side > 0 else (np.full(2, -9.0), np.array([-0.5, 9.0]))
    found = minimize_in_trust_region(bowl(np.zeros(2), hessian), side * np.array([3.0, 1.0]), low=low, high=high)
    np.testing.assert_allclose(found.x, side * np.array([0.5, -0.375]), rtol=1e-9)
    assert found.at_bound
    assert found.evaluations <= 8


def test_descent_leaves_a_saddle():
    """x^4/4 - x^2/2 + y^2 has a saddle at 0, where Newton's step would climb back, and a minimum at (1, 0)."""

    def function(x, *_):
        a, b = x
        return Quadratic(a**4 / 4 - a**2 / 2 + b**2, np.array([a**3 - a, 2 * b]), np.diag([3 * a**2 - 1, 2.0]))

    found = minimize_in_trust_region(function, np.array([0.1, 1.0]), **WIDE)
    np.testing.assert_allclose(found.x, [1, 0], atol=1e-9)
    assert found.value == pytest.approx(-0.25)
    np.testing.assert_allclose(found.hessian, np.diag([2.0, 2.0]), rtol=1e-3)


def test_steps_that_overshoot_are_shortened():
    """Newton's method for the root of 1 + x^2 diverges from beyond 1: x becomes -x^3."""

    def function(x, exact, curvature):
        length = np.sqrt(1 + x**2)
        return Quadratic(float(np.sum(length)), x / length, np.diag(length**-3.0) if curvature else None)

    found = minimize_in_trust_region(function, np.array([1.3, -1.2]), **WIDE)
    np.testing.assert_allclose(found.x, 0, atol=1e-6)
    assert found.evaluations < 15


def test_inexact_values_are_trusted_up_to_their_rounding():
    """Noise of 1e-7 in inexact values hides the last decreases; the last evaluations are exact."""
    rng = np.random.default_rng(0)
    exactness = []
    plain = bowl(np.array([1.0, 2.0]), np.array([[2.0, 0.5], [0.5, 1.0]]))

    def function(x, exact, curvature):
        exactness.append(exact)
        at = plain(x, exact, curvature)
        return at if exact else at._replace(value=at.value * (1 + 1e-7 * rng.uniform(-1, 1)))

    found = minimize_in_trust_region(function, np.zeros(2), **WIDE)
    np.testing.assert_allclose(found.x, [1, 2], rtol=1e-9)
    assert exactness == sorted(exactness)
    assert exactness[-1]
    exactness.clear()
    minimize_in_trust_region(function, np.zeros(2), **WIDE, sharpen=False, last_step=1e-3)
    assert not exactness[0]


@pytest.mark.parametrize("root", [1e-3, 0.5, 1.0, 7.0, 300.0])
@pytest.mark.parametrize("start", [0.01, 1.0, 90.0])
def test_minimize_convex_finds_any_root(root, start):
    def function(x, *_):
        return Slope(1.0, np.tanh(x - root), 1 - np.tanh(x - root) ** 2)

    found = minimize_convex(function, start, low=1e-6, high=1e4)
    assert found.x == pytest.approx(root, rel=1e-6)
    assert not found.at_bound


def test_minimize_convex_at_a_bound():
    assert minimize_convex(lambda *_: Slope(1.0, 1.0, 0.0), 1.0, low=0.1, high=9.0)[::3] == (0.1, True)
    assert minimize_convex(lambda *_: Slope(1.0, -1.0, 1.0), 1.0, low=0.1, high=9.0)[::3] == (9.0, True)


@pytest.mark.parametrize("where", [1e-3, 1e-2, 3.0, 7e5])
def test_minimize_convex_halves_the_bracket_where_newton_steps_are_short(where):
    """The curvature claims to be large, so that each of Newton's steps changes x by a thousandth."""
    evaluations = []

    def flat(x, *_):
        evaluations.append(x)
        return Slope(1.0, 1.0 if x > where else -1.0, 1000 / x)

    root = minimize_convex(flat, 1.0, low=1e-4, high=1e6)
    assert root.x == pytest.approx(where, rel=1e-4)
    assert not root.at_bound
    assert len(evaluations) < 100


def test_minimize_convex_reaches_a_bound_where_newton_steps_are_short():
    assert minimize_convex(lambda *_: Slope(1.0, -1.0, 100.0), 1.0, low=0.1, high=1e9)[::3] == (1e9, True)
    assert minimize_convex(lambda *_: Slope(1.0, 1.0, 100.0), 1.0, low=1e-9, high=9.0)[::3] == (1e-9, True)


def test_minimizers_say_when_they_fail():
    with pytest.raises(RuntimeError, match="the function to be minimized is not finite at 1"):
        minimize_convex(lambda *_: Slope(1.0, np.nan, np.nan), 1.0, low=0.1, high=9.0)

    def wrong(x, *_):
        """Values that rise where the gradient says they fall."""
        return Quadratic(1 + float(np.sum(x)), -np.ones(2), np.eye(2))

    with pytest.raises(RuntimeError, match=r"no minimum found in .* evaluations; the last step had size"):
        minimize_in_trust_region(wrong, np.zeros(2), low=np.full(2, -9.0), high=np.full(2, 9.0))


def test_trust_region_on_a_curved_valley_and_at_a_bound():
    def rosenbrock(x, *_):
        a, b = x
        value = (1 - a) ** 2 + 100 * (b - a * a) ** 2
        gradient = np.array([-2 * (1 - a) - 400 * a * (b - a * a), 200 * (b - a * a)])
        return Quadratic(value, gradient, np.array([[2 - 400 * (b - 3 * a * a), -400 * a], [-400 * a, 200.0]]))

    start = np.array([-1.2, 1.0])
    free = minimize_in_trust_region(rosenbrock, start, low=np.full(2, -9.0), high=np.full(2, 9.0))
    np.testing.assert_allclose(free.x, 1, rtol=1e-6)
    assert not free.at_bound
    held = minimize_in_trust_region(rosenbrock, start, low=np.full(2, -9.0), high=np.array([0.5, 9.0]))
    np.testing.assert_allclose(held.x, [0.5, 0.25], rtol=1e-6)
    assert held.at_bound


def test_hitting_the_optimum_exactly_ends_the_search():
    found = minimize_convex(lambda x, *_: Slope(1.0, x - 2.0, 1.0), 2.0, low=0.1, high=9.0)
    assert found.x == 2.0
    assert found.evaluations <= 3
    flat = minimize_convex(lambda *_: Slope(1.0, 0.0, 1.0), 0.3, low=0.1, high=9.0)
    assert flat.x == 0.3
