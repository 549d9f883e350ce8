"""Fits of temperature and focal temperature scaling to sums on a lattice of pairs (gamma, T).

The mean NLL is a smooth function of log(1 + gamma) and log T. A spline of degree 5 through its values on the lattice
has an error below 1e-6 near the minimum, so the minimum of the spline is that of the NLL.
"""

from __future__ import annotations

import math

import numpy as np

from refocal.calibrators.fit.descent import Minimum, Quadratic, Slope, minimize_convex, minimize_in_trust_region
from refocal.calibrators.fit.maximum_likelihood import FocalTemperature, Temperature
from refocal.language_models.lattices import LOG_BETAS, LOG_GAMMAS
from refocal.stats.gap_norms import calibration_error

_FLAT = 1e-6  # if the NLL changes by less than this over all temperatures, the logits of each row are equal
_PLAIN = LOG_GAMMAS.index(0.0)


class Surface:
    """The mean NLL and the calibration error as functions of (gamma, beta), beta = 1 / T, within the lattice.

    Args:
        losses: The mean NLL (gammas, betas).
        bins: Sums (3, gammas, betas, bins) of tokens, confidence and hits over the bins of confidence.
        tokens: The number of tokens.
    """

    def __init__(self, losses: np.ndarray, bins: np.ndarray, tokens: int) -> None:
        from scipy.interpolate import RectBivariateSpline

        self._losses = losses
        self._nll = RectBivariateSpline(LOG_GAMMAS, LOG_BETAS, losses, kx=5, ky=5)
        self._bins = bins
        self._tokens = tokens

    def fit_temperature(self) -> Temperature:
        """Find the inverse temperature with the smallest NLL; 1 if no temperature changes it."""
        plain = self._losses[_PLAIN]
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

    def calibration_error(self, gamma: float, beta: float) -> float:
        """The ECE, from the gap of each bin, interpolated between the pairs of the lattice."""
        from scipy.interpolate import RectBivariateSpline

        gaps = self._bins[1] - self._bins[2]
        place = math.log1p(gamma), math.log(beta)
        found = [RectBivariateSpline(LOG_GAMMAS, LOG_BETAS, part).ev(*place) for part in np.moveaxis(gaps, -1, 0)]
        return float(calibration_error(np.array(found), np.array([self._tokens]), norm="l1"))

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
