"""How scores lie in memory, and how the programs of a GPU divide them."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

LONGEST_ROW_ON_CHIP = 32_768
LONGEST_TILED_ROW = 512
_LARGEST_IMAGE = 2**31  # elements that 32-bit offsets reach


class Layout(NamedTuple):
    """Where the scores (N, K, ...) of samples lie, as `refocal.losses.gpu.kernels.tiles` reads them.

    Either rows with classes side by side: `span` is 0 and rows are `stride` apart. Or images of `span` samples side by
    side: images are `image` apart and classes `stride` apart.
    """

    span: int
    image: int
    stride: int

    def gradient_strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The strides of a tensor of this shape with the same layout, but without gaps."""
        samples = [1, *itertools.accumulate(shape[:1:-1], operator.mul)][::-1]  # of the trailing dimensions
        if self.span:
            return shape[1] * samples[0], *samples
        return shape[1] * samples[0], 1, *(shape[1] * stride for stride in samples[1:])


def find_layout(shape: Sequence[int], strides: Sequence[int]) -> Layout | None:
    """The layout of scores (N, K, ...); None if the kernels need a copy.

    They need one for a matrix whose classes are not side by side, for trailing dimensions with gaps, and for images
    with more classes than a tile holds.
    """
    if len(shape) < 2:
        return None
    classes = shape[1]
    if strides[1] == 1 or classes == 1:
        stride = common_stride((shape[0], *shape[2:]), (strides[0], *strides[2:]), alone=classes)
        if stride is not None:
            return Layout(0, 0, stride)
    span = math.prod(shape[2:])
    side_by_side = span > 1 and common_stride(shape[2:], strides[2:], alone=1) == 1
    if side_by_side and classes <= LONGEST_TILED_ROW and strides[1] * classes + span < _LARGEST_IMAGE:
        return Layout(span, strides[0], strides[1])
    return None


def common_stride(sizes: Sequence[int], strides: Sequence[int], *, alone: int) -> int | None:
    """The stride of several dimensions counted as one, if they have one; `alone` if there is a single element."""
    counted = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    if any(outer != size * inner for (_, outer), (size, inner) in itertools.pairwise(counted)):
        return None
    return counted[-1][1] if counted else alone


class Tiling(NamedTuple):
    """How samples are divided among programs: each takes `block` classes of `rows` samples, in `warps` warps."""

    block: int
    rows: int
    warps: int
    programs: int


def choose_tiling(count: int, classes: int, span: int) -> Tiling:
    """A tiling that holds all classes of a sample on the chip.

    These sizes are the fastest on an H200: about 512 elements per warp for short rows, and 1,024 for others. Images
    take up to 2,048 per warp, so that a thread holds few classes and reduces over them alone.
    """
    block = next_power(max(classes, 2))
    if span:
        rows = min(128 if block <= 32 else 64 if block == 64 else 32, next_power(max(span, 2)))
        warps = max(rows * block // 2048, rows // 64, 1)
        return Tiling(block, rows, warps, count // span * -(-span // rows))
    if block <= LONGEST_TILED_ROW:
        rows = (1024 if block in (32, 512) else 512) // block
        return Tiling(block, rows, 1, -(-count // rows))
    return Tiling(block, 1, min(block // 1024, 16 if block <= LONGEST_ROW_ON_CHIP else 32), count)


def choose_flat_tiling(count: int, classes: int, itemsize: int) -> Tiling:
    """A tiling of short rows that are read as flat spans of up to 2,048 scores, each starting at an aligned address."""
    step = 16 // itemsize
    rows = 2048 // classes // step * step
    return Tiling(next_power(max(classes, 2)), rows, 4, -(-count // rows))


def next_power(number: int) -> int:
    """The smallest power of 2 that is not smaller."""
    return 1 << (number - 1).bit_length()
