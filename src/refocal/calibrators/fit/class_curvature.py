"""A model of the Hessian of a multinomial NLL that has an inverse in closed form, for the fits of structured maps.

Class k has the parameters (d_k, A_k, b_k), whose features are (x_k, z, 1): the feature of the class, the features along
the axes, and a constant. The model keeps the block of each class and neglects the blocks between classes. A block is
the matrix of second moments of these features, weighted by p_k (1 - p_k). The features along the axes may have weighted
means, but count as uncorrelated around them; x_k is their combination by the axes, plus a rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np

_TINY = float(np.finfo(np.float64).tiny)
_RIDGE = 1e-9  # relative to the curvature, so that rounding errors leave it positive without a penalty


class ClassCurvature(NamedTuple):
    """Weighted moments of the features of each class.

    Attributes:
        weight: The sum W of the weights, (K,).
        mean: The mean of x_k, (K,).
        means: The means of z, (K, r).
        spreads: W times the variances of z, (K, r).
        rest: W times the variance of x_k that z does not explain, (K,).
        axes: The coefficients of x_k in z, (K, r).
    """

    weight: np.ndarray
    mean: np.ndarray
    means: np.ndarray
    spreads: np.ndarray
    rest: np.ndarray
    axes: np.ndarray

    @classmethod
    def measure(cls, weights: np.ndarray, features: np.ndarray, directions: np.ndarray, axes: np.ndarray) -> Self:
        """Measure the moments with weights (K, N) of features (K, N) and directions (r, N)."""
        weight = weights.sum(axis=1, dtype=np.float64)
        divisor = np.maximum(weight, _TINY)
        mean = np.vecdot(weights, features) / divisor
        means = (weights @ directions.T) / divisor[:, None]
        spreads = np.maximum((weights @ (directions * directions).T) - weight[:, None] * means**2, 0.0)
        explained = np.vecdot(axes**2, spreads) + weight * mean**2
        rest = np.maximum(np.vecdot(weights, features * features) - explained, 0.0)
        return cls(weight, mean, means, spreads, rest, axes)

    def diagonal(self) -> np.ndarray:
        """Compute the diagonal of the model, in the order of d, A and b."""
        inner = self.spreads + self.weight[:, None] * self.means**2
        return np.concatenate([self._factor_curvature(), inner.ravel(), self.weight])

    def invert(self, on_factors: float, on_matrix: float, on_offset: float) -> Callable[[np.ndarray], np.ndarray]:
        """Add penalties of d, A and b, and return the function that multiplies a vector by the inverse.

        Within a block, the part of A is a diagonal matrix plus W m m', with the means m, which the formula of Sherman
        and Morrison inverts. The two rows of d and b remain as a matrix of 2 by 2, the Schur complement.
        """
        classes, count = self.axes.shape
        weighted = self.weight[:, None] * self.means
        inner = self.spreads + on_matrix
        lean = self.means / inner
        bend = lean * (self.weight / (1 + np.vecdot(weighted, lean)))[:, None]

        def solve_matrix(target: np.ndarray) -> np.ndarray:
            solved: np.ndarray = target / inner
            solved -= bend * np.vecdot(self.means, solved)[:, None]
            return solved

        of_factor = self.axes * self.spreads + self.mean[:, None] * weighted
        solved_factor, solved_offset = solve_matrix(of_factor), solve_matrix(weighted)
        factor = (1 + _RIDGE) * self._factor_curvature() + on_factors - np.vecdot(of_factor, solved_factor)
        offset = (1 + _RIDGE) * self.weight + on_offset - np.vecdot(weighted, solved_offset)
        both = self.weight * self.mean - np.vecdot(of_factor, solved_offset)
        determinant = factor * offset - both**2

        def solve(vector: np.ndarray) -> np.ndarray:
            solved = solve_matrix(vector[classes:-classes].reshape(classes, count))
            on_d = vector[:classes] - np.vecdot(of_factor, solved)  # as solve_matrix is symmetric
            on_b = vector[-classes:] - np.vecdot(weighted, solved)
            d = (offset * on_d - both * on_b) / determinant
            b = (factor * on_b - both * on_d) / determinant
            solved -= solved_factor * d[:, None]
            solved -= solved_offset * b[:, None]
            return np.concatenate([d, solved.ravel(), b])

        return solve

    def _factor_curvature(self) -> np.ndarray:
        """The curvature by d, without penalty."""
        curvature: np.ndarray = np.vecdot(self.axes**2, self.spreads) + self.weight * self.mean**2 + self.rest
        return curvature
