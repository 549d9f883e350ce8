"""A matrix of second derivatives times a vector."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.func import jvp

from refocal.curvature.convolution import SmoothConvolutions
from refocal.curvature.forms import Matrix
from refocal.curvature.problem import Batch, Problem, kept_by_forward

_GRAPH = 3  # a gradient with its graph keeps about so many times what a forward pass keeps


def products(problem: Problem, *, matrix: Matrix, memory: int) -> Callable[[Tensor], Tensor]:
    """The function that takes a vector (P,) to its product with the matrix (P,).

    A product with the Hessian is one more pass back through the graph of the gradient. One with the Gauss-Newton matrix
    is a pass forward through the network, one back through the graph of the loss's slope in the scores, and one back
    through that of the scores. Graphs of all batches are kept where they fit into `memory` bytes; else each is made
    again for every product.
    """
    names = list(problem.parameters)
    point = {name: problem.parameters[name].detach().requires_grad_() for name in names}
    sizes = [values.numel() for values in point.values()]

    def slopes(batch: Batch) -> tuple[Tensor, ...]:
        with torch.enable_grad(), SmoothConvolutions():
            return torch.autograd.grad(
                problem.value(point, batch), list(point.values()), create_graph=True, materialize_grads=True
            )

    def in_scores(batch: Batch) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            scores = problem.scores(point, batch)
            ends = scores.detach().requires_grad_()
            (slope,) = torch.autograd.grad(problem.loss_of_scores(ends, batch), ends, create_graph=True)
        return scores, ends, slope

    graph_of = slopes if matrix == "hessian" else in_scores
    kept = _GRAPH * kept_by_forward(problem) * len(problem.batches) <= memory
    graphs = [graph_of(batch) for batch in problem.batches] if kept else []

    def graph(batch: int) -> tuple[Tensor, ...]:
        return graphs[batch] if kept else graph_of(problem.batches[batch])

    def hessian(batch: int, vector: dict[str, Tensor]) -> tuple[Tensor, ...]:
        curved = [pair for pair in zip(graph(batch), vector.values(), strict=True) if pair[0].requires_grad]
        if not curved:  # a loss linear in all parameters
            return tuple(map(torch.zeros_like, vector.values()))
        ends, weights = zip(*curved, strict=True)
        return torch.autograd.grad(ends, list(point.values()), weights, retain_graph=kept, materialize_grads=True)

    def ggn(batch: int, vector: dict[str, Tensor]) -> tuple[Tensor, ...]:
        scores, ends, slope = graph(batch)
        if not slope.requires_grad:  # a loss linear in the scores
            return tuple(map(torch.zeros_like, vector.values()))
        given = {name: values.detach() for name, values in point.items()}
        change = jvp(partial(problem.scores, batch=problem.batches[batch]), (given,), (vector,))[1]
        (weights,) = torch.autograd.grad(slope, ends, change, retain_graph=kept, materialize_grads=True)
        return torch.autograd.grad(scores, list(point.values()), weights, retain_graph=kept, materialize_grads=True)

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
