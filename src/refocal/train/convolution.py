"""A convolution layer that takes the kernels of `kernels.conv3x3` where they are faster, and PyTorch's elsewhere."""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_HAS_TRITON = importlib.util.find_spec("triton") is not None


class _Layout(NamedTuple):
    """How the kernels are laid out for a number of channels: pixels a program, and shares of a gradient's sum."""

    pixels: int
    gradient_pixels: int
    shares: int


_LAYOUTS = {16: _Layout(256, 128, 128), 32: _Layout(128, 64, 64), 64: _Layout(64, 64, 32)}
_WARPS = 4


class Convolution(nn.Conv2d):
    """`nn.Conv2d`; on a GPU in bfloat16, a 3x3 convolution that keeps 16, 32 or 64 channels is fast."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Convolve (N, C, H, W)."""
        if self._is_served(inputs):
            return convolve(inputs, self.weight, False)
        return super().forward(inputs)

    def _is_served(self, inputs: Tensor) -> bool:
        channels, *size = self.weight.shape[1:]
        settings = (*size, *self.stride, *self.padding, *self.dilation, self.groups)
        return (
            _HAS_TRITON
            and inputs.is_cuda
            and torch.version.hip is None
            and inputs.dtype == self.weight.dtype == torch.bfloat16
            and settings == (3, 3, 1, 1, 1, 1, 1, 1, 1)
            and self.bias is None
            and self.weight.shape[0] == channels
            and channels in _LAYOUTS
            and 0 < inputs.numel() < 2**31
        )


@torch.library.custom_op("refocal::convolve3x3", mutates_args=())
def convolve(inputs: Tensor, weight: Tensor, transposed: bool) -> Tensor:
    """3x3 convolution of as many channels as it has; transposed: the gradient in its inputs."""
    from refocal.train.kernels import conv3x3

    inputs = inputs.contiguous(memory_format=torch.channels_last)
    weight = weight.contiguous(memory_format=torch.channels_last)
    count, channels, height, width = inputs.shape
    layout, pixels = _LAYOUTS[channels], count * height * width
    outputs = torch.empty_like(inputs)
    conv3x3.convolve[(-(-pixels // layout.pixels),)](
        inputs,
        weight,
        outputs,
        pixels,
        HEIGHT=height,
        WIDTH=width,
        CHANNELS=channels,
        BLOCK=layout.pixels,
        TRANSPOSED=transposed,
        num_warps=_WARPS,
    )
    return outputs


@torch.library.custom_op("refocal::correlate3x3", mutates_args=())
def _correlate(inputs: Tensor, gradient: Tensor) -> Tensor:
    from refocal.train.kernels import conv3x3

    inputs = inputs.contiguous(memory_format=torch.channels_last)
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    count, channels, height, width = inputs.shape
    layout, size = _LAYOUTS[channels], 9 * channels * channels
    parts = torch.empty((layout.shares, size), dtype=torch.float32, device=inputs.device)
    conv3x3.correlate[(layout.shares, 3)](
        inputs,
        gradient,
        parts,
        count * height * width,
        HEIGHT=height,
        WIDTH=width,
        CHANNELS=channels,
        BLOCK=layout.gradient_pixels,
        num_warps=_WARPS,
    )
    total = _like_weight(inputs)
    block = 4096 // layout.shares
    conv3x3.add_up[(-(-size // block),)](parts, total, SIZE=size, SHARES=layout.shares, BLOCK=block, num_warps=_WARPS)
    return total


def _like_weight(inputs: Tensor) -> Tensor:
    channels = inputs.shape[1]
    shape = (channels, channels, 3, 3)
    return torch.empty(shape, dtype=inputs.dtype, device=inputs.device, memory_format=torch.channels_last)


@convolve.register_fake
def _(inputs: Tensor, weight: Tensor, transposed: bool) -> Tensor:  # noqa: ARG001
    return torch.empty_like(inputs, memory_format=torch.channels_last)


@_correlate.register_fake
def _(inputs: Tensor, gradient: Tensor) -> Tensor:  # noqa: ARG001
    return _like_weight(inputs)


def _keep_for_backward(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.transposed = inputs[2]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    inputs, weight = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    pair = (gradient, inputs) if ctx.transposed else (inputs, gradient)
    return (
        convolve(gradient, weight, not ctx.transposed) if wanted[0] else None,
        _correlate(*pair) if wanted[1] else None,
        None,
    )


convolve.register_autograd(_backward, setup_context=_keep_for_backward)
