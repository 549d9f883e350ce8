"""Where a program finds its tile of samples.

Samples are either rows with their classes side by side: SPAN is 0 and rows are STRIDE apart. Or they lie side by side,
SPAN per image, as in the output of a segmentation network: images are IMAGE apart and classes STRIDE apart. Strides
are constants: Triton then knows which addresses are aligned, and loads many scores at once.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def samples_of_tile(rows, SPAN: tl.constexpr, ROWS: tl.constexpr):
    """A tile's image, the places of its ROWS samples in it, their numbers in the batch, and which of them exist."""
    if SPAN > 0:
        TILES: tl.constexpr = (SPAN + ROWS - 1) // ROWS
        image = tl.program_id(0) // TILES
        # Two samples per thread: with more, threads would repeat each other's work on each sample.
        inner = tl.max_contiguous(tl.program_id(0) % TILES * ROWS + tl.arange(0, ROWS), 2)
        return image.to(tl.int64), inner, image * SPAN + inner, inner < SPAN
    else:
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        return 0, row.to(tl.int64), row, row < rows


@triton.jit
def score_at(ptr, image, inner, column, SPAN: tl.constexpr, IMAGE: tl.constexpr, STRIDE: tl.constexpr):
    """The address of the score of a sample in a class."""
    if SPAN > 0:
        return ptr + image * IMAGE + (inner + column * STRIDE)
    else:
        return ptr + inner * STRIDE + column


@triton.jit
def gradient_at(ptr, image, inner, column, SPAN: tl.constexpr, CLASSES: tl.constexpr):
    """The address of the derivative in a score. Gradients are laid out as their scores, but without gaps."""
    if SPAN > 0:
        return ptr + image * (CLASSES * SPAN) + (inner + column * SPAN)
    else:
        return ptr + inner * CLASSES + column
