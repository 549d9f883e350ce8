"""The largest eigenvalues of a Hessian, by the Lanczos method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from refocal import _check
from refocal.curvature.forms import Matrix
from refocal.curvature.lanczos import ends_of_spectrum
from refocal.curvature.problem import NOT_FINITE, Data, Loss, Problem, all_digits, memory_for, prepare
from refocal.curvature.products import products
from refocal.curvature.progress import progress_bar

_DENSE = 32  # up to this size the whole matrix takes fewer products than a search
_BASIS = 40  # vectors of the search, where memory allows


class TopEigenvalues(NamedTuple):
    """The largest eigenvalues of a symmetric matrix.

    Attributes:
        algebraic: The k largest (k,), in falling order.
        modulus: The k largest in modulus, with their signs (k,), in falling order of the modulus.
        products: How many products with a vector it took.
        tolerance: Bound on |Av - lambda v| over the largest modulus, and so on the error over it, for each eigenvalue.
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

    They differ where the Hessian has large negative eigenvalues, as it may: a network is not convex in its parameters,
    and focal loss is not even convex in the scores.

    Args:
        model: The network; it is copied, and the copy measured in evaluation mode.
        loss: A loss of (scores, target), as `hessian_trace` takes it.
        data: Batches (inputs, target), such as a loader gives; read once.
        k: How many.
        matrix: "hessian", or "ggn" for the generalized Gauss-Newton matrix.
        parameters: Names of parameters or layers (`layers`) to restrict the matrix to; None for all.
        tolerance: Bound on |Av - lambda v| over the largest modulus; by default 1e-6 in float64 and 1e-4 else. The
            error of an eigenvalue is at most that, and of the order of its square where the next eigenvalue is apart.
            Where eigenvalues lie close to each other one may be missed; a smaller tolerance tells more of them apart.
        max_products: Give up after so many products with a vector.
        dtype: Compute in this type, such as torch.float64; None for the network's own.
        batch_statistics: Let BatchNorm use each batch's statistics.
        seed: Seed of the first vector.
        progress: Show a progress bar.

    Returns:
        Eigenvalues and what they took.

    Raises:
        NotConvergedError: The tolerance was not reached.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> inputs, target = torch.randn(100, 3), torch.randint(2, (100,))
        >>> top = hessian_top_eigenvalues(nn.Linear(3, 2), nn.CrossEntropyLoss(), [(inputs, target)])
        >>> top.algebraic.round(3), top.modulus.round(3)
        (array([0.49]), array([0.49]))

    Reference: 004, section 3.2; Wu, Simon 2000, SIAM J. Matrix Anal. Appl. 22(2).
    """
    k = _check.count(k, "k")
    _check.one_of(matrix, "matrix", ("hessian", "ggn"))
    max_products = _check.count(max_products, "max_products")
    problem = prepare(
        model, loss, data, parameters=parameters, group=None, dtype=dtype, batch_statistics=batch_statistics
    )
    if k > problem.size:
        msg = f"k must be 1 to {problem.size}, the number of parameters, got {k}"
        raise ValueError(msg)
    bound = _check.positive(
        (1e-6 if problem.dtype == torch.float64 else 1e-4) if tolerance is None else tolerance, "tolerance"
    )
    memory = memory_for(problem.device)
    with all_digits(), progress_bar("eigenvalues", total=None, shown=progress) as advance:
        multiply = products(problem, matrix=matrix, memory=memory)

        def counted(vector: Tensor) -> Tensor:
            advance(1)
            return multiply(vector)

        if problem.size <= max(_DENSE, 4 * k + 2):
            every = _all_eigenvalues(counted, problem)
            return TopEigenvalues(
                every[::-1][:k], every[np.argsort(-np.abs(every), kind="stable")][:k], problem.size, bound
            )
        generator = torch.Generator(problem.device).manual_seed(seed)
        found = ends_of_spectrum(
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
    """Rising, of a matrix that is small enough to write down."""
    unit = torch.eye(problem.size, dtype=problem.dtype, device=problem.device)
    whole = torch.stack([multiply(each) for each in unit]).double().cpu().numpy()
    if not np.isfinite(whole).all():
        raise ArithmeticError(NOT_FINITE)
    return np.linalg.eigvalsh((whole + whole.T) / 2)
