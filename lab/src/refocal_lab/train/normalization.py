"""A batch norm layer that trains with the kernels of `kernels.norm` in bfloat16 on a GPU, else with PyTorch's."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refocal_lab.train import blocks

_HAS_TRITON = importlib.util.find_spec("triton") is not None

Activation = Literal["none", "relu", "relu6"]


class BatchNorm(nn.BatchNorm2d):
    """`nn.BatchNorm2d` that also adds a residual and applies an activation, for residual networks.

    In training in bfloat16 on a GPU, one kernel normalizes, adds and activates. Elsewhere PyTorch's operations do.

    Attributes:
        own: Whether to use our own kernels where they are supported; benchmarks compare both.
    """

    own = True

    def forward(self, features: Tensor, residual: Tensor | None = None, activation: Activation = "none") -> Tensor:
        """Normalize (N, C, H, W), add the residual of the same shape, activate."""
        if self._is_supported(features, residual):
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
            moments = measure(features.detach(), self.running_mean, self.running_var, self.momentum, self.eps)
            return normalize(features, moments, self.weight, self.bias, residual, activation)
        normalized = super().forward(features)
        if residual is not None:
            normalized = normalized + residual
        match activation:
            case "relu":
                return F.relu(normalized, inplace=True)
            case "relu6":
                return F.relu6(normalized, inplace=True)
            case _:
                return normalized

    def _is_supported(self, features: Tensor, residual: Tensor | None) -> bool:
        return (
            self.own
            and _HAS_TRITON
            and features.is_cuda
            and torch.version.hip is None
            and self.training
            and self.affine
            and self.running_mean is not None
            and self.momentum is not None
            and features.dtype == torch.bfloat16
            and self.weight.dtype == self.running_mean.dtype == torch.float32
            and features.ndim == 4
            and features.shape[1] == self.num_features < features.numel() < 2**31
            and (residual is None or (residual.dtype == features.dtype and residual.shape == features.shape))
        )


# the fastest on an H200 of those that benchmarks/normalization.py compares
_FORWARD = (4096, 2)  # values of a block, and stages of the loops over blocks
_BACKWARD = (2048, 1)
_WARPS = 4
_MERGED = 8  # channels whose shares one program merges


@torch.library.custom_op("refocal::measure_moments", mutates_args=("running_mean", "running_var"))
def measure(inputs: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, epsilon: float) -> Tensor:
    """Mean and inverse deviation (2, C) of the channels of (N, C, H, W); the running statistics take a step."""
    from refocal_lab.train.kernels import norm

    inputs = inputs.contiguous(memory_format=torch.channels_last)
    block, stages = _FORWARD
    channels, tile = inputs.shape[1], blocks.divide(inputs, block)
    size = (inputs.numel() // channels, channels)
    parts = inputs.new_empty((2, tile.shares, channels), dtype=torch.float32)
    norm.measure[(tile.across, tile.shares)](
        *(inputs, parts, *size), ROWS=tile.rows, WIDTH=tile.width, STAGES=stages, num_warps=_WARPS
    )
    moments = _empty_moments(inputs)
    norm.merge_moments[(-(-channels // _MERGED),)](
        *(parts, moments, running_mean, running_var, *size, tile.shares, epsilon, momentum),
        ROWS=tile.rows,
        WIDTH=_MERGED,
        SHARES=blocks.SHARES,
        num_warps=_WARPS,
    )
    return moments


@torch.library.custom_op("refocal::normalize", mutates_args=())
def normalize(  # noqa: PLR0917
    inputs: Tensor, moments: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, activation: str
) -> Tensor:
    """Normalize (N, C, H, W) by the moments of `measure`, add a residual, activate.

    The gradient is that of batch norm as a whole: the moments are understood as functions of the inputs.
    """
    from refocal_lab.train.kernels import norm

    inputs = inputs.contiguous(memory_format=torch.channels_last)
    if residual is not None:
        residual = residual.contiguous(memory_format=torch.channels_last)
    outputs = torch.empty_like(inputs, memory_format=torch.channels_last)
    channels, tile = inputs.shape[1], blocks.divide(inputs, _FORWARD[0])
    norm.normalize[(tile.down * tile.across,)](
        *(inputs, moments, weight, bias, residual, outputs, inputs.numel() // channels, channels),
        ACTIVATION=activation,
        RESIDUAL=residual is not None,
        ROWS=tile.rows,
        WIDTH=tile.width,
        num_warps=_WARPS,
    )
    return outputs


@torch.library.custom_op("refocal::normalize_backward", mutates_args=())
def _differentiate(  # noqa: PLR0917
    gradient: Tensor,
    inputs: Tensor,
    outputs: Tensor | None,
    moments: Tensor,
    weight: Tensor,
    bias: Tensor,
    activation: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients with respect to the inputs, to bias and weight (2, C), and to the residual (else empty).

    The outputs are given if an activation came after the residual; the gradient that it passes on is read off them.
    """
    from refocal_lab.train.kernels import norm

    gradient, inputs = (each.contiguous(memory_format=torch.channels_last) for each in (gradient, inputs))
    after_sum = outputs is not None
    if outputs is not None:
        outputs = outputs.contiguous(memory_format=torch.channels_last)
    slope, sums, passed = _empty_gradients(inputs, with_residual=after_sum)
    block, stages = _BACKWARD
    channels, tile = inputs.shape[1], blocks.divide(inputs, block)
    size = (inputs.numel() // channels, channels)
    parts = inputs.new_empty((tile.shares, 2, channels), dtype=torch.float32)
    norm.measure_gradient[(tile.across, tile.shares)](
        *(gradient, inputs, outputs, moments, weight, bias, passed, parts, *size),
        ACTIVATION=activation,
        RESIDUAL=after_sum,
        ROWS=tile.rows,
        WIDTH=tile.width,
        STAGES=stages,
        num_warps=_WARPS,
    )
    blocks.add_shares(parts, sums)
    norm.differentiate[(tile.down * tile.across,)](
        *(passed if after_sum else gradient, inputs, moments, weight, bias, sums, slope, *size),
        ACTIVATION="none" if after_sum else activation,
        ROWS=tile.rows,
        WIDTH=tile.width,
        num_warps=_WARPS,
    )
    return slope, sums, passed


def _empty_moments(inputs: Tensor) -> Tensor:
    return inputs.new_empty((2, inputs.shape[1]), dtype=torch.float32)


def _empty_gradients(inputs: Tensor, *, with_residual: bool) -> tuple[Tensor, Tensor, Tensor]:
    slope = torch.empty_like(inputs, memory_format=torch.channels_last)
    return slope, _empty_moments(inputs), torch.empty_like(slope) if with_residual else inputs.new_empty(0)


@measure.register_fake
def _(inputs: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, epsilon: float) -> Tensor:  # noqa: ARG001
    return _empty_moments(inputs)


@normalize.register_fake
def _(  # noqa: PLR0917
    inputs: Tensor,
    moments: Tensor,  # noqa: ARG001
    weight: Tensor,  # noqa: ARG001
    bias: Tensor,  # noqa: ARG001
    residual: Tensor | None,  # noqa: ARG001
    activation: str,  # noqa: ARG001
) -> Tensor:
    return torch.empty_like(inputs, memory_format=torch.channels_last)


@_differentiate.register_fake
def _(  # noqa: PLR0917
    gradient: Tensor,  # noqa: ARG001
    inputs: Tensor,
    outputs: Tensor | None,
    moments: Tensor,  # noqa: ARG001
    weight: Tensor,  # noqa: ARG001
    bias: Tensor,  # noqa: ARG001
    activation: str,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_gradients(inputs, with_residual=outputs is not None)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    features, moments, weight, bias, residual, ctx.activation = inputs
    ctx.has_residual = residual is not None
    activated = ctx.has_residual and ctx.activation != "none"
    ctx.save_for_backward(features, moments, weight, bias, output if activated else None)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    inputs, moments, weight, bias, outputs = ctx.saved_tensors
    slope, sums, passed = _differentiate(gradient, inputs, outputs, moments, weight, bias, ctx.activation)
    residual = None
    if ctx.has_residual:
        residual = gradient if outputs is None else passed
    return slope, None, sums[1], sums[0], residual, None


normalize.register_autograd(_backward, setup_context=_keep_for_backward)
_differentiate.register_autograd(blocks.reject_second_derivative)
