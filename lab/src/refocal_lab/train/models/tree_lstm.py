"""The constituency (binary) Tree-LSTM, for many trees at once: one step per level, not one per node."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from refocal_lab.train.models.layers import Dropout, Head, WordVectors


class TreeLevels(NamedTuple):
    """The nodes of trees, all L leaves first, then the I inner nodes by height, so that children precede their parents.

    Attributes:
        words: Numbers of the words at the leaves (L,).
        left: Rows of the left children of the inner nodes (I,).
        right: Rows of their right children (I,).
        bounds: Where each height starts among the inner nodes, and the end.
        order: Rows (L + I,) in the order in which logits are returned.
    """

    words: Tensor
    left: Tensor
    right: Tensor
    bounds: tuple[int, ...]
    order: Tensor


class TreeLSTM(nn.Module):
    """Logits at every node of binary trees, from the leaves up.

    A leaf with word vector x has c = W x + b, h = o tanh(c); a node with children l and r has
    c = i u + f_l c_l + f_r c_r, h = o tanh(c), where each gate is a function of U_l h_l + U_r h_r + b. Training drops
    half of h before the last layer.

    Args:
        classes: Number of classes.
        shape: Number of words, and dimensions of their vectors.
        memory: Dimensions of c and h.

    Reference: Tai, Socher, Manning: Improved Semantic Representations From Tree-Structured Long Short-Term Memory
        Networks. ACL 2015, sections 3.2 and 5.3.
    """

    def __init__(self, *, classes: int, shape: tuple[int, int], memory: int = 150) -> None:
        super().__init__()
        self.words = WordVectors(*shape, tuned=True)
        self.leaf = nn.Linear(shape[1], 2 * memory)
        self.node = nn.Linear(2 * memory, 5 * memory)
        self.dropout = Dropout(0.5)
        self.head = Head(memory, classes)

    def forward(self, trees: TreeLevels) -> Tensor:
        """Logits (nodes, classes)."""
        cells, gates = self.leaf(self.words(trees.words)).chunk(2, dim=1)
        hidden = torch.sigmoid(gates) * torch.tanh(cells)
        every: Tensor = _Climb.apply(  # type: ignore[no-untyped-call]
            cells, hidden, self.node.weight, self.node.bias, trees.left, trees.right, trees.bounds
        )
        return self.head(self.dropout(every))[trees.order]


class _Climb(torch.autograd.Function):
    """From c and h (L, d) of the leaves to h (L + I, d) of all nodes, level by level.

    A node has one parent, so the gradient of its state is assigned, never added. The gradients of the weights are one
    product over all nodes.
    """

    @staticmethod
    def forward(  # noqa: PLR0917  (autograd passes by position)
        ctx: Any,
        leaf_cells: Tensor,
        leaf_hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        left: Tensor,
        right: Tensor,
        bounds: tuple[int, ...],
    ) -> Tensor:
        leaves, width = leaf_cells.shape
        nodes = len(left)
        cells = torch.cat([leaf_cells, leaf_cells.new_empty(nodes, width)])
        hidden = torch.cat([leaf_hidden, leaf_hidden.new_empty(nodes, width)])
        below = leaf_cells.new_empty(nodes, 2 * width)  # h of both children
        gates = leaf_cells.new_empty(nodes, 5 * width)  # i, f of left and right, o; u
        bent = leaf_cells.new_empty(nodes, width)  # tanh(c)
        for first, last in itertools.pairwise(bounds):
            level, above = slice(first, last), slice(leaves + first, leaves + last)
            lefts, rights = left[level], right[level]
            torch.cat([hidden[lefts], hidden[rights]], dim=1, out=below[level])
            values = torch.addmm(bias, below[level], weight.T, out=gates[level])
            values[:, : 4 * width].sigmoid_()
            values[:, 4 * width :].tanh_()
            i, f_left, f_right, o, u = values.chunk(5, dim=1)
            c = cells[above]
            torch.mul(i, u, out=c)
            c.addcmul_(f_left, cells[lefts]).addcmul_(f_right, cells[rights])
            torch.tanh(c, out=bent[level])
            torch.mul(o, bent[level], out=hidden[above])
        ctx.save_for_backward(cells, below, gates, bent, weight, left, right)
        ctx.bounds = bounds
        return hidden

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        cells, below, gates, bent, weight, left, right = ctx.saved_tensors
        d_hidden = gradients[0].clone()
        width = cells.shape[1]
        leaves = len(cells) - len(left)
        d_cells = torch.zeros_like(cells)
        d_gates = torch.empty_like(gates)
        for last, first in itertools.pairwise(reversed(ctx.bounds)):
            level, above = slice(first, last), slice(leaves + first, leaves + last)
            lefts, rights = left[level], right[level]
            i, f_left, f_right, o, u = gates[level].chunk(5, dim=1)
            d_h, tanh_c = d_hidden[above], bent[level]
            d_c = d_cells[above].addcmul_(d_h * o, 1 - tanh_c * tanh_c)
            d_values = d_gates[level]
            d_i, d_left, d_right, d_o, d_u = d_values.chunk(5, dim=1)
            torch.mul(d_c, u, out=d_i)
            torch.mul(d_c, cells[lefts], out=d_left)
            torch.mul(d_c, cells[rights], out=d_right)
            torch.mul(d_h, tanh_c, out=d_o)
            torch.mul(d_c, i, out=d_u)
            opened, bounded = gates[level][:, : 4 * width], u
            d_values[:, : 4 * width].mul_(opened - opened * opened)
            d_u.mul_(1 - bounded * bounded)
            d_cells[lefts] = d_c * f_left
            d_cells[rights] = d_c * f_right
            d_left_hidden, d_right_hidden = (d_values @ weight).chunk(2, dim=1)
            d_hidden[lefts] += d_left_hidden
            d_hidden[rights] += d_right_hidden
        return (
            *(d_cells[:leaves], d_hidden[:leaves], d_gates.T @ below, d_gates.sum(dim=0)),
            *(None, None, None),
        )
