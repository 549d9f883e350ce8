"""Both ends of the spectrum of a symmetric matrix by the Lanczos method, restarted with its best vectors.

SciPy's ARPACK checks residuals only when its basis is full, finds one end per run, and works in the host's memory. This
search checks residuals after each product, for both ends, on the device of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from refocal.curvature.problem import NOT_FINITE


class NotConvergedError(ArithmeticError):
    """A search for eigenvalues ended before it reached its tolerance."""


class Ends(NamedTuple):
    """The k largest eigenvalues in descending order, the k largest in modulus likewise, and the number of products."""

    algebraic: np.ndarray
    modulus: np.ndarray
    products: int


def find_spectrum_ends(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    k: int,
    tolerance: float,
    max_products: int,
    basis: int,
    generator: torch.Generator,
) -> Ends:
    """The largest eigenvalues, with residuals |Av - lambda v| of at most `tolerance` times the largest modulus.

    Each result is that close to an eigenvalue. If eigenvalues lie close to each other, one may be missed.

    Args:
        product: Multiplies a vector (P,).
        start: The first vector (P,).
        k: How many at each end, 4k + 2 < P.
        tolerance: Bound on the residuals, relative to the largest modulus.
        max_products: Give up after this many products.
        basis: Number of vectors (P,) that are kept, at least 4k + 2.
        generator: Source of the random vectors that replace a direction of length 0.

    Raises:
        NotConvergedError: The tolerance was not reached.
        ArithmeticError: A product is not finite.

    Reference: Wu, Simon: Thick-restart Lanczos method for large symmetric eigenvalue problems. SIAM J. Matrix Anal.
        Appl. 22(2), 2000.
    """
    vectors = start.new_empty((basis + 1, len(start)))
    vectors[0] = start / torch.linalg.vector_norm(start)
    projected = np.zeros((basis, basis))  # V'AV
    count = 0
    for number in range(1, max_products + 1):
        count += 1
        column, rest, length = _orthogonalize(product(vectors[count - 1]), vectors[:count])
        if not np.isfinite(length):
            raise ArithmeticError(NOT_FINITE)
        projected[:count, count - 1] = projected[count - 1, :count] = column
        values, rotation = np.linalg.eigh(projected[:count, :count])
        by_modulus = np.argsort(-np.abs(values), kind="stable")
        wanted = np.union1d(np.arange(count)[::-1][:k], by_modulus[:k])
        scale = abs(values[by_modulus[0]])
        # A V = V (V'AV) + rest e', so a residual is the length of the rest times the last entry. With too few vectors,
        # the eigenvalues of one end would be mistaken for those of the other.
        if count > 2 * k and (length * np.abs(rotation[-1, wanted]) <= tolerance * scale).all():
            return Ends(values[::-1][:k], values[by_modulus[:k]], number)
        if length <= torch.finfo(start.dtype).eps * scale:  # the vectors span an invariant subspace
            fresh = torch.randn(len(start), dtype=start.dtype, device=start.device, generator=generator)
            _, rest, length = _orthogonalize(fresh, vectors[:count])
        if count == basis:
            best = np.union1d(wanted, np.concatenate([np.arange(count)[::-1][: basis // 4], by_modulus[: basis // 4]]))
            turned = torch.as_tensor(rotation[:, best].T.copy(), dtype=start.dtype, device=start.device)
            count = len(best)
            vectors[:count] = turned @ vectors[:basis]
            projected[:] = 0
            projected[:count, :count] = np.diag(values[best])
        vectors[count] = rest / length
    msg = (
        f"the residual did not reach {tolerance:g} in {max_products} products: raise tolerance or "
        "max_products, or compute in float64"
    )
    raise NotConvergedError(msg)


def _orthogonalize(vector: Tensor, basis: Tensor) -> tuple[np.ndarray, Tensor, float]:
    """Coefficients in an orthonormal basis (rows), the rest, and its length; done twice for full precision."""
    first = basis @ vector
    rest = vector - basis.T @ first
    second = basis @ rest
    rest = rest - basis.T @ second
    numbers = torch.cat([first + second, torch.linalg.vector_norm(rest)[None]]).double().cpu().numpy()
    return numbers[:-1], rest, float(numbers[-1])
