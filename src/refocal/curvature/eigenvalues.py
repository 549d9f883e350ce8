"""The largest eigenvalues of a Hessian, by the Lanczos method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import nn

from refocal import _check
from refocal.curvature.forms import Matrix
from refocal.curvature.operators import CountedOperator
from refocal.curvature.problem import Data, Loss, differentiable_attention, prepare
from refocal.curvature.progress import progress_bar

_DENSE = 32  # up to this size the whole matrix takes fewer products than a search


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


class NotConvergedError(ArithmeticError):
    """A search for eigenvalues ended before it reached its tolerance."""


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
        matrix: "hessian", or "ggn" for the generalised Gauss-Newton matrix.
        parameters: Names of parameters or layers (`layers`) to restrict the matrix to; None for all.
        tolerance: Bound on |Av - lambda v| over the largest modulus; by default 1e-6 in float64 and 1e-4 else. The
            error of an eigenvalue is at most that, and of the order of its square where the next eigenvalue is apart.
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

    Reference: 004, section 3.2; Lehoucq, Sorensen, Yang: ARPACK Users' Guide, 1998.
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
    with differentiable_attention(), progress_bar("eigenvalues", total=None, shown=progress) as advance:
        operator = CountedOperator(problem, matrix=matrix, advance=advance)
        double = operator.dtype == torch.float64
        bound = _check.positive((1e-6 if double else 1e-4) if tolerance is None else tolerance, "tolerance")
        if problem.size <= max(_DENSE, 2 * k + 1):
            every = _symmetric_eigenvalues(operator)
            return TopEigenvalues(every[::-1][:k], _by_modulus(every)[:k], problem.size, bound)
        search = _Search(operator, k=k, max_products=max_products, seed=seed)
        modulus = _by_modulus(search.run(bound))
        # eigenvalues above all others in modulus and positive are the largest ones, too
        algebraic = modulus if modulus.min() > 0 else search.run_shifted(abs(modulus[0]), bound)
        return TopEigenvalues(algebraic, modulus, search.products, bound)


class _NoProductsLeftError(Exception):
    """The budget of products is spent."""


class _Search:
    """Runs of ARPACK on one operator that share a budget of products."""

    def __init__(self, operator: CountedOperator, *, k: int, max_products: int, seed: int) -> None:
        self.products = 0
        self._operator, self._k, self._most, self._shift = operator, k, max_products, 0.0
        self._start = np.random.default_rng(seed).standard_normal(operator.shape[0])

    def run(self, tolerance: float, *, basis: int = 12) -> np.ndarray:
        """The k eigenvalues of largest modulus, each to this relative residual."""
        size = self._operator.shape[0]
        product: Any = LinearOperator((size, size), matvec=self._multiply, dtype=np.float64)
        # ARPACK looks at the residual only when its basis is full: a small one stops sooner
        vectors = min(size, max(2 * self._k + 1, basis))
        settings = {"k": self._k, "v0": self._start, "ncv": vectors, "tol": tolerance, "maxiter": self._most}
        try:
            found: np.ndarray = eigsh(product, which="LM", return_eigenvectors=False, **settings)
        except (ArpackNoConvergence, _NoProductsLeftError) as error:
            msg = (
                f"the residual did not reach {tolerance:g} in {self.products} products: raise tolerance or "
                "max_products, or compute in float64"
            )
            raise NotConvergedError(msg) from error
        return found

    def run_shifted(self, shift: float, tolerance: float) -> np.ndarray:
        """The k largest, falling: those of largest modulus of A + shift, which has no negative eigenvalues.

        A residual relative to an eigenvalue near 0 would be out of reach; that of A + shift is at most twice the shift.
        """
        self._shift = shift
        # below the outliers eigenvalues lie close, and a small basis would begin again too often
        return np.sort(self.run(tolerance / 2, basis=40))[::-1] - shift

    def _multiply(self, vector: np.ndarray) -> np.ndarray:
        if self.products >= self._most:
            raise _NoProductsLeftError
        self.products += 1
        given = torch.as_tensor(vector.ravel(), dtype=self._operator.dtype, device=self._operator.device)
        product: np.ndarray = (self._operator @ given).double().cpu().numpy() + self._shift * vector.ravel()
        if not np.isfinite(product).all():
            msg = "the Hessian times a vector is not finite: look at the loss's value and gradient on these data"
            raise ArithmeticError(msg)
        return product


def _symmetric_eigenvalues(operator: CountedOperator) -> np.ndarray:
    """All eigenvalues, rising, of a matrix that is small enough to write down."""
    whole = (operator @ torch.eye(operator.shape[0], dtype=operator.dtype, device=operator.device)).double()
    values: np.ndarray = torch.linalg.eigvalsh((whole + whole.T) / 2).cpu().numpy()
    return values


def _by_modulus(values: np.ndarray) -> np.ndarray:
    return values[np.argsort(-np.abs(values), kind="stable")]
