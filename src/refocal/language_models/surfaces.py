"""Fits of temperature and focal temperature scaling to sums on a lattice of pairs (gamma, T).

The mean NLL is a smooth function of log(1 + gamma) and log T. A spline of degree 5 through its values on the lattice
has an error below 1e-6 near the minimum, so the minimum of the spline is that of the NLL.
"""

from __future__ import annotations

import math

import numpy as np

from refocal.calibrators.fit.descent import Minimum, Quadratic, Slope, minimize_convex, minimize_in_trust_region
from refocal.calibrators.fit.maximum_likelihood import FocalTemperature, Temperature
from refocal.language_models.lattices import LOG_BETAS, LOG_GAMMAS, SOFTMAX_PLACE
from refocal.stats.binning import bin_sums, width_index

_FLAT = 1e-6  # if the NLL changes by less than this over all temperatures, the logits of each row are equal
_DEGREE = 5


class Surface:
    """The mean NLL as a function of (gamma, beta), beta = 1 / T, within the lattice.

    Args:
        losses: The mean NLL (gammas, betas).
        tokens: The number of tokens.
    """

    def __init__(self, losses: np.ndarray, tokens: int) -> None:
        from scipy.interpolate import RectBivariateSpline

        self._losses = losses
        self._nll = RectBivariateSpline(LOG_GAMMAS, LOG_BETAS, losses, kx=_DEGREE, ky=_DEGREE)
        self._tokens = tokens

    def fit_temperature(self) -> Temperature:
        """Find the inverse temperature with the smallest NLL; 1 if no temperature changes it."""
        plain = self._losses[SOFTMAX_PLACE[0]]
        if np.ptp(plain) < _FLAT:
            return Temperature(1.0, float(plain.mean()), math.inf, False, 0)

        def nll(beta: float, exact: bool, curvature: bool) -> Slope:  # noqa: ARG001 always both
            value, slope, bend = (self._at(0.0, math.log(beta), dy=order) for order in range(3))
            return Slope(value, slope / beta, (bend - slope) / beta**2)

        root = minimize_convex(nll, 1.0, low=math.exp(LOG_BETAS[0]), high=math.exp(LOG_BETAS[-1]))
        information = root.x**2 * root.curvature * self._tokens
        known = not root.at_bound and information > 0
        value = self._at(0.0, math.log(root.x))
        return Temperature(
            root.x, value, 1 / math.sqrt(information) if known else math.inf, root.at_bound, root.evaluations
        )

    def fit_focal_temperature(self, plain: Temperature) -> FocalTemperature:
        """Find the (gamma, beta) with the smallest NLL that a descent from temperature scaling reaches.

        The rules are those of `refocal.calibrators.fit.maximum_likelihood.fit_focal_temperature`.
        """
        if plain.evaluations == 0 or plain.at_bound:  # gamma cannot be learned either
            return FocalTemperature(0.0, plain.beta, plain.nll, math.inf, math.inf, plain.at_bound, plain.evaluations)
        best = self._descend(np.array([0.0, math.log(plain.beta)]))
        evaluations = plain.evaluations + best.evaluations
        if best.at_bound:
            side = -0.5 if best.x[0] > 0 else 0.5
            other = self._descend(np.array([side, math.log(plain.beta) - 0.7 * side]))
            evaluations += other.evaluations
            best = other if other.value < best.value else best
        log_gamma, log_beta = best.x
        nll = self._at(log_gamma, log_beta)
        if nll > plain.nll:
            return FocalTemperature(0.0, plain.beta, plain.nll, math.inf, plain.relative_error, False, evaluations)
        gamma, errors = math.expm1(log_gamma), np.full(2, math.inf)
        if not best.at_bound and np.all(np.linalg.eigvalsh(best.hessian) > 0):
            errors = np.sqrt(np.diag(np.linalg.inv(best.hessian)) / self._tokens)
        gamma_error, relative_error = float((1 + gamma) * errors[0]), float(errors[1])
        return FocalTemperature(gamma, math.exp(log_beta), nll, gamma_error, relative_error, best.at_bound, evaluations)

    def _at(self, log_gamma: float, log_beta: float, *, dx: int = 0, dy: int = 0) -> float:
        """The NLL, or a derivative of it in log(1 + gamma) and log beta."""
        return float(self._nll.ev(log_gamma, log_beta, dx=dx, dy=dy))

    def _descend(self, start: np.ndarray) -> Minimum:
        low, high = (np.array([LOG_GAMMAS[end], LOG_BETAS[end]]) for end in (0, -1))

        def nll(point: np.ndarray, exact: bool, curvature: bool) -> Quadratic:  # noqa: ARG001 always both
            gradient = np.array([self._at(*point, dx=1), self._at(*point, dy=1)])
            mixed = self._at(*point, dx=1, dy=1)
            hessian = np.array([[self._at(*point, dx=2), mixed], [mixed, self._at(*point, dy=2)]])
            return Quadratic(self._at(*point), gradient, hessian)

        return minimize_in_trust_region(nll, np.clip(start, low, high), low=low, high=high)


def interpolate_error(groups: np.ndarray, confidences: np.ndarray, place: tuple[float, float], *, bins: int) -> float:
    """The ECE at (gamma, beta), from tokens in groups of nearly equal softmax confidence.

    The sum of the confidences of a group is a smooth function of (gamma, beta), unlike sums over bins, whose edges
    tokens cross. Each group goes to the bin of its mean confidence.

    Args:
        groups: The number of tokens and of hits of each group, (2, groups).
        confidences: The sum of the confidences of each group, (gammas, betas, groups).
        place: gamma and beta.
        bins: Number of bins.
    """
    from scipy.interpolate import make_interp_spline

    by_gamma, by_beta = (
        make_interp_spline(knots, np.eye(len(knots)), k=_DEGREE)(at)
        for knots, at in ((LOG_GAMMAS, math.log1p(place[0])), (LOG_BETAS, math.log(place[1])))
    )
    used = groups[0] > 0
    samples, hits = groups[:, used]
    mean = np.clip(np.einsum("g,b,gbk->k", by_gamma, by_beta, confidences[..., used]) / samples, 0.0, 1.0)
    return bin_sums(width_index(mean, bins=bins), mean, hits / samples, samples, size=bins).expected_calibration_error
