"""Structured maps: a penalized linear correction of the log-probabilities of a simple calibration map, the base.

The map is softmax(x + d * x + A x + b), where x are log-probabilities of the base. The corrections d (one factor per
class), A (a matrix, or nothing) and b are pulled toward 0 by ridge penalties that grow with the number of classes K and
fade with the number of samples n. So few samples per class give the base, and many give the maximum-likelihood map.

Reference: Berta, Holzmüller, Jordan and Bach, "Structured matrix scaling for multi-class calibration", 2025, whose base
is temperature scaling and whose penalties are fixed.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

# Penalties relative to K / n, for d, A and b. The cross-validated penalty multiplies all of them.
_ON_FACTORS, _ON_MATRIX, _ON_BIAS = 1.0, 4.0, 0.5
_MOST_DIRECTIONS = 128  # A acts on at most this many principal directions of x
_MAX_ITERATIONS = 500
_LARGEST_GRADIENT = 1e-3  # in variables for which the Hessian of the mean NLL is near the identity


class Correction(NamedTuple):
    """A fitted correction of features that are centered at their mean.

    Attributes:
        factors: d, (K,).
        matrix: A in principal directions, (K, r); r is 0 if there is no matrix.
        offset: The change of the scores at the mean of x, (K,).
    """

    factors: np.ndarray
    matrix: np.ndarray
    offset: np.ndarray


class Structured(NamedTuple):
    """Features with labels, prepared once for the fits of several penalties.

    Attributes:
        features: x minus its mean over the rows, (N, K).
        directions: The features along principal directions, (N, r).
        base: The scores without a correction: x, (N, K).
        labels: Class indices (N,).
        share: Weights of the rows, summing to 1.
        samples: The number of samples: rows, or the sum of their weights.
        mean: The mean of x, (K,).
        axes: The principal directions, (K, r).
        spreads: Mean squares of the features (K,), and of the directions (r,).
    """

    features: np.ndarray
    directions: np.ndarray
    base: np.ndarray
    labels: np.ndarray
    share: np.ndarray
    samples: float
    mean: np.ndarray
    axes: np.ndarray
    spreads: tuple[np.ndarray, np.ndarray]

    @classmethod
    def prepare(cls, x: np.ndarray, labels: np.ndarray, share: np.ndarray, samples: float, *, matrix: bool) -> Self:
        """Prepare log-probabilities x (N, K)."""
        classes = x.shape[1]
        mean = share @ x
        features = x - mean
        if matrix:
            squares, vectors = np.linalg.eigh((features * share[:, None]).T @ features)
            kept = slice(max(0, classes - _MOST_DIRECTIONS), None)
            squares, axes = np.maximum(squares[kept], 0.0), vectors[:, kept]
        else:
            squares, axes = np.empty(0), np.empty((classes, 0))
        spreads = (share @ features**2, squares)
        return cls(features, features @ axes, x, labels, share, samples, mean, axes, spreads)

    def cast(self, dtype: type) -> Self:
        """Convert the arrays of rows to another precision."""
        return self._replace(
            features=self.features.astype(dtype),
            directions=self.directions.astype(dtype),
            base=self.base.astype(dtype),
        )

    def fit(self, penalty: float, start: Correction | None = None, *, tolerance: float) -> Correction:
        """Find the correction with the smallest penalized NLL, which is strictly convex.

        Args:
            penalty: Strength of the penalty, relative to K / n.
            start: A correction to start from, such as that for a neighboring penalty.
            tolerance: The largest derivative at the end, in variables for which the Hessian is near the identity.
        """
        from scipy.optimize import minimize

        classes, count = self.axes.shape
        strengths = self._strengths(penalty)
        hessians = (self.spreads[0] / classes, self.spreads[1] / classes, np.full(classes, 1 / classes))
        units = [1 / np.sqrt(part + strength) for part, strength in zip(hessians, strengths, strict=True)]
        rows, dtype = np.arange(len(self.labels)), self.features.dtype

        def unpack(point: np.ndarray) -> Correction:
            inner = point[classes:-classes].reshape(classes, count)
            return Correction(point[:classes] * units[0], inner * units[1], point[-classes:] * units[2])

        def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
            at = unpack(point)
            scores = self.correct(self._replace_dtype(at, dtype))
            scores -= scores.max(axis=1, keepdims=True)
            own = scores[rows, self.labels].astype(np.float64)
            np.exp(scores, out=scores)
            total = np.einsum("ij->i", scores, dtype=np.float64)
            scores *= (self.share / total).astype(dtype)[:, None]
            scores[rows, self.labels] -= self.share.astype(dtype)  # now the residuals
            value = self.share @ (np.log(total) - own)
            value += sum(0.5 * s * np.sum(part * part) for part, s in zip(at, strengths, strict=True))
            slopes = (
                np.einsum("ij,ij->j", scores, self.features),
                scores.T @ self.directions,
                scores.sum(axis=0, dtype=np.float64),
            )
            gradient = [
                ((slope + s * part) * unit).ravel()
                for slope, part, s, unit in zip(slopes, at, strengths, units, strict=True)
            ]
            return float(value), np.concatenate(gradient, dtype=np.float64)

        first = np.zeros(classes * (2 + count))
        if start is not None:
            first = np.concatenate([(part / unit).ravel() for part, unit in zip(start, units, strict=True)])
        options = {"maxiter": _MAX_ITERATIONS, "maxfun": 2 * _MAX_ITERATIONS, "ftol": 0.0, "gtol": tolerance}
        found = minimize(objective, first, jac=True, method="L-BFGS-B", options=options)
        steepest = float(np.max(np.abs(found.jac)))
        if not steepest < _LARGEST_GRADIENT:
            msg = f"no optimum found in {found.nit} iterations: the gradient is still {steepest:.1e}"
            raise RuntimeError(msg)
        return unpack(found.x)

    def correct(self, correction: Correction) -> np.ndarray:
        """Compute the corrected scores (N, K) of the prepared rows."""
        factors, matrix, offset = correction
        scores: np.ndarray = self.features * factors
        if matrix.shape[1]:
            scores += self.directions @ matrix.T
        scores += self.base
        scores += offset
        return scores

    def join(self, correction: Correction) -> tuple[np.ndarray, np.ndarray]:
        """Write the correction as one linear map W x + b of x: W (K, K), or (K,) without a matrix, and b (K,)."""
        factors, matrix, offset = correction
        if not self.axes.shape[1]:
            return 1 + factors, offset - factors * self.mean
        change = np.diag(factors) + matrix @ self.axes.T
        return np.eye(len(factors)) + change, offset - change @ self.mean

    def count_effective(self, correction: Correction, penalty: float) -> float:
        """Count the parameters that the data determine: each counts by the share of the data in its curvature.

        The curvature of the NLL is approximated by the mean of p (1 - p) of a class times that of the squared feature.
        """
        scores = self.correct(correction)
        probs = np.exp(scores - scores.max(axis=1, keepdims=True))
        probs /= probs.sum(axis=1, keepdims=True)
        curvature = self.share @ (probs * (1 - probs))
        parts = (curvature * self.spreads[0], np.outer(curvature, self.spreads[1]), curvature)
        return float(sum(np.sum(part / (part + s)) for part, s in zip(parts, self._strengths(penalty), strict=True)))

    def _strengths(self, penalty: float) -> tuple[float, float, float]:
        unit = penalty * self.axes.shape[0] / self.samples
        return _ON_FACTORS * unit, _ON_MATRIX * unit, _ON_BIAS * unit

    @staticmethod
    def _replace_dtype(correction: Correction, dtype: np.dtype) -> Correction:
        return Correction(*(part.astype(dtype) for part in correction))
