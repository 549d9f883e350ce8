"""A weighted mean with its confidence limits."""

from __future__ import annotations

import numpy as np

TWO_SIDED_95 = 1.959964  # a standard normal variable lies within this distance of 0 with probability 95%


def estimate_mean(
    values: np.ndarray, weights: np.ndarray | None = None, *, variances: np.ndarray | None = None
) -> tuple[float, float, float]:
    """Return the mean with its 95% limits by the central limit theorem.

    With the shares s = w / sum w, the variance of the mean is estimated by sum s^2 (v - mean)^2.

    Args:
        values: The values (N,).
        weights: One non-negative weight per value, or None for equal weights.
        variances: The least variance of each value (N,). If the values show less spread than this, it decides.
    """
    shares = np.full(len(values), 1 / len(values)) if weights is None else weights / weights.sum()
    mean = float(shares @ values)
    variance = float(shares**2 @ (values - mean) ** 2)
    if variances is not None:
        variance = max(variance, float(shares**2 @ variances))
    half = TWO_SIDED_95 * variance**0.5
    return mean, mean - half, mean + half
