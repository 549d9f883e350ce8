"""A matrix of second derivatives times a vector."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.func import grad, jvp

from refocal.curvature.convolution import SmoothConvolutions
from refocal.curvature.forms import Matrix
from refocal.curvature.problem import Batch, Problem, kept_by_forward

_GRAPH = 3  # a gradient with its graph keeps about so many times what a forward pass keeps


def products(problem: Problem, *, matrix: Matrix, memory: int) -> Callable[[Tensor], Tensor]:
    """The function that takes a vector (P,) to its product with the matrix (P,).

    A product with the Hessian is one more pass back through the graph of the gradient. Graphs of all batches are kept
    where they fit into `memory` bytes; else each is made again for every product.
    """
    names = list(problem.parameters)
    point = {name: problem.parameters[name].detach().requires_grad_() for name in names}
    sizes = [values.numel() for values in point.values()]

    def slopes(batch: Batch) -> tuple[Tensor, ...]:
        with torch.enable_grad(), SmoothConvolutions():
            return torch.autograd.grad(
                problem.value(point, batch), list(point.values()), create_graph=True, materialize_grads=True
            )

    kept = _GRAPH * kept_by_forward(problem) * len(problem.batches) <= memory
    graphs = [slopes(batch) for batch in problem.batches] if kept and matrix == "hessian" else []

    def hessian(batch: int, vector: dict[str, Tensor]) -> tuple[Tensor, ...]:
        pairs = zip(graphs[batch] if graphs else slopes(problem.batches[batch]), vector.values(), strict=True)
        curved = [(slope, part) for slope, part in pairs if slope.requires_grad]
        if not curved:  # a loss linear in all parameters
            return tuple(map(torch.zeros_like, vector.values()))
        ends, weights = zip(*curved, strict=True)
        return torch.autograd.grad(
            ends, list(point.values()), weights, retain_graph=bool(graphs), materialize_grads=True
        )

    def ggn(batch: int, vector: dict[str, Tensor]) -> tuple[Tensor, ...]:
        data = problem.batches[batch]
        given = {name: values.detach() for name, values in point.items()}
        change = jvp(partial(problem.scores, batch=data), (given,), (vector,))[1]
        with torch.enable_grad():
            scores = problem.scores(point, data)
        slope_in_scores = grad(partial(problem.loss_of_scores, batch=data))
        weights = jvp(slope_in_scores, (scores.detach(),), (change,))[1]
        return torch.autograd.grad(scores, list(point.values()), weights, materialize_grads=True)

    multiply = hessian if matrix == "hessian" else ggn

    def product(vector: Tensor) -> Tensor:
        parts = {
            name: part.reshape(point[name].shape).to(point[name].dtype)
            for name, part in zip(names, torch.split(vector, sizes), strict=True)
        }
        total = torch.zeros_like(vector)
        for batch in range(len(problem.batches)):
            total += torch.cat([part.flatten().to(vector.dtype) for part in multiply(batch, parts)])
        return total

    return product
