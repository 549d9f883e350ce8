"""v'Hv through linear layers and convolutions without the gradient with respect to their weights.

Let y = Wx, let d be the gradient of the loss with respect to y, and let W move along V. The weight's part of v'Hv is
the change of <d, Vx>. It has two terms: the change of d times Vx, which is also a change of y, and the change of x
times V'd, which is also a change of the gradient with respect to x. Both are needed anyway. The large product of the
change of d with x, which a gradient with respect to W needs for each vector, is never formed. A first layer costs one
product per vector instead of two, and a later layer four instead of six. One operand of each is shared by all vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from refocal.curvature.convolution import Convolution, parse_convolution
from refocal.curvature.problem import Problem, find_leaves

_LINEAR = torch._C._nn.linear  # what torch.nn.functional.linear is


def find_layer_weights(problem: Problem) -> set[str]:
    """Names of the parameters that are used only as the weight of a linear layer or a convolution.

    They are used nowhere else if the loss does not depend on them after the weights of layers are cut from its graph.
    """
    found, elsewhere = set(), set()
    for batch in problem.batches:
        point = {name: values.detach().requires_grad_() for name, values in problem.parameters.items()}
        cut = _Cut(point)
        with torch.enable_grad(), cut:
            value = problem.value(point, batch)
        ends = set(map(id, find_leaves(value)))
        found |= cut.found
        elsewhere |= {name for name, values in point.items() if id(values) in ends}
        del value  # frees its graph before the next one is built
    return found - elsewhere


class MovingWeights(TorchFunctionMode):
    """Inside a `with`, weights of layers move along vectors as `time` changes, although they are constants.

    Args:
        weights: The constants by name.
        vectors: The direction of each, by name.
        time: The number to differentiate with respect to.
    """

    def __init__(self, weights: Mapping[str, Tensor], vectors: Mapping[str, Tensor], time: Tensor) -> None:
        super().__init__()
        self._vectors = {id(values): vectors[name] for name, values in weights.items()}
        self._time = time

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Replace the layers."""
        use = _parse_use(func, args, kwargs or {})
        if use is None or id(use.weight) not in self._vectors:
            return func(*args, **(kwargs or {}))
        vector = self._vectors[id(use.weight)]
        along = use.layer.forward(use.inputs.detach(), vector)
        outputs: Tensor = _Moving.apply(use.layer, use.inputs, use.weight, vector, along, self._time)  # type: ignore[no-untyped-call]
        return outputs if use.bias is None else outputs + use.bias.reshape(use.bias.shape + (1,) * use.layer.trailing)


@dataclass(frozen=True)
class _Linear:
    trailing = 0  # number of dimensions after that of the outputs

    def forward(self, inputs: Tensor, weight: Tensor) -> Tensor:
        return F.linear(inputs, weight)

    def back(self, slope: Tensor, weight: Tensor) -> Tensor:
        return slope @ weight


@dataclass(frozen=True)
class _Use:
    layer: _Linear | Convolution
    inputs: Tensor
    weight: Tensor
    bias: Tensor | None


def _parse_use(func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> _Use | None:
    """How a call of a layer uses the weight that is its second argument; None for other calls."""
    if len(args) < 2:
        return None
    inputs, weight, *others = args
    if func is _LINEAR:
        if weight.ndim != 2 or torch.is_autocast_enabled(weight.device.type):
            return None
        return _Use(_Linear(), inputs, weight, others[0] if others else kwargs.get("bias"))
    used = parse_convolution(func, args, kwargs)
    return None if used is None else _Use(used[0], inputs, weight, used[1])


class _Cut(TorchFunctionMode):
    """Records the parameters that are weights of layers, and cuts these uses from the graph."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {id(values): name for name, values in parameters.items()}
        self.found: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Replace weights of layers by constants."""
        use = _parse_use(func, args, kwargs or {})
        if use is None or id(use.weight) not in self._names:
            return func(*args, **(kwargs or {}))
        self.found.add(self._names[id(use.weight)])
        return func(args[0], use.weight.detach(), *args[2:], **(kwargs or {}))


class _Moving(torch.autograd.Function):
    """Wx, which moves by Vx. Its derivative in time is <d, Vx>."""

    generate_vmap_rule = True

    @staticmethod
    def forward(layer: Any, inputs: Tensor, weight: Tensor, vector: Tensor, along: Tensor, time: Tensor) -> Tensor:  # noqa: ARG004, PLR0917
        return layer.forward(inputs, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.set_materialize_grads(False)
        ctx.layer, *tensors, _ = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, slope: Tensor | None) -> tuple[Tensor | None, ...]:
        if slope is None:  # an operation stopped the gradient
            return (None,) * 6
        wanted = ctx.needs_input_grad[1]
        back, in_time = _MovingBack.apply(ctx.layer, wanted, slope, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return None, back if wanted else None, None, None, None, in_time

    @staticmethod
    def jvp(ctx: Any, _: None, change: Tensor | None, *others: Any) -> Tensor:  # noqa: ARG004
        _, weight, _, along = ctx.saved_tensors
        return along.clone() if change is None else along + ctx.layer.forward(change, weight)


class _MovingBack(torch.autograd.Function):
    """W'd, which moves by V'd, and <d, Vx>. Only the change of the latter is needed, so its value is 0."""

    generate_vmap_rule = True

    @staticmethod
    def forward(  # noqa: PLR0917
        layer: Any,
        wanted: bool,
        slope: Tensor,
        inputs: Tensor,  # noqa: ARG004
        weight: Tensor,
        vector: Tensor,  # noqa: ARG004
        along: Tensor,  # noqa: ARG004
    ) -> tuple[Tensor, Tensor]:
        nothing = slope.new_zeros(())
        return layer.back(slope, weight) if wanted else nothing.clone(), nothing

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        ctx.set_materialize_grads(False)
        ctx.layer, ctx.wanted, *tensors = inputs
        ctx.save_for_forward(*tensors)

    @staticmethod
    def jvp(
        ctx: Any,
        _: None,
        __: None,
        slope_change: Tensor | None,
        change: Tensor | None,
        *others: Any,  # noqa: ARG004
    ) -> tuple[Tensor, Tensor]:
        slope, _, weight, vector, along = ctx.saved_tensors
        in_time = nothing = slope.new_zeros(())
        if slope_change is not None:
            in_time = in_time + _dot(slope_change, along)
        if not ctx.wanted:
            return nothing, in_time
        moved = ctx.layer.back(slope, vector)
        if change is not None:
            in_time = in_time + _dot(moved, change)
        return moved if slope_change is None else moved + ctx.layer.back(slope_change, weight), in_time


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """<a, b>, sample by sample, because a GPU is slow at products of few very long vectors."""
    rows = [each.flatten(1) if each.ndim > 1 else each for each in (a, b)]
    return torch.linalg.vecdot(*rows).sum()
