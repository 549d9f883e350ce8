"""The three matrix products of a chunk: its logits, and the gradients of its hidden states and of the head."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from refocal.losses.gpu.launch import multiprocessors
from refocal.losses.internals import HAS_WIDE_PRODUCTS, add_wide_product

_TILE = (128, 256)  # of the output, which one multiprocessor computes at a time
_MOST_PARTS = 8
_SHORTEST_PART = 16_384  # classes
_PART_STEP = 64  # classes


def compute_logits(hidden: Tensor, head: Tensor, bias: Tensor | None, *, out: Tensor) -> Tensor:
    """Hidden states (n, D) times the transposed head (V, D), plus the bias (V,), written to `out`."""
    if bias is None:
        return torch.mm(hidden, head.t(), out=out)
    return torch.addmm(bias, hidden, head.t(), out=out)


def bytes_beside(head: Tensor) -> int:
    """The memory that `multiply_by_head` should find for each row: that of two partial sums, if it divides the sum."""
    return 2 * 4 * head.shape[1] if _is_divisible(head) else 0


def multiply_by_head(gradient: Tensor, head: Tensor, *, out: Tensor, room: int) -> None:
    """Write the gradient (n, V) in the logits times the head (V, D), the gradient of the hidden states, to `out`.

    Few rows make few tiles, which leave a GPU half idle. The sum over the classes is then divided into parts, which
    are computed side by side, if their sums fit into `room` bytes.
    """
    parts = _count_parts(len(gradient), head, room) if _is_divisible(head) else 1
    if parts == 1:
        if out.dtype == gradient.dtype:
            torch.mm(gradient, head, out=out)
        else:
            out.copy_(torch.mm(gradient, head))
        return
    part = len(head) // parts // _PART_STEP * _PART_STEP
    end = part * parts
    left = gradient[:, :end].view(len(gradient), parts, part).transpose(0, 1)
    total, *others = torch.bmm(left, head[:end].view(parts, part, -1), torch.float32)
    if end < len(head):
        add_wide_product(total, gradient[:, end:], head[end:])
    for other in others:  # in place: the sum needs no memory of its own
        total += other
    out.copy_(total)


def _is_divisible(head: Tensor) -> bool:
    return head.is_cuda and head.itemsize == 2 and len(head) >= 2 * _SHORTEST_PART and HAS_WIDE_PRODUCTS


def _count_parts(rows: int, head: Tensor, room: int) -> int:
    """The number of parts whose tiles fill the multiprocessors best; few parts if several are about as good."""
    classes, width = head.shape
    tiles = -(-rows // _TILE[0]) * -(-width // _TILE[1])
    most = min(_MOST_PARTS, classes // _SHORTEST_PART, room // (4 * rows * width))
    return _best_parts(tiles, multiprocessors(head.device), max(1, most))


@functools.cache
def _best_parts(tiles: int, places: int, most: int) -> int:
    def use(parts: int) -> float:
        return tiles * parts / (-(-tiles * parts // places) * places) - 0.01 * parts

    return max(range(1, most + 1), key=use)


def add_head_gradient(total: Tensor, gradient: Tensor, hidden: Tensor, *, first: bool) -> None:
    """Add the transposed gradient (n, V) in the logits times hidden states (n, D) to `total`; if `first`, set it."""
    transposed = gradient.t()
    if total.dtype == gradient.dtype:
        if first:
            torch.mm(transposed, hidden, out=total)
        else:
            total.addmm_(transposed, hidden)
        return
    if first:
        total.zero_()
    if total.is_cuda and HAS_WIDE_PRODUCTS:
        add_wide_product(total, transposed, hidden)
        return
    step = max(1, gradient.numel() // hidden.shape[1])  # a product as large as the gradient in the logits
    for start in range(0, len(total), step):
        total[start : start + step] += transposed[start : start + step] @ hidden
