"""v'Av for many vectors at once: what Hutchinson's estimate of a trace needs, and no more."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from refocal.curvature.moving_weights import MovingWeights
from refocal.curvature.problem import Batch, Problem, kept_by_forward

Matrix = Literal["hessian", "ggn"]
Vector = dict[str, Tensor]


def quadratic_forms(
    problem: Problem, batch: Batch, *, matrix: Matrix, moving: Collection[str] = ()
) -> Callable[[Vector], Tensor]:
    """The function that takes vectors (C, *shape) of each parameter to v'Av (C,), A the part of one batch.

    The Gauss-Newton form is |Jv|^2 in the metric of the loss's Hessian in the scores: a pass forward, none back. The
    Hessian's is a pass forward over a pass back; `moving` names weights of layers (`layer_weights`), for
    which no gradient is formed.
    """

    def ggn(vector: Vector) -> Tensor:
        scores, change, *_ = jvp(lambda values: problem.scores(values, batch), (problem.parameters,), (vector,))
        slope = grad(lambda values: problem.loss_of_scores(values, batch))
        return (change * jvp(slope, (scores,), (change,))[1]).sum()

    weights = {name: values for name, values in problem.parameters.items() if name in moving}
    others = {name: values for name, values in problem.parameters.items() if name not in moving}
    start = torch.zeros((), dtype=problem.dtype, device=problem.device)

    def hessian(vector: Vector) -> Tensor:
        def value(values: Vector, time: Tensor) -> Tensor:
            with MovingWeights(weights, vector, time):
                return problem.value({**weights, **values}, batch)

        along = {name: vector[name] for name in others}
        slopes, in_time = jvp(grad(value, argnums=(0, 1)), (others, start), (along, torch.ones_like(start)))[1]
        parts = [torch.linalg.vecdot(slopes[name].flatten(), vector[name].flatten()) for name in others]
        return torch.stack([in_time, *parts]).sum()

    return vmap(hessian if matrix == "hessian" else ggn)


def vectors_at_once(problem: Problem, memory: int, *, moving: Collection[str] = ()) -> int:
    """How many vectors fit into `memory` bytes, by what a forward pass over the largest batch keeps.

    Each is there itself, with the change of the gradient in all but the weights that are `moving`; and derivatives
    along it of most of what is kept are alive in passes forward and back together. Twice the bytes of the former, or
    five times with the gradient, and eight times those of the latter, on a GPU four times, hold the peaks that were
    measured.
    """
    itself = sum((2 if name in moving else 5) * values.nbytes for name, values in problem.parameters.items())
    alive = 8 if problem.device.type == "cpu" else 4
    return max(1, memory // (itself + alive * kept_by_forward(problem)))


class Signs:
    """Vectors of independent signs for each parameter, drawn into the same memory again and again.

    Args:
        most: How many vectors a draw may ask for.
        like: The parameters.
        generator: Where the bits come from.
    """

    def __init__(self, most: int, like: Vector, generator: torch.Generator) -> None:
        self._like, self._generator = like, generator
        self._rooms = {name: values.new_empty((_words(most * values.numel()) * 8, 8)) for name, values in like.items()}

    def draw(self, count: int) -> Vector:
        """Vectors (count, *shape), until the next draw: bits of random numbers, looked up by byte."""
        drawn = {}
        for name, values in self._like.items():
            numbers, device = count * values.numel(), values.device
            words = torch.randint(
                -(2**63), 2**63 - 1, (_words(numbers),), dtype=torch.int64, device=device, generator=self._generator
            )
            octets = torch.arange(256, device=device)[:, None]
            signs_of_octet = ((octets >> torch.arange(8, device=device)) & 1).to(values.dtype).mul_(2).sub_(1)
            room = self._rooms[name][: len(words) * 8]
            torch.index_select(signs_of_octet, 0, words.view(torch.uint8).int(), out=room)
            drawn[name] = room.flatten()[:numbers].reshape(count, *values.shape)
        return drawn


def _words(bits: int) -> int:
    """How many words of 64 bits hold them."""
    return (bits + 63) // 64
