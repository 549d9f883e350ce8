"""The matrix of a problem as an operator of curvlinops, which is imported only here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from refocal._extras import how_to_install
from refocal.curvature.problem import Problem
from refocal.curvature.quadratic_forms import Matrix


class CountedOperator:
    """The Hessian or Gauss-Newton matrix (P, P) of a problem, which reports how many vectors it has multiplied.

    Args:
        problem: The problem.
        matrix: "hessian" or "ggn".
        advance: Called with the number of vectors after each product.
        at_once: How many columns are multiplied together; None for all.
    """

    def __init__(
        self, problem: Problem, *, matrix: Matrix, advance: Callable[[int], None], at_once: int | None = None
    ) -> None:
        curvlinops = _curvlinops()
        kind = curvlinops.HessianLinearOperator if matrix == "hessian" else curvlinops.GGNLinearOperator
        self._operator = kind(
            problem.model,
            _SharedLoss(problem),
            [values for name, values in problem.model.named_parameters() if name in problem.parameters],
            [(batch.inputs, batch.target) for batch in problem.batches],
            check_deterministic=False,  # the batches and the network are fixed
            num_data=sum(len(batch.target) for batch in problem.batches),
        )
        self.shape: tuple[int, int] = self._operator.shape
        self.device: torch.device = self._operator.device
        self.dtype: torch.dtype = self._operator.dtype
        self._advance, self._at_once = advance, at_once

    def __matmul__(self, vectors: Tensor) -> Tensor:
        if vectors.ndim == 1:
            self._advance(1)
            return self._operator @ vectors
        products = []
        for some in torch.split(vectors, self._at_once or vectors.shape[1], dim=1):
            products.append(self._operator @ some)
            self._advance(some.shape[1])
        return torch.cat(products, dim=1)


def trace_estimators() -> dict[str, tuple[Callable[[Any, int], Tensor], int]]:
    """The estimators of curvlinops by name, each with the number that its products must be a multiple of."""
    curvlinops = _curvlinops()
    return {"hutch++": (curvlinops.hutchpp_trace, 3), "xtrace": (curvlinops.xtrace, 2)}


class _SharedLoss(nn.Module):
    """The loss of a batch times its share in all data. It calls itself a sum, so that curvlinops adds up batches."""

    reduction = "sum"

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self._problem = problem

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        return self._problem.share(target) * self._problem.loss(scores, target)


def _curvlinops() -> Any:
    try:
        import curvlinops
    except ImportError as error:
        msg = f"Hutch++ and XTrace need curvlinops: {how_to_install('curvature')}"
        raise ImportError(msg) from error
    return curvlinops
