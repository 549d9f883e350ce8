"""The solver that inverts the posterior map.

Given the posterior eta, the minimizer q solves h(q_i) = lambda w_i eta_i with sum q_i = 1. Each row has one scalar
unknown, lambda. It is represented by the top class t (the largest w_i eta_i): for a trial log-odds x of class t, h(q_t)
gives lambda, and each other class follows from its own equation. The remaining equation is

    c(x) = log sum_{j != t} q_j(x) - log(1 - q_t(x)) = 0.

One Newton step on all of these equations costs one evaluation of h per class. The unknowns are the log-odds of class t
and u_j = log(-log(1 - q_j)) of the others. In these variables the equations are close to linear at both ends, and no q
saturates. Gradients come from the implicit function theorem: the solution is treated as a constant, and two Newton
steps from it carry the derivatives (exact to third order, because a Newton step doubles the order).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from refocal._arrays import (
    Array,
    ArrayT,
    Namespace,
    bounded_exp,
    can_steer,
    compile_once,
    device,
    is_traced,
    is_transformed,
    loop_while,
    namespace,
    stop_gradient,
    unwrap,
    where_any,
)
from refocal.maps.focal import focus_of_top
from refocal.maps.posterior import MapSettings
from refocal.maps.simplex import log_or_minus_inf, softplus

_MAX_EVALUATIONS = 56  # of h per class during the search; two more steps follow
_SMALL = -40.0  # for u below this, -log(1 - q) = q to the last digit
_LARGEST_U = math.log(30)  # no class below the top comes this close to q = 1


class Solution(NamedTuple):
    """The minimizer: q, log q and log(1 - q) of each class."""

    q: Any
    log_q: Any
    log_complement: Any


class _Problem(NamedTuple):
    """The equations of a batch of rows; the top class of a row has the largest target."""

    is_top: Array  # (..., K)
    is_free: Array  # (..., K) classes with a positive target, except the top class
    log_target: Array  # (..., K) log(w_j eta_j / (w_t eta_t)) of the free classes, 0 elsewhere
    zero_target: Array  # (..., K) w_j eta_j / (w_t eta_t) if it is 0: it carries only a derivative
    settings: MapSettings
    xp: Namespace


def search(posterior: Array, settings: MapSettings, *, in_logs: bool) -> Array:
    """Find the minimizer for rows of constants; return the unknowns of the equations, packed in one array.

    Inside a transformation of JAX, where no error can be raised, a row that did not converge is NaN.
    """
    if is_traced(posterior):
        return compile_once(_search_traced)(posterior, settings, in_logs)
    return _search(_pose(posterior, settings, in_logs=in_logs, xp=namespace(posterior)))


def solve(posterior: Array, settings: MapSettings, *, in_logs: bool = False, xp: Namespace) -> Solution:
    """Find the minimizer of the expected loss for each row of `posterior` (or of its logarithm), differentiably."""
    problem = _pose(posterior, settings, in_logs=in_logs, xp=xp)
    if math.prod(posterior.shape) == 0:
        return Solution(posterior, posterior, posterior)
    packed = search(stop_gradient(posterior), settings, in_logs=in_logs)
    top = xp.sum(xp.where(problem.is_top, packed, 0.0), axis=-1, keepdims=True)
    rest = xp.where(problem.is_free, packed, -1.0)
    for _ in range(2):
        step = _newton_step(problem, top, rest, _log_h_of_top(problem, top))
        top = top + step.top
        rest = rest + xp.where(problem.is_free, (step.residual + step.slope_top * step.top) / step.slope, 0.0)
    return _assemble(problem, top, rest)


def _pose(posterior: Array, settings: MapSettings, *, in_logs: bool, xp: Namespace) -> _Problem:
    pose = _pose_logs if in_logs else _pose_probabilities
    return pose(posterior, settings.like(posterior, xp=xp), xp=xp)


def _pose_probabilities(posterior: Array, settings: MapSettings, *, xp: Namespace) -> _Problem:
    target = posterior
    if settings.label_smoothing:
        target = (1 - settings.label_smoothing) * target + settings.label_smoothing / target.shape[-1]
    problem = _pose_logs(log_or_minus_inf(target, xp=xp), settings, xp=xp)
    top = xp.sum(xp.where(problem.is_top, target, 0.0), axis=-1, keepdims=True)
    zero_scale = -xp.log(top)
    if settings.log_weight is not None:
        top_weight = xp.sum(xp.where(problem.is_top, settings.log_weight, 0.0), axis=-1, keepdims=True)
        zero_scale = zero_scale + (settings.log_weight - top_weight)
    return problem._replace(zero_target=xp.where(target > 0, 0.0, target * bounded_exp(zero_scale, xp=xp)))


def _pose_logs(log_target: Array, settings: MapSettings, *, xp: Namespace) -> _Problem:
    """Set up the equations from the logarithm of the posterior, without label smoothing."""
    if settings.log_weight is not None:
        log_target = log_target + settings.log_weight
    top_index = xp.argmax(log_target, axis=-1, keepdims=True)
    is_top = xp.arange(log_target.shape[-1], device=device(log_target)) == top_index
    is_free = (log_target > -xp.inf) & ~is_top
    relative = xp.where(is_free, log_target, 0.0) - xp.take_along_axis(log_target, top_index, axis=-1)
    log_target = xp.where(is_free, relative, 0.0)
    return _Problem(is_top, is_free, log_target, xp.zeros_like(log_target), settings, xp)


class _NewtonStep(NamedTuple):
    """One linearization of the equations: their residuals, and the step that solves it."""

    top: Array  # (..., 1) step of the top class's log-odds
    violation: Array  # (..., 1) c(x), corrected for the residuals
    residual: Array  # (..., K) of each free class's own equation
    slope: Array  # (..., K) d log h_j / d u_j
    log_h_top: Array  # (..., 1)
    slope_top: Array  # (..., 1) d log h_t / d x


def _newton_step(problem: _Problem, top: Array, rest: Array, of_top: tuple[Array, Array]) -> _NewtonStep:
    """Compute the Newton step from `top` and `rest`; `of_top` is the result of `_log_h_of_top` for `top`."""
    xp = problem.xp
    log_h_top, slope_top = of_top
    parts = _Parts.of(rest, xp=xp)
    log_h, slope = _log_h_of_rest(problem, parts)
    residual = xp.where(problem.is_free, log_h_top + problem.log_target - log_h, 0.0)
    log_q = xp.where(problem.is_free, parts.log_q, -xp.inf)
    largest = stop_gradient(xp.max(log_q, axis=-1, keepdims=True))
    largest = xp.where(xp.isinf(largest), 0.0, largest)  # no free class: the row is one-hot
    mass = xp.where(
        problem.is_free, xp.exp(log_q - largest), problem.zero_target * bounded_exp(log_h_top - largest, xp=xp)
    )
    total = xp.sum(mass, axis=-1, keepdims=True)
    alone = ~xp.any(problem.is_free, axis=-1, keepdims=True)
    safe_total = xp.where(alone, 1.0, total)
    violation = largest + xp.log(safe_total) + softplus(top, xp=xp)
    # contribution of class j to the change of the violation, per unit of log h_j
    share = xp.where(problem.is_free, mass / safe_total * parts.growth / slope, 0.0)
    violation = violation + xp.sum(share * residual, axis=-1, keepdims=True)
    step = -violation / (xp.exp(-softplus(-top, xp=xp)) + slope_top * xp.sum(share, axis=-1, keepdims=True))
    return _NewtonStep(xp.where(alone, 0.0, step), violation, residual, slope, log_h_top, slope_top)


class _Parts(NamedTuple):
    """Quantities of classes given by u = log v, with v = -log(1 - q)."""

    v: Array
    log_q: Array
    odds: Array  # q / (1 - q) = expm1(v)
    growth: Array  # v / expm1(v) = d log q / d u

    @classmethod
    def of(cls, u: Array, *, xp: Namespace) -> _Parts:
        small = u < _SMALL
        v = xp.exp(xp.where(small, _SMALL, u))
        odds = xp.expm1(v)
        above_half = v > math.log(2)
        log_q = xp.where(
            above_half,
            xp.log1p(-xp.exp(-xp.where(above_half, v, 1.0))),
            xp.log(-xp.expm1(-xp.where(above_half, 1.0, v))),
        )
        growth = xp.where(small, 1.0, v / odds)
        v = xp.where(small, xp.exp(u), v)
        return cls(v, xp.where(small, u, log_q), xp.where(small, v, odds), growth)


def _log_h_of_rest(problem: _Problem, parts: _Parts) -> tuple[Array, Array]:
    """Compute log h and its derivative in u, for the classes below the top."""
    xp, gamma = problem.xp, problem.settings.gamma
    log_h = parts.log_q + gamma * parts.v
    slope = parts.growth + gamma * parts.v
    if not problem.settings.detached:
        ratio = -parts.odds * parts.log_q  # s(q)
        log_h = log_h - xp.log1p(gamma * ratio)
        slope = slope - gamma * parts.v * ((1 + parts.odds) * -parts.log_q - 1) / (1 + gamma * ratio)
    return log_h, slope


def log_h_of_top(top: ArrayT, settings: MapSettings, *, xp: Namespace) -> tuple[ArrayT, ArrayT]:
    """Compute log h and its derivative in the log-odds, for a top class with the gamma of `settings`."""
    gamma = settings.gamma
    log_q, log_complement = -softplus(-top, xp=xp), -softplus(top, xp=xp)
    log_h = log_q - gamma * log_complement
    slope = xp.exp(log_complement) + gamma * xp.exp(log_q)
    if not settings.detached:
        focus, ratio_above_q = focus_of_top(xp.exp(-top), gamma=gamma, gamma_plus_one=settings.gamma_plus_one, xp=xp)
        log_h = log_h - xp.log(focus)
        slope = slope - gamma * ratio_above_q / focus
    return log_h, slope


def _log_h_of_top(problem: _Problem, top: Array) -> tuple[Array, Array]:
    gamma, gamma_plus_one = problem.settings.at(problem.is_top, xp=problem.xp)
    return log_h_of_top(top, problem.settings._replace(gamma=gamma, gamma_plus_one=gamma_plus_one), xp=problem.xp)


class _Iterate(NamedTuple):
    """Where the search stands: its unknowns, bounds of the log-odds, and the length of its last step."""

    top: Array  # (..., 1) log-odds of the top class
    of_top: tuple[Array, Array]  # (..., 1) log h of the top class and its slope
    rest: Array  # (..., K) u of the other classes
    low: Array  # (..., 1)
    high: Array  # (..., 1)
    stride: Array  # (..., 1)

    @classmethod
    def first(cls, problem: _Problem) -> _Iterate:
        top, low, high = _start_top(problem)
        of_top = _log_h_of_top(problem, top)
        rest = _start_rest(problem, of_top[0])
        return cls(top, of_top, rest, low, high, problem.xp.full_like(top, problem.xp.inf))

    def pack(self, problem: _Problem) -> Array:
        packed: Array = problem.xp.where(problem.is_top, self.top, self.rest)
        return packed


class _Proposal(NamedTuple):
    """The Newton step from an iterate, and how far its rows are from the solution."""

    step: _NewtonStep
    off: Array  # (..., 1) the largest residual of a row, less its rounding error
    converged: Array  # (..., 1)


def _propose(problem: _Problem, now: _Iterate) -> _Proposal:
    xp = problem.xp
    tolerance, rounding_unit = xp.finfo(now.rest.dtype).eps ** 0.5, 4 * xp.finfo(now.rest.dtype).eps
    step = _newton_step(problem, now.top, now.rest, now.of_top)
    # Residuals are differences of numbers that can be large; no step removes their rounding error. A class held near
    # q = 1 counts as solved, because the sum exceeds 1 in any case.
    rounding = rounding_unit * (xp.abs(problem.log_target) + xp.abs(step.log_h_top))
    off = xp.where((now.rest >= _LARGEST_U) & (step.residual > 0), 0.0, xp.abs(step.residual) - rounding)
    off = xp.max(off, axis=-1, keepdims=True)
    converged = (off < tolerance) & (xp.abs(step.top) < tolerance * (1 + xp.abs(now.top)))
    return _Proposal(step, off, converged)


def _move(problem: _Problem, now: _Iterate, proposal: _Proposal) -> _Iterate:
    """Take the step, or halve the interval."""
    xp = problem.xp
    step, off, _ = proposal
    certain = off < 0.1 * xp.abs(step.violation)  # the residuals cannot flip the sign of c
    low = xp.where(certain & (step.violation < 0), xp.maximum(now.low, now.top), now.low)
    high = xp.where(certain & (step.violation > 0), xp.minimum(now.high, now.top), now.high)
    settled = off < 0.5
    proposed = now.top + step.top
    outside = (proposed < low) | (proposed > high)
    slow = xp.abs(step.top) > 0.5 * now.stride  # if Newton steps do not shrink, halve the interval
    proposed = xp.where((outside | slow) & (xp.abs(step.top) > 1e-3), (low + high) / 2, proposed)
    top = xp.where(settled, proposed, now.top)
    stride = xp.where(settled, xp.abs(top - now.top), now.stride)
    of_top = _log_h_of_top(problem, top)
    change = of_top[0] - step.log_h_top
    rest = xp.minimum(now.rest + (step.residual + change) / step.slope, xp.full_like(now.rest, _LARGEST_U))
    # the equations are linear only locally: after a long step, restart the other classes
    is_long = xp.abs(change) > 1
    rest = where_any(is_long, lambda: _start_rest(problem, of_top[0]), rest, xp=xp)
    return _Iterate(top, of_top, rest, low, high, stride)


def _search(problem: _Problem) -> Array:
    """Solve for the log-odds of the top class and u of the others, packed in one array, for rows of constants.

    The search ends when all rows have converged. Under `torch.func`, if the values cannot be read or are on a GPU
    (whose steps may be captured as a graph), it always takes the maximum number of evaluations.
    """
    xp = problem.xp
    transformed = is_transformed(problem.log_target)
    now = _Iterate.first(problem)
    for _ in range(_MAX_EVALUATIONS):
        proposal = _propose(problem, now)
        if can_steer(proposal.converged) and bool(xp.all(unwrap(proposal.converged))):
            return now.pack(problem)
        now = _move(problem, now, proposal)
    if transformed:
        return now.pack(problem)
    step = proposal.step.top
    if not bool(xp.all(xp.isfinite(step))):
        msg = "the focal minimizer does not exist: the posterior contains NaN or infinite values"
        raise RuntimeError(msg)
    msg = (
        f"the focal minimizer did not converge after {_MAX_EVALUATIONS} evaluations "
        f"(last step {float(xp.max(xp.abs(step))):.1e}); use a smaller gamma or float64"
    )
    raise RuntimeError(msg)


def _search_traced(posterior: Array, settings: MapSettings, in_logs: bool) -> Array:
    """Do what `_search` does as one loop of JAX, on the device."""
    xp = namespace(posterior)
    problem = _pose(posterior, settings, in_logs=in_logs, xp=xp)

    def is_unfinished(state: tuple[Any, _Iterate, _Proposal]) -> Any:
        evaluations, _, proposal = state
        done = proposal.converged | ~xp.isfinite(proposal.step.top)
        return (evaluations < _MAX_EVALUATIONS) & ~xp.all(done)

    def advance(state: tuple[Any, _Iterate, _Proposal]) -> tuple[Any, _Iterate, _Proposal]:
        evaluations, now, proposal = state
        moved = _move(problem, now, proposal)
        return evaluations + 1, moved, _propose(problem, moved)

    first = _Iterate.first(problem)
    _, last, proposal = loop_while(is_unfinished, advance, (1, first, _propose(problem, first)))
    packed: Array = xp.where(proposal.converged, last.pack(problem), xp.nan)
    return packed


def _start_top(problem: _Problem) -> tuple[Array, Array, Array]:
    """Guess the log-odds of the top class, and bound them from below and above."""
    xp, settings = problem.xp, problem.settings
    _, gamma_plus_one = settings.at(problem.is_top, xp=xp)
    log_target = xp.where(problem.is_free, problem.log_target, -xp.inf)
    largest = xp.max(log_target, axis=-1, keepdims=True)
    largest = xp.where(xp.isinf(largest), 0.0, largest)
    against = xp.sum(xp.exp(log_target - largest), axis=-1, keepdims=True)
    posterior_log_odds = -largest - xp.log(xp.where(against == 0, 1.0, against))
    # With one gamma, 1/K <= q_t, and q_t <= max(eta_t, 1/2) by Charoenphakdee et al. (2021), Thm. 8. With several, h of
    # a class with q <= 1/2 differs from q by at most a factor 2^gamma and phi, which shift the log-odds by gamma log 2
    # and by less than 2.
    spread = 0.0 if settings.one_gamma else 2.0 + 0.7 * xp.max(settings.gamma)
    low = xp.zeros_like(posterior_log_odds) - math.log(problem.is_top.shape[-1] - 1) - spread - 1e-6
    high = xp.maximum(posterior_log_odds, xp.zeros_like(low)) + spread + 1e-6
    # if q_t is near 1, log h_t = gamma x - log(1 + gamma), and the others share 1 - q_t = e^-x
    focus = 0.0 * low if settings.detached else xp.log(gamma_plus_one + 0.0 * low)
    guess = (focus + posterior_log_odds) / gamma_plus_one
    return xp.minimum(xp.maximum(guess, low), high), low, high


def _start_rest(problem: _Problem, log_h_top: Array) -> Array:
    """Guess u of the other classes: solve u + (gamma - 1/2) e^u = log h + log(1 + gamma) from above."""
    xp, gamma = problem.xp, problem.settings.gamma
    target = log_h_top + problem.log_target
    if not problem.settings.detached:
        target = target + xp.log1p(gamma + 0.0 * target)
    steepness = xp.maximum(gamma - 0.5 + 0.0 * target, xp.full_like(target, 1e-3))
    # Both are upper bounds of the solution (the second one if the solution is above -10). From an upper bound, Newton's
    # method for a convex function descends without overshooting.
    bound = xp.log((xp.maximum(target, xp.zeros_like(target)) + 10) / steepness)
    bound = xp.minimum(bound, xp.full_like(target, _LARGEST_U))
    u = xp.minimum(target, bound)
    for _ in range(4):
        pull = steepness * xp.exp(u)
        u = xp.minimum(u - (u + pull - target) / (1 + pull), bound)
    return xp.where(problem.is_free, u, -1.0)


def _assemble(problem: _Problem, top: Array, rest: Array) -> Solution:
    xp, is_top, is_free = problem.xp, problem.is_top, problem.is_free
    gamma_top, _ = problem.settings.at(is_top, xp=xp)
    alone = ~xp.any(is_free, axis=-1, keepdims=True)
    parts = _Parts.of(rest, xp=xp)
    log_h_top, _ = _log_h_of_top(problem, top)
    # h is infinite at q = 1, unless gamma = 0
    log_h_top = xp.where(alone, xp.where(gamma_top + 0.0 * top > 0, xp.inf, xp.zeros_like(top)), log_h_top)
    # a class with target 0 has q = 0, and its derivative is that of h^-1 at 0, which is 1
    zero = problem.zero_target * bounded_exp(log_h_top, xp=xp)
    zero_sum = xp.sum(zero, axis=-1, keepdims=True)
    return Solution(
        xp.where(
            is_top,
            xp.where(alone, 1 - zero_sum, xp.exp(-softplus(-top, xp=xp))),
            xp.where(is_free, -xp.expm1(-parts.v), zero),
        ),
        xp.where(
            is_top,
            xp.where(alone, xp.log1p(-zero_sum), -softplus(-top, xp=xp)),
            xp.where(is_free, parts.log_q, -xp.inf),
        ),
        xp.where(is_top, xp.where(alone, -xp.inf, -softplus(top, xp=xp)), xp.where(is_free, -parts.v, 0.0)),
    )
