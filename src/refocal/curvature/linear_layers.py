"""v'Hv through linear layers without the gradient in their weights.

With y = Wx, d the loss's slope in y, and W moving along V, the weight's part of v'Hv is the change of <d, Vx>. Vx is
what y changes by, too. So the large product of d' with x, which a gradient in W needs for each vector, is never formed:
a first layer costs one matrix product a vector in place of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from refocal.curvature.problem import Problem

_LINEAR = torch._C._nn.linear  # what torch.nn.functional.linear is


def linear_weights(problem: Problem) -> set[str]:
    """Parameters that enter as the weight of `torch.nn.functional.linear` and in no other way."""
    seen = _Uses(problem.parameters)
    with torch.no_grad(), seen:
        functional_call(problem.model, problem.parameters, (problem.batches[0].inputs,))
    return seen.in_linear - seen.elsewhere


class MovingWeights(TorchFunctionMode):
    """Inside a `with`, weights of linear layers move along vectors as `time` does, though they are constants.

    Args:
        weights: The constants by name.
        vectors: What they move along.
        time: A number, to be differentiated in.
    """

    def __init__(self, weights: Mapping[str, Tensor], vectors: Mapping[str, Tensor], time: Tensor) -> None:
        super().__init__()
        self._vectors = {id(values): vectors[name] for name, values in weights.items()}
        self._time = time

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Take over the linear layers."""
        if func is not _LINEAR or id(args[1] if len(args) > 1 else None) not in self._vectors:
            return func(*args, **(kwargs or {}))
        inputs, weight, *bias = args
        vector = self._vectors[id(weight)]
        outputs = _Linear.apply(inputs, weight, vector, _LINEAR(inputs, vector), self._time)  # type: ignore[no-untyped-call]
        biases = [each for each in (*bias, *(kwargs or {}).values()) if each is not None]
        return outputs + biases[0] if biases else outputs


class _Uses(TorchFunctionMode):
    """Notes how parameters enter."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {id(values): name for name, values in parameters.items()}
        self.in_linear: set[str] = set()
        self.elsewhere: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Note the parameters among the arguments."""
        result = func(*args, **(kwargs or {}))
        in_linear = func is _LINEAR and len(args) > 1
        others = (args[0], *args[2:]) if in_linear else args
        if in_linear:
            self.in_linear |= self._among([args[1]])
        if any(isinstance(each, Tensor) for each in tree_leaves(result)):  # else its shape or type was asked for
            self.elsewhere |= self._among((others, kwargs))
        return result

    def _among(self, values: Any) -> set[str]:
        return {self._names[id(each)] for each in tree_leaves(values) if id(each) in self._names}


class _Linear(torch.autograd.Function):
    """Wx, which moves by Vx; its slope in time is <d, Vx>."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, vector: Tensor, along: Tensor, time: Tensor) -> Tensor:  # noqa: ARG004
        return _LINEAR(inputs, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004
        _, weight, vector, along, _ = inputs
        ctx.save_for_backward(weight, vector, along)
        ctx.save_for_forward(weight, along)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        weight, vector, along = ctx.saved_tensors
        back = _Transposed.apply(slope, weight, vector) if ctx.needs_input_grad[0] else None  # type: ignore[no-untyped-call]
        return back, None, None, None, (slope * along).sum()

    @staticmethod
    def jvp(ctx: Any, inputs: Tensor | None, *_: Any) -> Tensor:
        weight, along = ctx.saved_tensors
        return along.clone() if inputs is None else along + _LINEAR(inputs, weight)


class _Transposed(torch.autograd.Function):
    """W'd, which moves by V'd."""

    generate_vmap_rule = True

    @staticmethod
    def forward(slope: Tensor, weight: Tensor, vector: Tensor) -> Tensor:  # noqa: ARG004
        return slope @ weight

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, change: Tensor | None, *_: Any) -> Tensor:
        slope, weight, vector = ctx.saved_tensors
        return slope @ vector if change is None else slope @ vector + change @ weight
