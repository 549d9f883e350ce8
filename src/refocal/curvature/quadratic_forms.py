"""v'Av for many vectors at once, which is all that Hutchinson's estimate of a trace needs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from refocal.curvature.moving_weights import MovingWeights
from refocal.curvature.problem import Batch, Problem

Matrix = Literal["hessian", "ggn"]
Vector = dict[str, Tensor]


def quadratic_forms(
    problem: Problem, batch: Batch, *, matrix: Matrix, moving: Collection[str] = ()
) -> Callable[[Vector], Tensor]:
    """A function from vectors (C, *shape) of each parameter to v'Av (C,), where A is the part of one batch.

    The form of the Gauss-Newton matrix is |Jv|^2 in the metric of the loss's Hessian with respect to the scores: one
    forward pass and no backward pass. The form of the Hessian is forward mode over reverse mode. `moving` names the
    weights of layers (`find_layer_weights`) for which no gradient is formed.
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


class Signs:
    """Random vectors of independent signs for each parameter, drawn into the same memory every time.

    Args:
        most: The largest number of vectors per draw.
        like: The parameters.
        generator: The source of random bits.
    """

    def __init__(self, most: int, like: Vector, generator: torch.Generator) -> None:
        self._like, self._generator = like, generator
        self._rooms = {name: values.new_empty((_words(most * values.numel()) * 8, 8)) for name, values in like.items()}

    def draw(self, count: int) -> Vector:
        """Vectors (count, *shape), valid until the next draw. Each byte of random bits is looked up as eight signs."""
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
    """The number of 64-bit words that hold this many bits."""
    return (bits + 63) // 64
