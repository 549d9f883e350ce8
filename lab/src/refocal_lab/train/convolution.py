"""A convolution layer that uses the kernels of `kernels.conv3x3` and `kernels.depthwise` where they are faster."""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from refocal_lab.train import blocks
from refocal_lab.train.depthwise import convolve_depthwise

_HAS_TRITON = importlib.util.find_spec("triton") is not None


class _Tile(NamedTuple):
    """How a kernel divides its work.

    Attributes:
        pixels: Neighboring results that one group computes together.
        taps: Taps of a row that are one matrix product.
        block: Groups per program.
        warps: Warps per program.
        shares: Partial sums of a gradient.
        stages: Stages of the software pipeline.
    """

    pixels: int
    taps: int
    block: int
    warps: int
    shares: int = 0
    stages: int = 1

    def fit(self, width: int) -> _Tile:
        """This tile, or one of single pixels if the width of the image is not a multiple."""
        return self if width % self.pixels == 0 else self._replace(pixels=1)


# by channels in, channels out and stride: the fastest of the tiles tried on an H200
_CONVOLVED = {
    (3, 16, 1): _Tile(1, 3, 128, 2),
    (16, 16, 1): _Tile(2, 3, 128, 4),
    (32, 32, 1): _Tile(2, 3, 128, 8),
    (64, 64, 1): _Tile(1, 1, 128, 8),
    (16, 32, 2): _Tile(1, 1, 256, 4),
    (32, 64, 2): _Tile(1, 1, 128, 8),
}
_CORRELATED = {
    (3, 16, 1): _Tile(1, 3, 128, 1, shares=264),
    (16, 16, 1): _Tile(2, 3, 64, 4, shares=132, stages=3),
    (32, 32, 1): _Tile(2, 3, 32, 4, shares=48, stages=3),
    (64, 64, 1): _Tile(1, 1, 64, 4, shares=24, stages=3),
    (16, 32, 2): _Tile(1, 3, 64, 4, shares=66, stages=3),
    (32, 64, 2): _Tile(1, 3, 64, 4, shares=32, stages=3),
}
_SPREAD_BLOCK, _WARPS = 256, 4


class Convolution(nn.Conv2d):
    """`nn.Conv2d`, with faster kernels in bfloat16 on a GPU for 3x3 convolutions of few channels or channel by channel.

    Attributes:
        own: Whether to use our own kernels where they are faster; benchmarks compare both.
    """

    own = True

    def forward(self, inputs: Tensor) -> Tensor:
        """Convolve (N, C, H, W)."""
        if self._is_supported(inputs):
            stride = self.stride[0]
            if self.groups == 1 and (self.in_channels, self.out_channels, stride) in _CONVOLVED:
                return convolve(inputs, self.weight, stride, False)
            if self.groups == self.in_channels == self.out_channels:
                return convolve_depthwise(inputs, self.weight, stride)
        return super().forward(inputs)

    def _is_supported(self, inputs: Tensor) -> bool:
        stride = self.stride[0]
        return (
            self.own
            and _HAS_TRITON
            and inputs.is_cuda
            and torch.version.hip is None
            and inputs.dtype == self.weight.dtype == torch.bfloat16
            and (*self.kernel_size, self.stride[1], *self.padding, *self.dilation) == (3, 3, stride, 1, 1, 1, 1)
            and self.padding_mode == "zeros"
            and self.bias is None
            and inputs.ndim == 4
            and inputs.shape[1] == self.in_channels
            and inputs.shape[2] % stride == inputs.shape[3] % stride == 0
            and 0 < inputs.numel() < 2**31
        )


