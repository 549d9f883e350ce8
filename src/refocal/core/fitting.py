"""The maximum-likelihood temperature, and focal temperature, of labelled logits."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from refocal.core.descent import Minimum, Quadratic, Root, Slope, convex_minimum, trust_region_minimum
from refocal.core.focal_likelihood import focal_likelihood
from refocal.core.focal_masses import Parameters, Ranked
from refocal.core.likelihood import Labelled, temperature_likelihood

# beta = 1/T times the scale of the logits stays within these: beyond, probabilities are uniform or one-hot
_LEAST_SCALED_BETA, _LARGEST_SCALED_BETA = 1e-4, 1e4
GAMMA_BOUNDS = (-0.97, 50.0)  # where the map is tested against exact arithmetic

# a first guess comes from about so many of the rows, where there are at least four times as many
_ROWS_FOR_A_GUESS = 512
_ROWS_FOR_A_FOCAL_GUESS = 4096


class Temperature(NamedTuple):
    """A fitted inverse temperature."""

    beta: float
    nll: float
    relative_error: float  # standard error of log T; infinite where the data do not determine T
    at_bound: bool
    evaluations: int


def fit_temperature(data: Labelled, *, exact: bool = False) -> Temperature:
    """The inverse temperature with the least NLL; 1 where the logits of each row are all equal.

    Args:
        data: The logits and labels.
        exact: Whether the NLL has to be in float64 although the logits are not. It makes a difference of about 1e-8
            to the temperature, less than the rounding of the logits.
    """
    scale = data.scale
    if not scale > 0:
        return Temperature(1.0, math.log(data.logits.shape[1]), math.inf, False, 0)
    low, high = _LEAST_SCALED_BETA / scale, _LARGEST_SCALED_BETA / scale
    start = 2 * math.log(data.logits.shape[1]) / scale
    if len(data.logits) >= 4 * _ROWS_FOR_A_GUESS:
        guess = _descend(
            data.thin(len(data.logits) // _ROWS_FOR_A_GUESS), start, low, high, last_step=0.05, sharpen=False
        )
        start = start if guess.at_bound else guess.x
    root = _descend(data, start, low, high, last_step=1e-5 if exact else 1e-3, sharpen=exact)
    information = root.x**2 * root.curvature
    error = math.inf if root.at_bound else 1 / math.sqrt(information * data.samples)
    return Temperature(root.x, root.value, error, root.at_bound, root.evaluations)


def _descend(data: Labelled, start: float, low: float, high: float, *, last_step: float, sharpen: bool) -> Root:
    def nll(beta: float, exact: bool, curvature: bool) -> Slope:
        return temperature_likelihood(data, beta, exact=exact, curvature=curvature)

    return convex_minimum(nll, start, low=low, high=high, last_step=last_step, sharpen=sharpen)


class FocalTemperature(NamedTuple):
    """A fitted focal parameter and inverse temperature."""

    gamma: float
    beta: float
    nll: float
    gamma_error: float  # standard errors of gamma and of log T; infinite where the data do not determine them
    relative_error: float
    at_bound: bool
    evaluations: int


def fit_focal_temperature(data: Labelled) -> FocalTemperature:
    """The (gamma, beta) with the least NLL that a descent from temperature scaling reaches; never worse than that.

    The NLL is convex in beta for gamma = 0 but not in gamma; where the descent ends at a bound, it starts again
    from the other side, and the better end is taken.
    """
    single = data.logits.dtype == np.float32
    plain = fit_temperature(data, exact=not single)
    if plain.evaluations == 0 or plain.at_bound:  # nothing more can be learned than that
        return FocalTemperature(0.0, plain.beta, plain.nll, math.inf, math.inf, plain.at_bound, plain.evaluations)
    scale = data.scale
    low = np.array([math.log1p(GAMMA_BOUNDS[0]), math.log(_LEAST_SCALED_BETA / scale)])
    high = np.array([math.log1p(GAMMA_BOUNDS[1]), math.log(_LARGEST_SCALED_BETA / scale)])

    def descend(rows: Ranked, start: np.ndarray) -> Minimum:
        def nll(point: np.ndarray, exact: bool, curvature: bool) -> Quadratic:
            """In log(1 + gamma) and log beta, which no step can take out of their domain."""
            gamma, beta = math.expm1(point[0]), math.exp(point[1])
            at = focal_likelihood(rows, Parameters(gamma, beta), exact=exact, curvature=curvature)
            factor = np.array([1 + gamma, beta])
            gradient = factor * at.gradient
            hessian = None if at.hessian is None else at.hessian * np.outer(factor, factor) + np.diag(gradient)
            return Quadratic(at.value, gradient, hessian)

        # a last step of 1e-3 leaves an error of about 1e-6, as the rounding of single precision does
        last_step = 1e-3 if single else 1e-5
        return trust_region_minimum(nll, start, low=low, high=high, last_step=last_step, sharpen=not single)

    ranked = Ranked.of(data)
    start = np.array([0.0, math.log(plain.beta)])
    if len(data.logits) >= 4 * _ROWS_FOR_A_FOCAL_GUESS:
        guess = descend(ranked.thin(len(data.logits) // _ROWS_FOR_A_FOCAL_GUESS), start)
        start = start if guess.at_bound else guess.x
    best = descend(ranked, start)
    evaluations = plain.evaluations + best.evaluations
    if best.at_bound:
        # gamma steepens the map about as 1 + gamma, hence the start on the other side
        side = -1.0 if best.x[0] > 0 else 1.0
        other = descend(ranked, np.clip([side, math.log(plain.beta) - 0.7 * side], low, high))
        evaluations += other.evaluations
        best = other if other.value < best.value else best
    gamma, beta = math.expm1(best.x[0]), math.exp(best.x[1])
    if not _is_better(ranked, gamma, beta, gain=plain.nll - best.value, plain=plain):
        return FocalTemperature(0.0, plain.beta, plain.nll, math.inf, plain.relative_error, False, evaluations)
    errors = np.full(2, math.inf)
    if not best.at_bound and np.all(np.linalg.eigvalsh(best.hessian) > 0):
        errors = np.sqrt(np.diag(np.linalg.inv(best.hessian)) / data.samples)
    return FocalTemperature(
        gamma, beta, best.value, float((1 + gamma) * errors[0]), float(errors[1]), best.at_bound, evaluations
    )


def _is_better(ranked: Ranked, gamma: float, beta: float, *, gain: float, plain: Temperature) -> bool:
    """Whether (gamma, beta) is no worse than temperature scaling; a gain that could be rounding is computed again."""
    if abs(gain) < 1e-6 * abs(plain.nll):
        gain = temperature_likelihood(ranked.data, plain.beta, curvature=False).value
        gain -= focal_likelihood(ranked, Parameters(gamma, beta), curvature=False).value
    return gain >= 0
