"""Convolutions whose derivatives of every order use the three kernels of training.

<W * x, d> is linear in each of x, W and d. Its gradients are a convolution, its transpose and a weight gradient, and
the derivatives of each of these are the other two. PyTorch's own second derivative of a convolution uses other kernels,
such as a convolution with a kernel as large as the image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_DIMENSIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}


@dataclass(frozen=True)
class Convolution:
    """The settings of a convolution, and its three products."""

    inputs: torch.Size
    weight: torch.Size
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    @property
    def trailing(self) -> int:
        """Number of dimensions after that of the output channels."""
        return len(self.inputs) - 2

    def forward(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """W * x."""
        nothing = [0] * self.trailing
        return torch.convolution(
            inputs, weight, None, self.stride, self.padding, self.dilation, False, nothing, self.groups
        )

    def back(self, slope: Tensor, weight: Tensor) -> Tensor:
        """The gradient of <W * x, d> with respect to x."""
        return self._gradients(slope, _of_shape(slope, self.inputs), weight, mask=(True, False, False))[0]

    def weight_gradient(self, inputs: Tensor, slope: Tensor) -> Tensor:
        """The gradient of <W * x, d> with respect to W."""
        return self._gradients(slope, inputs, _of_shape(slope, self.weight), mask=(False, True, False))[1]

    def _gradients(
        self, slope: Tensor, inputs: Tensor, weight: Tensor, *, mask: tuple[bool, bool, bool]
    ) -> tuple[Tensor, ...]:
        settings = (self.stride, self.padding, self.dilation, False, [0] * self.trailing, self.groups)
        return torch.ops.aten.convolution_backward(slope, inputs, weight, None, *settings, mask)


def _of_shape(like: Tensor, shape: torch.Size) -> Tensor:
    """A tensor of which only the shape matters."""
    return like.new_empty(1).expand(shape)


def parse_convolution(
    func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]
) -> tuple[Convolution, Tensor | None] | None:
    """Settings and bias of a call of `torch.nn.functional.conv1d`, `conv2d` or `conv3d` on a batch.

    None for other calls, if padding is given by name, if inputs and weight are not the first two arguments, and under
    autocast, which computes in another type.
    """
    if func not in _DIMENSIONS or len(args) < 2:
        return None
    inputs, weight, *others = args
    if torch.is_autocast_enabled(inputs.device.type):
        return None
    names = ("bias", "stride", "padding", "dilation", "groups")
    given: dict[str, Any] = {**dict(zip(names, others, strict=False)), **kwargs}
    dims = _DIMENSIONS[func]
    if isinstance(given.get("padding"), str) or inputs.ndim != dims + 2:
        return None
    stride, padding, dilation = (
        _each(given.get(name, default), dims) for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    layer = Convolution(inputs.shape, weight.shape, stride, padding, dilation, given.get("groups", 1))
    return layer, given.get("bias")


def _each(value: int | Iterable[int], dims: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * dims if len(values) == 1 else values


class SmoothConvolutions(TorchFunctionMode):
    """Inside a `with`, convolutions can be differentiated again and again at the speed of training.

    Transformations of `torch.func` and forward mode use PyTorch's own convolutions.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Replace convolutions."""
        transformed = torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0
        used = None if transformed else parse_convolution(func, args, kwargs or {})
        if used is None:
            return func(*args, **(kwargs or {}))
        layer, bias = used
        outputs = _product(layer, "slope", {"inputs": args[0], "weight": args[1]})
        return outputs if bias is None else outputs + bias.reshape(-1, *[1] * layer.trailing)


def _product(layer: Convolution, of: str, operands: Mapping[str, Tensor]) -> Tensor:
    """The gradient of <W * x, d> with respect to one operand, computed from the other two."""
    found: Tensor = _Product.apply(layer, of, *(operands[name] for name in _others(of)))  # type: ignore[no-untyped-call]
    return found


def _others(of: str) -> list[str]:
    return [name for name in ("inputs", "weight", "slope") if name != of]


class _Product(torch.autograd.Function):
    """A gradient of <W * x, d>. Its derivative along a tensor is <W * x, d> with that tensor in the operand's place."""

    @staticmethod
    def forward(ctx: Any, layer: Convolution, of: str, *given: Tensor) -> Tensor:
        ctx.layer, ctx.of = layer, of
        ctx.save_for_backward(*given)
        kernels: dict[str, Callable[..., Tensor]]
        kernels = {"inputs": layer.back, "weight": layer.weight_gradient, "slope": layer.forward}
        return kernels[of](**dict(zip(_others(of), given, strict=True)))

    @staticmethod
    def backward(ctx: Any, along: Tensor) -> tuple[Tensor | None, ...]:
        names = _others(ctx.of)
        operands = {**dict(zip(names, ctx.saved_tensors, strict=True)), ctx.of: along}
        needed = zip(names, ctx.needs_input_grad[2:], strict=True)
        return None, None, *(_product(ctx.layer, name, operands) if wanted else None for name, wanted in needed)