@torch.library.custom_op("refocal::convolve3x3", mutates_args=())
def convolve(inputs: Tensor, weight: Tensor, stride: int, transposed: bool) -> Tensor:
    """3x3 convolution for the channels in `_CONVOLVED`; if transposed, the gradient with respect to its inputs."""
    from refocal_lab.train.kernels import conv3x3

    inputs = inputs.contiguous(memory_format=torch.channels_last)
    weight = weight.contiguous(memory_format=torch.channels_last)
    outputs = _empty_results(inputs, weight, stride, transposed)
    if transposed and stride == 2:
        count, _, height, width = inputs.shape
        pixels = count * height * width
        conv3x3.spread[(-(-pixels // _SPREAD_BLOCK), 4)](
            *(inputs, weight, outputs, pixels),
            HEIGHT=height,
            WIDTH=width,
            INNER=inputs.shape[1],
            OUTER=outputs.shape[1],
            BLOCK=_SPREAD_BLOCK,
            num_warps=_WARPS,
        )
        return outputs
    tile = _CONVOLVED[weight.shape[1], weight.shape[0], stride].fit(outputs.shape[3])
    groups = outputs.numel() // outputs.shape[1] // tile.pixels
    conv3x3.convolve[(-(-groups // tile.block),)](
        *(inputs, weight, outputs, groups),
        **_constants(tile, inputs.shape[1], outputs, stride),
        BREADTH=_power_of_two(tile.pixels * outputs.shape[1]),
        TRANSPOSED=transposed,
        num_warps=tile.warps,
    )
    return outputs


@torch.library.custom_op("refocal::correlate3x3", mutates_args=())
def _correlate(inputs: Tensor, gradient: Tensor, stride: int) -> Tensor:
    from refocal_lab.train.kernels import conv3x3

    inputs = inputs.contiguous(memory_format=torch.channels_last)
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    inner, (count, outer, height, width) = inputs.shape[1], gradient.shape
    tile = _CORRELATED[inner, outer, stride].fit(width)
    groups, size = count * height * width // tile.pixels, 9 * inner * outer
    programs = min(tile.shares, -(-groups // tile.block))
    shares = programs * tile.pixels
    parts = torch.empty((shares, size), dtype=torch.float32, device=inputs.device)
    conv3x3.correlate[(programs, 9 // tile.taps)](
        *(inputs, gradient, parts, groups),
        **_constants(tile, inner, gradient, stride),
        STAGES=tile.stages,
        num_warps=tile.warps,
    )
    total = _empty_weight(inputs, gradient)
    rows = _power_of_two(shares)
    block = max(8192 // rows, 16)
    conv3x3.add_up[(-(-size // block),)](
        *(parts, total), SIZE=size, SHARES=shares, ROWS=rows, BLOCK=block, num_warps=_WARPS
    )
    return total


def _constants(tile: _Tile, inner: int, results: Tensor, stride: int) -> dict[str, int]:
    """The constants that the kernels over groups of results are compiled for."""
    _, outer, height, width = results.shape
    reached = stride * (tile.pixels - 1) + tile.taps  # inputs in a row
    return {
        **{"HEIGHT": height, "WIDTH": width, "INNER": inner, "OUTER": outer, "STRIDE": stride},
        **{"PIXELS": tile.pixels, "TAPS": tile.taps, "DEPTH": _power_of_two(reached * inner), "BLOCK": tile.block},
    }


def _power_of_two(count: int) -> int:
    """The next power of two, and at least the size of a matrix instruction."""
    return max(16, 1 << (count - 1).bit_length())


def _empty_results(inputs: Tensor, weight: Tensor, stride: int, transposed: bool) -> Tensor:
    count, _, height, width = inputs.shape
    if transposed:
        shape = (count, weight.shape[1], height * stride, width * stride)
    else:
        shape = (count, weight.shape[0], height // stride, width // stride)
    return torch.empty(shape, dtype=inputs.dtype, device=inputs.device, memory_format=torch.channels_last)


def _empty_weight(inputs: Tensor, gradient: Tensor) -> Tensor:
    shape = (gradient.shape[1], inputs.shape[1], 3, 3)
    return torch.empty(shape, dtype=inputs.dtype, device=inputs.device, memory_format=torch.channels_last)


@convolve.register_fake
def _(inputs: Tensor, weight: Tensor, stride: int, transposed: bool) -> Tensor:
    return _empty_results(inputs, weight, stride, transposed)


@_correlate.register_fake
def _(inputs: Tensor, gradient: Tensor, stride: int) -> Tensor:  # noqa: ARG001
    return _empty_weight(inputs, gradient)


def _keep_for_backward(ctx: Any, inputs: tuple[Tensor, Tensor, int, bool], output: Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.stride, ctx.transposed = inputs[2:]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    inputs, weight = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    pair = (gradient, inputs) if ctx.transposed else (inputs, gradient)
    return (
        convolve(gradient, weight, ctx.stride, not ctx.transposed) if wanted[0] else None,
        _correlate(*pair, ctx.stride) if wanted[1] else None,
        None,
        None,
    )


convolve.register_autograd(_backward, setup_context=_keep_for_backward)
_correlate.register_autograd(blocks.reject_second_derivative)
