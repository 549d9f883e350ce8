"""The product of a matrix of second derivatives with a vector."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.func import jvp

from refocal.curvature.convolution import SmoothConvolutions
from refocal.curvature.memory import measure_forward_memory
from refocal.curvature.problem import Batch, Problem
from refocal.curvature.quadratic_forms import Matrix

_GRAPH = 3  # a gradient with its graph takes about three times the memory of a forward pass


def matrix_vector_product(problem: Problem, *, matrix: Matrix, memory: int) -> Callable[[Tensor], Tensor]:
    """A function from a vector (P,) to its product with the matrix (P,).

    A product with the Hessian is one more backward pass, through the graph of the gradient. A product with the
    Gauss-Newton matrix is a forward pass through the network, a backward pass through the loss's gradient with respect
    to the scores, and a backward pass through the scores. The graphs of all batches are kept if they fit into `memory`
    bytes; otherwise they are made again for every product.
    """
    names = list(problem.parameters)
    point = {name: problem.parameters[name].detach().requires_grad_() for name in names}
    sizes = [values.numel() for values in point.values()]

    def gradient_graph(batch: Batch) -> tuple[Tensor, ...]:
        with torch.enable_grad(), SmoothConvolutions():
            return torch.autograd.grad(
                problem.value(point, batch), list(point.values()), create_graph=True, materialize_grads=True
            )

    def score_graphs(batch: Batch) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            scores = problem.scores(point, batch)
            ends = scores.detach().requires_grad_()
            (slope,) = torch.autograd.grad(problem.loss_of_scores(ends, batch), ends, create_graph=True)
        return scores, ends, slope

    make_graph = gradient_graph if matrix == "hessian" else score_graphs
    kept = _GRAPH * measure_forward_memory(problem) * len(problem.batches) <= memory
    graphs = [make_graph(batch) for batch in problem.batches] if kept else []

    def graph(batch: int) -> tuple[Tensor, ...]:
        return graphs[batch] if kept else make_graph(problem.batches[batch])

    def hessian(batch: int, vector: dict[str, Tensor]) -> tuple[Tensor, ...]:
        curved = [pair for pair in zip(graph(batch), vector.values(), strict=True) if pair[0].requires_grad]
        if not curved:  # the loss is linear in all parameters
            return tuple(map(torch.zeros_like, vector.values()))
        ends, weights = zip(*curved, strict=True)
        return torch.autograd.grad(ends, list(point.values()), weights, retain_graph=kept, materialize_grads=True)

    def ggn(batch: int, vector: dict[str, Tensor]) -> tuple[Tensor, ...]:
        scores, ends, slope = graph(batch)
        if not slope.requires_grad:  # the loss is linear in the scores
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
