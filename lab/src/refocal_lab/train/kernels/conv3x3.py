"""3x3 convolutions of few channels, as in He's networks for CIFAR, with channels last.

The library's kernels are made for many channels. With 16 channels they leave most of each matrix instruction unused and
take about five times as long as reading the input and writing the output. Here a program holds all channels of a block
of pixels. Neighbors in a row of the image are neighbors in memory, so the taps of a row can be one matrix product. Two
neighboring results can share one banded product, with a third more multiplications but a third fewer loads.

Names: INNER channels are summed over, OUTER channels belong to the result. A group is PIXELS neighboring results. TAPS
taps of a row are one product; its DEPTH, a power of two, covers all channels of the neighboring inputs that they reach.
The weight of the forward convolution has the layout (out, tap, in). Pixels are counted through all images.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def convolve(
    inputs_ptr,
    weight_ptr,
    outputs_ptr,
    groups,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    STRIDE: tl.constexpr,
    PIXELS: tl.constexpr,
    TAPS: tl.constexpr,
    DEPTH: tl.constexpr,
    BREADTH: tl.constexpr,
    BLOCK: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):
    """Convolve with zero padding; HEIGHT and WIDTH are those of the result.

    If TRANSPOSED, at stride 1: the gradient with respect to the inputs, from that with respect to the outputs.
    """
    group = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    line, column = group // (WIDTH // PIXELS), group % (WIDTH // PIXELS) * PIXELS
    row = line % HEIGHT * STRIDE
    step, place = tl.arange(0, DEPTH), tl.arange(0, BREADTH)[None, :]
    over, inner = (step // INNER)[:, None], (step % INNER)[:, None]
    beside, outer = place // OUTER, place % OUTER
    along = over - STRIDE * beside
    used = (along >= 0) & (along < TAPS) & (beside < PIXELS)
    total = tl.zeros((BLOCK, BREADTH), tl.float32)
    for tap in tl.static_range(0, 9, TAPS):
        down, left = tap // 3 - 1, tap % 3 - 1
        inside = _inside(
            group < groups, row + down, column * STRIDE + left, step, HEIGHT * STRIDE, WIDTH * STRIDE, INNER
        )
        first = ((line * STRIDE + down) * (WIDTH * STRIDE) + column * STRIDE + left) * INNER
        inputs = tl.load(inputs_ptr + first[:, None] + step[None, :], mask=inside, other=0.0)
        if TRANSPOSED:
            where = (inner * 9 + 8 - tap - along) * OUTER + outer
        else:
            where = outer * (9 * INNER) + (tap + along) * INNER + inner
        total = tl.dot(inputs, tl.load(weight_ptr + where, mask=used, other=0.0), total)
    here = (group * (PIXELS * OUTER))[:, None] + place
    exists = (group < groups)[:, None] & (beside < PIXELS)
    tl.store(outputs_ptr + here, total.to(outputs_ptr.dtype.element_ty), mask=exists)


@triton.jit
def spread(
    gradient_ptr,
    weight_ptr,
    outputs_ptr,
    pixels,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The gradient with respect to the inputs of a convolution of stride 2, from that of its `pixels` outputs.

    A program computes the inputs of either even or odd rows, and of either even or odd columns. In each direction, an
    even place has one tap and an odd one has two.
    """
    odd_row, odd_column = tl.program_id(1) // 2, tl.program_id(1) % 2
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column, row = pixel % WIDTH, pixel // WIDTH % HEIGHT
    inner, outer = tl.arange(0, INNER), tl.arange(0, OUTER)[None, :]
    total = tl.zeros((BLOCK, OUTER), tl.float32)
    for below in tl.range(0, odd_row + 1):
        for beside in tl.range(0, odd_column + 1):
            tap = 3 * (1 + odd_row - 2 * below) + 1 + odd_column - 2 * beside
            inside = (row + below < HEIGHT) & (column + beside < WIDTH) & (pixel < pixels)
            place = (pixel + (below * WIDTH + beside)) * INNER
            gradient = tl.load(gradient_ptr + place[:, None] + inner[None, :], mask=inside[:, None], other=0.0)
            total = tl.dot(gradient, tl.load(weight_ptr + (inner * 9 + tap)[:, None] * OUTER + outer), total)
    here = (2 * (pixel // WIDTH) + odd_row) * (2 * WIDTH) + 2 * column + odd_column
    values = total.to(outputs_ptr.dtype.element_ty)
    tl.store(outputs_ptr + here[:, None] * OUTER + outer, values, mask=(pixel < pixels)[:, None])


@triton.jit
def correlate(
    inputs_ptr,
    gradient_ptr,
    parts_ptr,
    groups,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    STRIDE: tl.constexpr,
    PIXELS: tl.constexpr,
    TAPS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The gradient with respect to the weight, in parts (share, pixel of a group, out, tap, in).

    A program computes one share of TAPS taps.
    """
    share, shares = tl.program_id(0), tl.num_programs(0)
    tap = tl.program_id(1) * TAPS
    down, left = tap // 3 - 1, tap % 3 - 1
    step, place = tl.arange(0, DEPTH), tl.arange(0, PIXELS * OUTER)
    total = tl.zeros((PIXELS * OUTER, DEPTH), tl.float32)
    for start in tl.range(share * BLOCK, groups, shares * BLOCK, num_stages=STAGES):
        group = start + tl.arange(0, BLOCK)
        line, column = group // (WIDTH // PIXELS), group % (WIDTH // PIXELS) * PIXELS
        row = line % HEIGHT * STRIDE
        inside = _inside(
            group < groups, row + down, column * STRIDE + left, step, HEIGHT * STRIDE, WIDTH * STRIDE, INNER
        )
        first = ((line * STRIDE + down) * (WIDTH * STRIDE) + column * STRIDE + left) * INNER
        inputs = tl.load(inputs_ptr + first[:, None] + step[None, :], mask=inside, other=0.0)
        here = (group * (PIXELS * OUTER))[:, None] + place[None, :]
        gradient = tl.load(gradient_ptr + here, mask=(group < groups)[:, None], other=0.0)
        total = tl.dot(tl.trans(gradient), inputs, total)
    beside, outer = (place // OUTER)[:, None], (place % OUTER)[:, None]
    along = (step // INNER)[None, :] - STRIDE * beside
    part = (share * PIXELS + beside) * OUTER + outer
    where = part * (9 * INNER) + (tap + along) * INNER + (step % INNER)[None, :]
    tl.store(parts_ptr + where, total, mask=(along >= 0) & (along < TAPS))


@triton.jit
def _inside(exists, row, column, step, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, INNER: tl.constexpr):
    """Whether each of the inputs that start at a place, with all their channels, is in the row of the image."""
    across = column[:, None] + (step // INNER)[None, :]
    return (exists & (row >= 0) & (row < HEIGHT))[:, None] & (across >= 0) & (across < WIDTH)


@triton.jit
def add_up(parts_ptr, total_ptr, SIZE: tl.constexpr, SHARES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Sum the shares, always in the same order."""
    place, share = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, ROWS)
    exists = (share < SHARES)[:, None] & (place < SIZE)[None, :]
    total = tl.sum(tl.load(parts_ptr + share[:, None] * SIZE + place[None, :], mask=exists, other=0.0), axis=0)
    tl.store(total_ptr + place, total.to(total_ptr.dtype.element_ty), mask=place < SIZE)
