"""How much memory products with a matrix of second derivatives take."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor
from torch.func import functional_call

from refocal.curvature.problem import Problem


def choose_memory(device: torch.device) -> int:
    """The default number of bytes for intermediate values: 128 MiB, or half of what is free on a GPU."""
    if device.type != "cuda":
        return 2**27
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (torch.cuda.mem_get_info(device)[0] + unused) // 2


def measure_forward_memory(problem: Problem) -> int:
    """Bytes that a forward pass over the largest batch keeps for a backward pass."""
    batch = max(problem.batches, key=lambda each: len(each.target))
    kept: dict[int, int] = {}
    parameters = {name: values.detach().requires_grad_() for name, values in problem.parameters.items()}
    own = {values.untyped_storage().data_ptr() for values in (*parameters.values(), batch.inputs, batch.target)}

    def keep(values: Tensor) -> Tensor:
        kept[values.untyped_storage().data_ptr()] = values.untyped_storage().nbytes()
        return values

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda values: values):
        problem.loss(functional_call(problem.model, parameters, (batch.inputs,)), batch.target)
    return sum(size for address, size in kept.items() if address not in own)


def count_vectors(problem: Problem, memory: int, *, moving: Collection[str] = ()) -> int:
    """How many vectors can be multiplied at once in `memory` bytes; at least 1.

    A vector takes memory for itself and for the change of the gradient, except in the weights named by `moving`.
    Forward and backward passes also keep derivatives along it of most of what a forward pass keeps. The factors below
    cover the peaks that were measured.
    """
    itself = sum((2 if name in moving else 5) * values.nbytes for name, values in problem.parameters.items())
    alive = 8 if problem.device.type == "cpu" else 4
    return max(1, memory // (itself + alive * measure_forward_memory(problem)))
