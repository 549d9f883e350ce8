"""How rows are divided into chunks whose logits fit into a limit of memory."""

from __future__ import annotations

import torch
from torch import Tensor

_SHARE_OF_GRADIENTS = 0.4
_LEAST_BYTES = 1 << 25
_STEPS = (256, 128)  # matrix products on a GPU are fastest for multiples of the first, and fast for those of the second
_ALIGNMENT = 8  # elements; rows of logits start at multiples of it, for products and kernels to load many at once


def default_chunk_bytes(hidden: Tensor, head: Tensor) -> int:
    """The memory for the logits of a chunk: 0.4 times that of the gradients, and at least 32 MiB.

    The head's gradient is read and written once per chunk, so larger chunks are faster. Beyond this size they gain
    little: `benchmarks/results/linear_losses.md` has the curve.
    """
    gradients = hidden.numel() * hidden.element_size() + head.numel() * head.element_size()
    return max(_LEAST_BYTES, int(_SHARE_OF_GRADIENTS * gradients))


def rows_per_chunk(rows: int, classes: int, dtype: torch.dtype, chunk_bytes: int, *, beside: int = 0) -> int:
    """How many rows a chunk has: at least one, and equal shares of all rows if possible.

    `beside` is the number of bytes that each row needs beside its logits.
    """
    most = max(1, chunk_bytes // (row_stride(classes) * dtype.itemsize + beside))
    if most >= rows:
        return max(rows, 1)
    step = next((step for step in _STEPS if most >= 3 * step), 1)
    most = most // step * step
    chunks = -(-rows // most)
    share = -(-rows // chunks)
    return -(-share // step) * step


def row_stride(classes: int) -> int:
    """The distance between two rows of logits, in elements."""
    return -(-classes // _ALIGNMENT) * _ALIGNMENT


def allocate_logits(rows: int, classes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Room for the logits (rows, classes) of a chunk.

    The padding of each row is 0. On a CPU with matrix units, a product in bfloat16 or float16 over an odd number of
    classes reads one element of the padding and multiplies it by 0. If the element were NaN, so would be the product.
    """
    padded = torch.empty(rows, row_stride(classes), dtype=dtype, device=device)
    padded[:, classes:] = 0
    return padded[:, :classes]
