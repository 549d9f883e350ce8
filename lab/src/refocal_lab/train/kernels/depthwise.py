"""3x3 convolutions of each channel by itself, as in MobileNets, with channels last and zero padding.

Nothing is summed over channels, so memory is the bound. A program holds some channels of a block of neighboring pixels;
the nine shifted reads of its inputs find most of them in the cache. The weight has the layout (channel, tap). Pixels
are counted through all images. HEIGHT and WIDTH are those of the result of the forward convolution. Addresses have 32
bits: a batch has fewer than 2^31 values.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["pixels"])
def depthwise_outputs(
    inputs_ptr,
    weight_ptr,
    outputs_ptr,
    pixels,
    channels,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    PIXELS: tl.constexpr,
    LANES: tl.constexpr,
):
    """The convolution, for LANES channels of PIXELS outputs."""
    pixel, channel, exists = _place(pixels, channels, PIXELS, LANES)
    line, column = pixel // WIDTH, pixel % WIDTH * STRIDE
    row = line % HEIGHT * STRIDE
    total = tl.zeros((PIXELS, LANES), tl.float32)
    for tap in tl.static_range(9):
        down, across = tap // 3 - 1, column + (tap % 3 - 1)
        inside = (row + down >= 0) & (row + down < HEIGHT * STRIDE) & (across >= 0) & (across < WIDTH * STRIDE)
        here = ((line * STRIDE + down) * (WIDTH * STRIDE) + across) * channels + channel
        inputs = tl.load(inputs_ptr + here, mask=exists & inside, other=0.0).to(tl.float32)
        total += inputs * _load_tap(weight_ptr, channel, channels, tap)
    tl.store(outputs_ptr + pixel * channels + channel, total.to(outputs_ptr.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=["pixels"])
def depthwise_slope(
    gradient_ptr,
    weight_ptr,
    slope_ptr,
    pixels,
    channels,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    PIXELS: tl.constexpr,
    LANES: tl.constexpr,
):
    """The gradient with respect to the inputs, for LANES channels of PIXELS inputs."""
    pixel, channel, exists = _place(pixels, channels, PIXELS, LANES)
    high, wide = HEIGHT * STRIDE, WIDTH * STRIDE
    row, column, image = pixel // wide % high, pixel % wide, pixel // (wide * high)
    total = tl.zeros((PIXELS, LANES), tl.float32)
    for tap in tl.static_range(9):
        above, left = row + 1 - tap // 3, column + 1 - tap % 3  # the place of the result, times the stride
        inside = (above >= 0) & (above < high) & (left >= 0) & (left < wide)
        if STRIDE > 1:
            inside &= (above % STRIDE == 0) & (left % STRIDE == 0)
        here = ((image * HEIGHT + above // STRIDE) * WIDTH + left // STRIDE) * channels + channel
        gradient = tl.load(gradient_ptr + here, mask=exists & inside, other=0.0).to(tl.float32)
        total += gradient * _load_tap(weight_ptr, channel, channels, tap)
    tl.store(slope_ptr + pixel * channels + channel, total.to(slope_ptr.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=["pixels"])
def depthwise_weight(
    inputs_ptr,
    gradient_ptr,
    parts_ptr,
    pixels,
    channels,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    STRIDE: tl.constexpr,
    PIXELS: tl.constexpr,
    LANES: tl.constexpr,
):
    """The gradient with respect to the weight, in parts (share, channel, tap); a program computes a row of the taps.

    A share is every `shares`-th block of PIXELS outputs.
    """
    share, shares, down = tl.program_id(1), tl.num_programs(1), tl.program_id(2)
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    channel = lane[None, :]
    left = tl.zeros((PIXELS, LANES), tl.float32)
    middle = tl.zeros((PIXELS, LANES), tl.float32)
    right = tl.zeros((PIXELS, LANES), tl.float32)
    for start in tl.range(share * PIXELS, pixels, shares * PIXELS):
        pixel = start + tl.arange(0, PIXELS)[:, None]
        exists = (pixel < pixels) & (channel < channels)
        column, line = pixel % WIDTH * STRIDE, pixel // WIDTH
        row = line % HEIGHT * STRIDE + down - 1
        inside = exists & (row >= 0) & (row < HEIGHT * STRIDE)
        here = inputs_ptr + ((line * STRIDE + down - 1) * (WIDTH * STRIDE) + column) * channels + channel
        gradient = tl.load(gradient_ptr + pixel * channels + channel, mask=exists, other=0.0).to(tl.float32)
        left += gradient * tl.load(here - channels, mask=inside & (column > 0), other=0.0).to(tl.float32)
        middle += gradient * tl.load(here, mask=inside, other=0.0).to(tl.float32)
        right += gradient * tl.load(here + channels, mask=inside & (column + 1 < WIDTH * STRIDE), other=0.0).to(
            tl.float32
        )
    part = parts_ptr + (share * channels + lane) * 9 + down * 3
    tl.store(part, tl.sum(left, axis=0), mask=lane < channels)
    tl.store(part + 1, tl.sum(middle, axis=0), mask=lane < channels)
    tl.store(part + 2, tl.sum(right, axis=0), mask=lane < channels)


@triton.jit
def _place(pixels, channels, PIXELS: tl.constexpr, LANES: tl.constexpr):
    """The pixels (PIXELS, 1) and channels (1, LANES) of a program, and which of them exist."""
    columns = tl.cdiv(channels, LANES)  # blocks of the same pixels follow each other
    pixel = tl.program_id(0) // columns * PIXELS + tl.arange(0, PIXELS)[:, None]
    channel = tl.program_id(0) % columns * LANES + tl.arange(0, LANES)[None, :]
    return pixel, channel, (pixel < pixels) & (channel < channels)


@triton.jit
def _load_tap(weight_ptr, channel, channels, tap):
    """The weight of a tap (1, LANES)."""
    return tl.load(weight_ptr + channel * 9 + tap, mask=channel < channels, other=0.0).to(tl.float32)
