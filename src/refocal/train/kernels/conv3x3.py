"""3x3 convolutions of few channels, as they are in He's networks for CIFAR, channels last.

The library's kernels are made for many channels: at 16 they leave most of each matrix instruction unused and take some
five times as long as reading the input and writing the output. Here a program holds all channels of a block of pixels,
and the nine taps are nine small matrix products.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def convolve(
    inputs_ptr,
    weight_ptr,
    outputs_ptr,
    pixels,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):
    """Convolution with zeros around the image; TRANSPOSED: the gradient in its inputs from that in its outputs.

    The weight lies as (out, tap, in); pixels count through all images.
    """
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column, row = pixel % WIDTH, pixel // WIDTH % HEIGHT
    inner, outer = tl.arange(0, CHANNELS)[:, None], tl.arange(0, CHANNELS)[None, :]
    total = tl.zeros((BLOCK, CHANNELS), tl.float32)
    for tap in tl.static_range(9):
        down = 1 - tap // 3 if TRANSPOSED else tap // 3 - 1
        right = 1 - tap % 3 if TRANSPOSED else tap % 3 - 1
        inside = (row + down >= 0) & (row + down < HEIGHT) & (column + right >= 0) & (column + right < WIDTH)
        place = (pixel + (down * WIDTH + right))[:, None] * CHANNELS + outer
        inputs = tl.load(inputs_ptr + place, mask=(inside & (pixel < pixels))[:, None], other=0.0)
        if TRANSPOSED:
            weight = tl.load(weight_ptr + (inner * 9 + tap) * CHANNELS + outer)
        else:
            weight = tl.load(weight_ptr + (outer * 9 + tap) * CHANNELS + inner)
        total = tl.dot(inputs, weight, total)
    place = pixel[:, None] * CHANNELS + outer
    tl.store(outputs_ptr + place, total.to(outputs_ptr.dtype.element_ty), mask=(pixel < pixels)[:, None])


@triton.jit
def correlate(
    inputs_ptr,
    gradient_ptr,
    parts_ptr,
    pixels,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient in the weight in parts (share, out, tap, in), a share of the pixels and three taps a program."""
    share, shares = tl.program_id(0), tl.num_programs(0)
    down = tl.program_id(1) - 1
    channel = tl.arange(0, CHANNELS)[None, :]
    left = tl.zeros((CHANNELS, CHANNELS), tl.float32)
    middle = tl.zeros((CHANNELS, CHANNELS), tl.float32)
    right = tl.zeros((CHANNELS, CHANNELS), tl.float32)
    for start in tl.range(share * BLOCK, pixels, shares * BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        column, row = pixel % WIDTH, pixel // WIDTH % HEIGHT
        exists = pixel < pixels
        inside = exists & (row + down >= 0) & (row + down < HEIGHT)
        place = pixel[:, None] * CHANNELS + channel
        gradient = tl.trans(tl.load(gradient_ptr + place, mask=exists[:, None], other=0.0))
        near = inputs_ptr + place + down * (WIDTH * CHANNELS)
        middle = tl.dot(gradient, tl.load(near, mask=inside[:, None], other=0.0), middle)
        before = (inside & (column > 0))[:, None]
        left = tl.dot(gradient, tl.load(near - CHANNELS, mask=before, other=0.0), left)
        after = (inside & (column < WIDTH - 1))[:, None]
        right = tl.dot(gradient, tl.load(near + CHANNELS, mask=after, other=0.0), right)
    first = share * (9 * CHANNELS * CHANNELS) + 3 * tl.program_id(1) * CHANNELS
    part = parts_ptr + first + tl.arange(0, CHANNELS)[:, None] * (9 * CHANNELS) + channel
    tl.store(part, left)
    tl.store(part + CHANNELS, middle)
    tl.store(part + 2 * CHANNELS, right)


@triton.jit
def add_up(parts_ptr, total_ptr, SIZE: tl.constexpr, SHARES: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of the shares, always in the same order."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.arange(0, SHARES)[:, None] * SIZE + place[None, :]
    total = tl.sum(tl.load(parts_ptr + part, mask=(place < SIZE)[None, :], other=0.0), axis=0)
    tl.store(total_ptr + place, total.to(total_ptr.dtype.element_ty), mask=place < SIZE)
