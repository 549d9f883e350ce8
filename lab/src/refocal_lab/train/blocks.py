"""What the layers with kernels of our own share: blocks of a batch, sums over them, and no second derivatives."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from torch import Tensor

SHARES = 512  # programs that compute partial sums, so there are at most as many shares
_MERGED = 8  # values whose shares one program adds
_WARPS = 4


class Blocks(NamedTuple):
    """How kernels divide a batch as a matrix, with one row per pixel and one column per channel.

    Attributes:
        rows: Pixels of a block.
        width: Channels of a block.
        down: Number of blocks from top to bottom.
        across: Number of blocks side by side.
        shares: Partial sums over the rows.
    """

    rows: int
    width: int
    down: int
    across: int
    shares: int


def divide(batch: Tensor, size: int) -> Blocks:
    """Divide (N, C, H, W) into blocks of `size` values."""
    channels = batch.shape[1]
    # as few idle places as possible, then as many neighbors as possible
    width = min((64, 32, 16), key=lambda width: (-(-channels // width) * width, -width))
    rows = size // width
    down, across = -(-batch.numel() // channels // rows), -(-channels // width)
    each = -(-down * across // SHARES)  # blocks per program
    return Blocks(rows, width, down, across, -(-down // each))


def add_shares(parts: Tensor, totals: Tensor) -> None:
    """Sum parts over their first axis, the shares, into totals."""
    from refocal_lab.train.kernels import norm

    size = totals.numel()
    norm.merge_sums[(-(-size // _MERGED),)](
        *(parts, totals, size, len(parts)), WIDTH=_MERGED, SHARES=SHARES, num_warps=_WARPS
    )


def reject_second_derivative(ctx: Any, *gradients: Tensor) -> NoReturn:
    """Stands for the derivative of a gradient that a kernel computed."""
    msg = "our own kernels have no second derivatives; in float32, PyTorch's operations compute them"
    raise NotImplementedError(msg)
