"""Maximum-likelihood fits of temperature scaling and of focal temperature scaling to labeled logits."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np

from refocal.calibrators.fit.descent import Minimum, Quadratic, Root, Slope, minimize_convex, minimize_in_trust_region
from refocal.calibrators.fit.temperature_likelihood import FocalNLL, LabeledLogits, Scales

# Bounds of beta = 1/T times a distance between logits. Beyond them, probabilities are uniform or one-hot.
_LEAST_SCALED_BETA, _LARGEST_SCALED_BETA = 1e-4, 1e4
_TYPICAL_LEAD = 1.5  # distance between the two largest logits after calibration, for a first guess
GAMMA_BOUNDS = (-0.97, 50.0)  # the range in which the map is tested against exact arithmetic

# The first guess comes from about this many rows.
_ROWS_FOR_A_GUESS = 512
_ROWS_FOR_A_FOCAL_GUESS = 1024


class Likelihood(Protocol):
    """What a fit needs from labeled logits. They are `LabeledLogits` in memory, or parts of them in files."""

    @property
    def classes(self) -> int:
        """The number of classes."""

    @property
    def single(self) -> bool:
        """Whether the logits are float32."""

    @property
    def samples(self) -> float:
        """The number of samples: rows, or the sum of their weights."""

    @property
    def scales(self) -> Scales:
        """Typical distances between the logits of a row."""

    def sample(self, size: int) -> LabeledLogits | None:
        """About `size` rows for a first guess; None if there are too few rows for this to pay."""

    def temperature_nll(self, beta: float, *, exact: bool = True, curvature: bool = True) -> Slope:
        """Evaluate the NLL of temperature scaling; see `temperature_likelihood`."""

    def prepare_focal_nll(self) -> FocalNLL:
        """Prepare the NLL of focal temperature scaling for many evaluations; see `focal_likelihood`."""


class Temperature(NamedTuple):
    """A fitted inverse temperature."""

    beta: float
    nll: float
    relative_error: float  # standard error of log T; infinite if the data do not determine T
    at_bound: bool
    evaluations: int


def fit_temperature(data: Likelihood, *, exact: bool = False, start: float | None = None) -> Temperature:
    """Find the inverse temperature with the smallest NLL; 1 if the logits of each row are all equal.

    Args:
        data: The logits and labels.
        exact: Whether to compute the NLL in float64 even for float32 logits. This changes the temperature by about
            1e-8, which is less than the rounding of the logits.
        start: A first guess; None to make one from a sample.
    """
    if not data.scales.spread:
        return Temperature(1.0, math.log(data.classes), math.inf, False, 0)
    low, high = bound_beta(data.scales)
    if start is None:
        start = guess_beta(data.scales)
        some = data.sample(_ROWS_FOR_A_GUESS)
        if some is not None:
            guess = _descend(some, start, low, high, last_step=0.05, sharpen=False)
            start = start if guess.at_bound else guess.x
    start = min(max(start, low), high)
    root = _descend(data, start, low, high, last_step=1e-5 if exact else 1e-3, sharpen=exact)
    information = root.x**2 * root.curvature
    error = math.inf if root.at_bound else 1 / math.sqrt(information * data.samples)
    return Temperature(root.x, root.value, error, root.at_bound, root.evaluations)


def bound_beta(scales: Scales) -> tuple[float, float]:
    """Return the inverse temperatures below which all probabilities are equal, and above which they are one-hot."""
    return _LEAST_SCALED_BETA / scales.spread, _LARGEST_SCALED_BETA / scales.lead


def guess_beta(scales: Scales) -> float:
    """Guess an inverse temperature from medians alone, which a few rows that are far off do not change."""
    return _TYPICAL_LEAD / scales.lead


def _descend(data: Likelihood, start: float, low: float, high: float, *, last_step: float, sharpen: bool) -> Root:
    def nll(beta: float, exact: bool, curvature: bool) -> Slope:
        return data.temperature_nll(beta, exact=exact, curvature=curvature)

    return minimize_convex(nll, start, low=low, high=high, last_step=last_step, sharpen=sharpen)


class FocalTemperature(NamedTuple):
    """A fitted focal parameter and inverse temperature."""

    gamma: float
    beta: float
    nll: float
    gamma_error: float  # standard errors of gamma and of log T; infinite if the data do not determine them
    relative_error: float
    at_bound: bool
    evaluations: int


def fit_focal_temperature(
    data: Likelihood, *, plain: Temperature | None = None, start: tuple[float, float] | None = None
) -> FocalTemperature:
    """Find the (gamma, beta) with the smallest NLL that a descent from temperature scaling reaches.

    The result is never worse than temperature scaling. The NLL is convex in beta for gamma = 0, but not in gamma. If
    the descent ends at a bound, a second one starts from the other side, and the better end is taken.

    Args:
        data: The logits and labels.
        plain: The fit of temperature scaling; None to make it.
        start: A first guess of (gamma, beta); None for temperature scaling, improved on a sample.
    """
    single = data.single
    if plain is None:
        plain = fit_temperature(data, exact=not single)
    if plain.evaluations == 0 or plain.at_bound:  # gamma cannot be learned either
        return FocalTemperature(0.0, plain.beta, plain.nll, math.inf, math.inf, plain.at_bound, plain.evaluations)
    low, high = (
        np.array([math.log1p(gamma), math.log(beta)])
        for gamma, beta in zip(GAMMA_BOUNDS, bound_beta(data.scales), strict=True)
    )

    def descend(focal: FocalNLL, start: np.ndarray) -> Minimum:
        def nll(point: np.ndarray, exact: bool, curvature: bool) -> Quadratic:
            """The NLL in log(1 + gamma) and log beta, so that no step leaves the domain."""
            gamma, beta = math.expm1(point[0]), math.exp(point[1])
            at = focal(gamma, beta, exact=exact, curvature=curvature)
            factor = np.array([1 + gamma, beta])
            gradient = factor * at.gradient
            hessian = None if at.hessian is None else at.hessian * np.outer(factor, factor) + np.diag(gradient)
            return Quadratic(at.value, gradient, hessian)

        # A last step of 1e-3 leaves an error of about 1e-6, like the rounding of float32.
        last_step = 1e-3 if single else 1e-5
        return minimize_in_trust_region(nll, start, low=low, high=high, last_step=last_step, sharpen=not single)

    focal = data.prepare_focal_nll()
    first = np.array([0.0, math.log(plain.beta)])
    if start is not None:
        first = np.clip([math.log1p(start[0]), math.log(start[1])], low, high)
    elif (some := data.sample(_ROWS_FOR_A_FOCAL_GUESS)) is not None:
        guess = descend(some.prepare_focal_nll(), first)
        first = first if guess.at_bound else guess.x
    best = descend(focal, first)
    evaluations = plain.evaluations + best.evaluations
    if best.at_bound:
        # gamma steepens the map about as much as a factor 1 + gamma; the second start makes up for this with beta.
        side = -1.0 if best.x[0] > 0 else 1.0
        other = descend(focal, np.clip([side, math.log(plain.beta) - 0.7 * side], low, high))
        evaluations += other.evaluations
        best = other if other.value < best.value else best
    gamma, beta = math.expm1(best.x[0]), math.exp(best.x[1])
    if not _is_better(data, focal, best, plain):
        return FocalTemperature(0.0, plain.beta, plain.nll, math.inf, plain.relative_error, False, evaluations)
    errors = np.full(2, math.inf)
    if not best.at_bound and np.all(np.linalg.eigvalsh(best.hessian) > 0):
        errors = np.sqrt(np.diag(np.linalg.inv(best.hessian)) / data.samples)
    return FocalTemperature(
        gamma, beta, best.value, float((1 + gamma) * errors[0]), float(errors[1]), best.at_bound, evaluations
    )


def _is_better(data: Likelihood, focal: FocalNLL, found: Minimum, plain: Temperature) -> bool:
    """Whether a minimum is no worse than temperature scaling. A gain that could be rounding is computed again."""
    gain = plain.nll - found.value
    if abs(gain) < 1e-6 * abs(plain.nll):
        gain = data.temperature_nll(plain.beta, curvature=False).value
        gain -= focal(math.expm1(found.x[0]), math.exp(found.x[1]), curvature=False).value
    return gain >= 0
