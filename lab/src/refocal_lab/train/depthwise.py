"""The 3x3 convolution of each channel by itself and its gradients, by the kernels of `kernels.depthwise`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refocal_lab.train import blocks

_BLOCK = 2048  # values of a block
_WARPS = 4


@torch.library.custom_op("refocal::depthwise3x3", mutates_args=())
def convolve_depthwise(inputs: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Convolve (N, C, H, W) with a weight (C, 1, 3, 3), padded by one zero; H and W are multiples of the stride."""
    from refocal_lab.train.kernels import depthwise

    inputs = inputs.contiguous(memory_format=torch.channels_last)
    outputs = _empty_results(inputs, stride)
    tile = blocks.divide(outputs, _BLOCK)
    depthwise.depthwise_outputs[(tile.down * tile.across,)](
        *(inputs, weight.contiguous(), outputs, outputs.numel() // outputs.shape[1], outputs.shape[1]),
        **_constants(outputs, stride, tile),
    )
    return outputs


@torch.library.custom_op("refocal::depthwise3x3_backward", mutates_args=())
def _differentiate(gradient: Tensor, weight: Tensor, stride: int) -> Tensor:
    """The gradient with respect to the inputs."""
    from refocal_lab.train.kernels import depthwise

    gradient = gradient.contiguous(memory_format=torch.channels_last)
    slope = _empty_inputs(gradient, stride)
    tile = blocks.divide(slope, _BLOCK)
    depthwise.depthwise_slope[(tile.down * tile.across,)](
        *(gradient, weight.contiguous(), slope, slope.numel() // slope.shape[1], slope.shape[1]),
        **_constants(gradient, stride, tile),
    )
    return slope


@torch.library.custom_op("refocal::depthwise3x3_correlate", mutates_args=())
def _correlate(inputs: Tensor, gradient: Tensor, stride: int) -> Tensor:
    """The gradient with respect to the weight."""
    from refocal_lab.train.kernels import depthwise

    inputs, gradient = (each.contiguous(memory_format=torch.channels_last) for each in (inputs, gradient))
    channels, tile = inputs.shape[1], blocks.divide(gradient, _BLOCK)
    parts = inputs.new_empty((tile.shares, channels, 9), dtype=torch.float32)
    depthwise.depthwise_weight[(tile.across, tile.shares, 3)](
        *(inputs, gradient, parts, gradient.numel() // channels, channels),
        **_constants(gradient, stride, tile),
    )
    total = _empty_weight(inputs)
    blocks.add_shares(parts, total)
    return total


def _constants(results: Tensor, stride: int, tile: blocks.Blocks) -> dict[str, int]:
    size = {"HEIGHT": results.shape[2], "WIDTH": results.shape[3], "STRIDE": stride}
    return size | {"PIXELS": tile.rows, "LANES": tile.width, "num_warps": _WARPS}


def _empty_results(inputs: Tensor, stride: int) -> Tensor:
    count, channels, height, width = inputs.shape
    return _empty(inputs, (count, channels, height // stride, width // stride))


def _empty_inputs(gradient: Tensor, stride: int) -> Tensor:
    count, channels, height, width = gradient.shape
    return _empty(gradient, (count, channels, height * stride, width * stride))


def _empty(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _empty_weight(inputs: Tensor) -> Tensor:
    return inputs.new_empty((inputs.shape[1], 1, 3, 3))


@convolve_depthwise.register_fake
def _(inputs: Tensor, weight: Tensor, stride: int) -> Tensor:  # noqa: ARG001
    return _empty_results(inputs, stride)


@_differentiate.register_fake
def _(gradient: Tensor, weight: Tensor, stride: int) -> Tensor:  # noqa: ARG001
    return _empty_inputs(gradient, stride)


@_correlate.register_fake
def _(inputs: Tensor, gradient: Tensor, stride: int) -> Tensor:  # noqa: ARG001
    return _empty_weight(inputs)


def _keep_for_backward(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[:2])
    ctx.stride = inputs[2]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    inputs, weight = ctx.saved_tensors
    return (
        _differentiate(gradient, weight, ctx.stride) if ctx.needs_input_grad[0] else None,
        _correlate(inputs, gradient, ctx.stride) if ctx.needs_input_grad[1] else None,
        None,
    )


convolve_depthwise.register_autograd(_backward, setup_context=_keep_for_backward)
for _gradient in (_differentiate, _correlate):
    _gradient.register_autograd(blocks.reject_second_derivative)
