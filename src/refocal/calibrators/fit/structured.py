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

from refocal.calibrators.fit.quasi_newton import Pair, descend

# Penalties relative to K / n, for d, A and b. The cross-validated penalty multiplies all of them.
_ON_FACTORS, _ON_MATRIX, _ON_BIAS = 1.0, 4.0, 0.5
_MOST_DIRECTIONS = 128  # A acts on at most this many principal directions of x
_MAX_ITERATIONS = 500
_LARGEST_GRADIENT = 1e-3  # in variables for which the diagonal of the Hessian is near 1


class Correction(NamedTuple):
    """A fitted correction of features that are centered at their mean.

    Attributes:
        factors: d, (K,).
        matrix: A along the axes, (K, r); r is 0 if there is no matrix.
        offset: The change of the scores at the mean of x, (K,).
    """

    factors: np.ndarray
    matrix: np.ndarray
    offset: np.ndarray


class Solution(NamedTuple):
    """A correction, and what its fit has learned about the curvature of the NLL without penalty.

    Attributes:
        correction: The correction.
        diagonal: The diagonal of the Hessian at the first of several fits.
        pairs: The last steps, and how they changed the gradient.
    """

    correction: Correction
    diagonal: np.ndarray
    pairs: list[Pair]


class Structured(NamedTuple):
    """Features with labels, prepared once for the fits of several penalties. Rows of arrays are classes.

    Attributes:
        features: x minus its mean over the samples, (K, N).
        directions: The features along the axes, (r, N).
        labels: Class indices (N,).
        share: Weights of the samples, summing to 1.
        samples: The number of samples, or the sum of their weights.
        mean: The mean of x, (K,).
        axes: Orthonormal directions, (K, r).
    """

    features: np.ndarray
    directions: np.ndarray
    labels: np.ndarray
    share: np.ndarray
    samples: float
    mean: np.ndarray
    axes: np.ndarray

    @classmethod
    def prepare(
        cls,
        x: np.ndarray,
        labels: np.ndarray,
        share: np.ndarray,
        samples: float,
        *,
        matrix: bool,
        axes: np.ndarray | None = None,
    ) -> Self:
        """Prepare log-probabilities x (N, K), with given directions or with principal ones."""
        classes = x.shape[1]
        mean = share @ x
        features = np.ascontiguousarray(x.T) - mean.astype(x.dtype)[:, None]
        if axes is None and matrix:
            vectors = np.linalg.eigh((features * share.astype(x.dtype)) @ features.T)[1]
            axes = vectors[:, max(0, classes - _MOST_DIRECTIONS) :]
        elif axes is None:
            axes = np.empty((classes, 0))
        return cls(features, axes.T.astype(x.dtype) @ features, labels, share, samples, mean, axes)

    @property
    def parameters(self) -> int:
        """The number of parameters of a correction."""
        return self.axes.size + 2 * len(self.axes)

    def cast(self, dtype: type) -> Self:
        """Convert the arrays of samples to another precision."""
        return self._replace(features=self.features.astype(dtype), directions=self.directions.astype(dtype))

    def begin(self) -> Solution:
        """Make the start of a fit: no correction."""
        classes, count = self.axes.shape
        none = Correction(np.zeros(classes), np.zeros((classes, count)), np.zeros(classes))
        return Solution(none, self._hessian_diagonal(none), [])

    def fit(self, penalty: float, start: Solution | None = None, *, tolerance: float) -> Solution:
        """Find the correction with the smallest penalized NLL, which is strictly convex.

        Args:
            penalty: Strength of the penalty, relative to K / n.
            start: A solution to start from, such as that for a neighboring penalty; None for no correction.
            tolerance: How much the NLL, summed over the samples, may exceed its minimum.

        Raises:
            RuntimeError: If no optimum was found, as on separable data with a penalty far below those of a search.
        """
        classes, count = self.axes.shape
        sizes = (classes, classes * count, classes)
        strengths = np.repeat(self._strengths(penalty), sizes)

        def unpack(point: np.ndarray) -> Correction:
            inner = point[classes:-classes].reshape(classes, count)
            return Correction(point[:classes], inner, point[-classes:])

        start = self.begin() if start is None else start
        own = self.labels * len(self.labels) + np.arange(len(self.labels))  # the scores of labels in the flat array
        dtype = self.features.dtype
        share = self.share.astype(dtype)

        def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
            scores = self.correct(unpack(point))
            scores -= scores.max(axis=0)
            flat = scores.reshape(-1)
            value = -(self.share @ flat[own])
            total = np.exp(scores, out=scores).sum(axis=0)
            value += self.share @ np.log(total)
            scores *= share / total
            flat[own] -= share  # now the residuals
            weighted = strengths * point
            return float(value + weighted @ point / 2), self._gradient(scores) + weighted

        end = descend(
            objective,
            np.concatenate([part.ravel() for part in start.correction]),
            diagonal=start.diagonal + strengths,
            pairs=[(step, change + strengths * step) for step, change in start.pairs],
            tolerance=tolerance / self.samples,
            rounding=10 * float(np.finfo(dtype).eps),
            most=_MAX_ITERATIONS,
        )
        steepest = float(np.max(np.abs(end.gradient)))
        if not (end.done or steepest < _LARGEST_GRADIENT):
            msg = (
                f"no optimum found in {end.iterations} iterations with penalty={penalty:g}: the gradient is still "
                f"{steepest:.1e}; use a larger penalty"
            )
            raise RuntimeError(msg)
        pairs = [(step, change - strengths * step) for step, change in end.pairs]
        return Solution(unpack(end.x), start.diagonal, pairs)

    def correct(self, correction: Correction) -> np.ndarray:
        """Compute the corrected scores (K, N) of the prepared samples."""
        factors, matrix, offset = correction
        dtype = self.features.dtype
        if self._is_rotated:  # the directions hold all of the features, so that one product is enough
            scores: np.ndarray = (self.axes * (1 + factors)[:, None] + matrix).astype(dtype) @ self.directions
        else:
            scores = self.features * (1 + factors).astype(dtype)[:, None]
            if matrix.shape[1]:
                scores += matrix.astype(dtype) @ self.directions
        scores += (self.mean + offset).astype(dtype)[:, None]
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
        curvature = self._curvature_weights(correction).sum(axis=1, dtype=np.float64)
        spreads = [(array * array) @ self.share for array in (self.features, self.directions)]
        parts = (curvature * spreads[0], np.outer(curvature, spreads[1]), curvature)
        return float(sum(np.sum(part / (part + s)) for part, s in zip(parts, self._strengths(penalty), strict=True)))

    def _gradient(self, residuals: np.ndarray) -> np.ndarray:
        """Compute the gradient of the NLL from its derivatives by the scores (K, N)."""
        inner = (residuals @ self.directions.T).astype(np.float64)
        if self._is_rotated:
            outer = np.einsum("ij,ij->i", inner, self.axes)
        else:
            outer = np.vecdot(residuals, self.features).astype(np.float64)
        return np.concatenate([outer, inner.ravel(), residuals @ np.ones(residuals.shape[1], residuals.dtype)])

    def _hessian_diagonal(self, correction: Correction) -> np.ndarray:
        """Compute the diagonal of the Hessian of the NLL."""
        weight = self._curvature_weights(correction)
        outer = np.vecdot(weight, self.features * self.features)
        inner = weight @ (self.directions * self.directions).T
        return np.concatenate([outer, inner.ravel(), weight.sum(axis=1)]).astype(np.float64)

    def _curvature_weights(self, correction: Correction) -> np.ndarray:
        """Compute p (1 - p) of each class and sample, times the share of the sample, (K, N)."""
        probs = self.correct(correction)
        probs -= probs.max(axis=0)
        np.exp(probs, out=probs)
        probs /= probs.sum(axis=0)
        probs *= (1 - probs) * self.share.astype(probs.dtype)
        return probs

    @property
    def _is_rotated(self) -> bool:
        return len(self.directions) == len(self.features)

    def _strengths(self, penalty: float) -> tuple[float, float, float]:
        unit = penalty * self.axes.shape[0] / self.samples
        return _ON_FACTORS * unit, _ON_MATRIX * unit, _ON_BIAS * unit
