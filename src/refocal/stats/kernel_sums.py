"""Sums of a Laplacian kernel times residuals, over all pairs of samples."""

from __future__ import annotations

import numpy as np

_BLOCK_ELEMENTS = 1 << 20


def laplacian_pairs(places: np.ndarray, residuals: np.ndarray, *, width: float) -> float:
    """The sum over i, j of r_i r_j exp(-|x_i - x_j| / width), in O(n log n).

    For sorted x the kernel factors into exp(x_j / width) exp(-x_i / width), so a running sum is enough. Exponents are
    relative to the start of segments that are too short to overflow. The sum carried over from earlier segments decays.
    """
    order = np.argsort(places, kind="stable")
    x, r = places[order].astype(np.float64) / width, residuals[order]
    total, carry, start = float(np.sum(r**2)), 0.0, 0
    while start < len(x):
        stop = int(np.searchsorted(x, x[start] + 500.0, side="right"))
        growth = np.exp(x[start:stop] - x[start])
        before = carry + np.cumsum(r[start:stop] * growth) - r[start:stop] * growth
        total += 2 * float(np.sum(r[start:stop] * before / growth))
        if stop < len(x):
            last = before[-1] + r[stop - 1] * growth[-1]
            carry = float(last / growth[-1] * np.exp(x[stop - 1] - x[stop]))
        start = stop
    return total


def laplacian_vector_products(
    places: np.ndarray, residuals: np.ndarray, vectors: np.ndarray, *, width: float
) -> np.ndarray:
    """The product V M of vectors V (m, n) with M_ij = r_i . r_j exp(-|x_i - x_j| / width), for rows x, r (n, K).

    The n x n matrix is computed in blocks.
    """
    squares = np.einsum("ij,ij->i", places, places)
    step = max(1, _BLOCK_ELEMENTS // len(places))
    product = np.empty(vectors.shape)
    for start in range(0, len(places), step):
        rows = slice(start, start + step)
        distance = squares[rows, None] + squares - 2 * (places[rows] @ places.T)
        np.sqrt(np.maximum(distance, 0.0, out=distance), out=distance)
        distance[np.arange(len(distance)), start + np.arange(len(distance))] = 0.0  # exactly, without rounding error
        distance /= -width
        np.exp(distance, out=distance)
        distance *= residuals[rows] @ residuals.T
        product[:, rows] = vectors @ distance.T
    return product
