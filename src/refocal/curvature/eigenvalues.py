"""The largest eigenvalues of a Hessian, by the Lanczos method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from refocal import _check
from refocal.curvature.lanczos import find_spectrum_ends
from refocal.curvature.matrix_vector import matrix_vector_product
from refocal.curvature.memory import choose_memory
from refocal.curvature.modes import full_precision
from refocal.curvature.problem import NOT_FINITE, Data, Loss, Problem, prepare
from refocal.curvature.progress import progress_bar
from refocal.curvature.quadratic_forms import Matrix

_DENSE = 32  # up to this size the whole matrix takes fewer products than a search
_BASIS = 40  # vectors of the search if memory allows


class TopEigenvalues(NamedTuple):
    """The largest eigenvalues of a symmetric matrix.

    Attributes:
        algebraic: The k largest eigenvalues (k,), in descending order.
        modulus: The k eigenvalues (k,) of largest modulus, with their signs, in descending order of the modulus.
        products: The number of products with a vector.
        tolerance: Bound on |Av - lambda v|, and thus on the error of each eigenvalue, relative to the largest modulus.
    """

    algebraic: np.ndarray
    modulus: np.ndarray
    products: int
    tolerance: float


def hessian_top_eigenvalues(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    k: int = 1,
    matrix: Matrix = "hessian",
    parameters: Sequence[str] | None = None,
    tolerance: float | None = None,
    max_products: int = 2000,
    dtype: torch.dtype | None = None,
    batch_statistics: bool = False,
    seed: int = 0,
    progress: bool = False,
) -> TopEigenvalues:
    """The k largest eigenvalues of the Hessian of a loss over data, algebraically and in modulus.

    Use it to see how sharp a minimum is. The two differ if the Hessian has large negative eigenvalues. It may have: a
    network is not convex in its parameters, and focal loss is not even convex in the scores.

    Args:
        model: The network. A copy is measured, in evaluation mode.
        loss: A loss of (scores, target), as for `hessian_trace`.
        data: Batches (inputs, target), such as a data loader; read once.
        k: How many eigenvalues.
        matrix: "hessian", or "ggn" for the generalized Gauss-Newton matrix.
        parameters: Names of parameters or layers (`layers`) to restrict the matrix to; None for all.
        tolerance: Bound on |Av - lambda v| relative to the largest modulus; by default 1e-6 in float64, else 1e-4. The
            error of an eigenvalue is at most that, and of the order of its square if the next eigenvalue is not close.
            If eigenvalues lie close to each other, one may be missed; a smaller tolerance separates more of them.
        max_products: Give up after this many products with a vector.
        dtype: Compute in this type, such as torch.float64; None for the network's own.
        batch_statistics: Let BatchNorm use the statistics of each batch.
        seed: Seed of the first vector.
        progress: Show a progress bar.

    Returns:
        The eigenvalues, the number of products and the tolerance.

    Raises:
        NotConvergedError: The tolerance was not reached.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> inputs, target = torch.randn(100, 3), torch.randint(2, (100,))
        >>> top = hessian_top_eigenvalues(nn.Linear(3, 2), nn.CrossEntropyLoss(), [(inputs, target)])
        >>> top.algebraic.round(3), top.modulus.round(3)
        (array([0.49]), array([0.49]))

    Reference: Kimura and Naganuma (2024), section 3.2; Wu, Simon 2000, SIAM J. Matrix Anal. Appl. 22(2).
    """
    k = _check.count(k, "k")
    _check.one_of(matrix, "matrix", ("hessian", "ggn"))
    max_products = _check.count(max_products, "max_products")
    seed = _check.seed(seed, "seed")
    problem = prepare(
        model, loss, data, parameters=parameters, group=None, dtype=dtype, batch_statistics=batch_statistics
    )
    if k > problem.size:
        msg = f"k must be 1 to {problem.size}, the number of parameters, got {k}"
        raise ValueError(msg)
    bound = _check.positive(
        (1e-6 if problem.dtype == torch.float64 else 1e-4) if tolerance is None else tolerance, "tolerance"
    )
    memory = choose_memory(problem.device)
    with full_precision(), progress_bar("eigenvalues", total=None, enabled=progress) as advance:
        multiply = matrix_vector_product(problem, matrix=matrix, memory=memory)

        def counted(vector: Tensor) -> Tensor:
            advance(1)
            return multiply(vector)

        if problem.size <= max(_DENSE, 4 * k + 2):
            every = _all_eigenvalues(counted, problem)
            return TopEigenvalues(
                every[::-1][:k], every[np.argsort(-np.abs(every), kind="stable")][:k], problem.size, bound
            )
        generator = torch.Generator(problem.device).manual_seed(seed)
        found = find_spectrum_ends(
            counted,
            torch.randn(problem.size, dtype=problem.dtype, device=problem.device, generator=generator),
            k=k,
            tolerance=bound,
            max_products=max_products,
            basis=min(problem.size, max(4 * k + 10, min(_BASIS, memory // (problem.size * problem.dtype.itemsize)))),
            generator=generator,
        )
        return TopEigenvalues(*found, bound)


def _all_eigenvalues(multiply: Callable[[Tensor], Tensor], problem: Problem) -> np.ndarray:
    """All eigenvalues in ascending order, from the whole matrix."""
    unit = torch.eye(problem.size, dtype=problem.dtype, device=problem.device)
    whole = torch.stack([multiply(each) for each in unit]).double().cpu().numpy()
    if not np.isfinite(whole).all():
        raise ArithmeticError(NOT_FINITE)
    return np.linalg.eigvalsh((whole + whole.T) / 2)
