"""Batches of documents and of trees, in the layouts that their networks take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refocal_lab.train.batches import BatchSource, Order
from refocal_lab.train.data import Part
from refocal_lab.train.data.words import UNKNOWN, Documents, Forest
from refocal_lab.train.models.gp_cnn import GAP, SPREAD, STRIDE, PackedDocuments
from refocal_lab.train.models.tree_lstm import TreeLevels

LONGEST = 1_000  # words of a document that are read, the last ones
_EVALUATION_BATCH = 256
_PIECES_AT_ONCE = 50  # sizes are multiples of this, because GPU libraries prepare again for each new shape


class TextBatches(BatchSource):
    """Batches of documents, or of trees with a label at each node.

    Args:
        part: The training part.
        scored: The classes of the samples, as in `DataSet`.
        order: Order of the samples.
        device: Where the network is.
    """

    fixed_shapes = False

    def __init__(self, part: Part, *, scored: tuple[int, ...] | None, order: Order, device: torch.device) -> None:
        self._part, self._scored, self._order, self._device = part, scored, order, device
        self.steps = order.steps
        self._rows = np.zeros((order.steps, order.size), np.int64)
        self._number = 0
        self._position = torch.zeros(1, dtype=torch.int64, device=device)

    @property
    def size(self) -> int:
        """Samples per step in this process."""
        return self._order.size

    @property
    def position(self) -> Tensor:
        """The next step of the epoch (1,)."""
        return self._position

    @property
    def epoch_labels(self) -> Tensor:
        """Labels (steps, size) of the samples of the epoch."""
        return torch.from_numpy(self._part.labels[self._rows]).to(self._device)

    def draw(self, epoch: int) -> None:
        """Draw the order of an epoch and go to its first step."""
        self._rows = self._order.rows(epoch)
        self._number = 0
        self._position.zero_()

    def next(self) -> tuple[Any, Tensor]:
        """The texts of the present step, and their labels; for trees those of all nodes, the roots first."""
        return lay_out(self._part, self._rows[self._number], self._device)

    def advance(self) -> None:
        """Go to the next step."""
        self._number += 1
        self._position.add_(1)

    def select_samples(self, logits: Tensor) -> Tensor:
        """The logits of the samples, for the scored classes."""
        return select_scored(logits[: self.size], self._scored)

    def evaluation(self, part: Part) -> TextEvaluation:
        """Prepare a part for evaluation."""
        return TextEvaluation(part, device=self._device)


class TextEvaluation:
    """The texts of a part in their order, laid out once."""

    def __init__(self, part: Part, *, device: torch.device) -> None:
        rows = np.arange(len(part))
        pieces = [rows[first : first + _EVALUATION_BATCH] for first in range(0, len(part), _EVALUATION_BATCH)]
        self._texts = [(lay_out(part, piece, device)[0], len(piece)) for piece in pieces]

    def logits(self, network: torch.nn.Module) -> Iterator[Tensor]:
        """The logits of all samples, piece by piece."""
        for texts, count in self._texts:
            yield network(texts)[:count]


def select_scored(logits: Tensor, scored: tuple[int, ...] | None) -> Tensor:
    """The columns of the scored classes."""
    return logits if scored is None else logits[:, list(scored)]


def lay_out(part: Part, rows: np.ndarray, device: torch.device) -> tuple[Any, Tensor]:
    """Turn texts into the input of their network; returns it and the labels."""
    if isinstance(part.inputs, Forest):
        levels, labels = arrange_levels(part.inputs[rows])
        return _to_device(device, levels), torch.from_numpy(labels).to(device)
    assert isinstance(part.inputs, Documents)
    return _to_device(device, pack(part.inputs[rows])), torch.from_numpy(part.labels[rows]).to(device)


def arrange_levels(trees: Forest) -> tuple[TreeLevels, np.ndarray]:
    """Sort trees by the heights of their nodes; returns them and the labels of all nodes, roots first."""
    lengths = np.diff(trees.starts)
    by_height = np.argsort(trees.heights, kind="stable")
    row = np.empty_like(by_height)
    row[by_height] = np.arange(len(row))  # the new row of each node
    leaves = int(np.searchsorted(trees.heights[by_height], 1))
    nodes = by_height[leaves:]
    first = np.repeat(trees.starts[:-1], lengths)[nodes]
    heights = trees.heights[nodes]
    bounds = np.searchsorted(heights, np.arange(1, heights.max(initial=0) + 2))
    is_root = np.zeros(len(row), bool)
    is_root[trees.starts[1:] - 1] = True
    roots_first = np.concatenate([np.flatnonzero(is_root), np.flatnonzero(~is_root)])
    levels = TreeLevels(
        words=torch.from_numpy(trees.words[by_height[:leaves]]),
        left=torch.from_numpy(row[first + trees.left[nodes]]),
        right=torch.from_numpy(row[first + trees.right[nodes]]),
        bounds=tuple(bounds.tolist()),
        order=torch.from_numpy(row[roots_first]),
    )
    return levels, trees.labels[roots_first]


def pack(documents: Documents) -> PackedDocuments:
    """Join the last words of documents; each document starts at a multiple of `STRIDE` places."""
    lengths = np.minimum(np.diff(documents.starts), LONGEST)
    begins = np.concatenate([[0], np.cumsum(_ceil_divide(STRIDE, lengths + GAP))])
    inside = _count_up(lengths)
    places = inside + np.repeat(begins[:-1] * STRIDE, lengths)
    empty = _PIECES_AT_ONCE * _ceil_divide(_PIECES_AT_ONCE, begins[-1])
    words = np.full(empty * STRIDE, UNKNOWN, np.int32)
    words[places] = documents.words[inside + np.repeat(documents.starts[1:] - lengths, lengths)]
    absent = np.ones(len(words), bool)
    absent[places] = False
    filled = _ceil_divide(STRIDE, lengths)
    spread = np.concatenate([[0], np.cumsum(filled + SPREAD)])
    rows = _count_up(filled)
    where = rows + np.repeat(spread[:-1], filled)
    order = np.full(_PIECES_AT_ONCE * _ceil_divide(_PIECES_AT_ONCE, spread[-1]), empty)
    order[where] = rows + np.repeat(begins[:-1], filled)
    of_document = np.full((len(lengths), max(1, filled.max(initial=0))), len(order))
    of_document[np.repeat(np.arange(len(lengths)), filled), rows] = where
    return PackedDocuments(
        words=torch.from_numpy(words),
        absent=torch.from_numpy(absent),
        pieces=torch.from_numpy(order),
        rows=torch.from_numpy(of_document),
    )


def _ceil_divide(size: int, counts: np.ndarray) -> np.ndarray:
    """The smallest numbers of pieces of a size that hold each count."""
    return -(-counts // size)


def _count_up(lengths: np.ndarray) -> np.ndarray:
    """Count 0, 1, ... for each length, one after another."""
    ends = np.cumsum(lengths)
    return np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)


def _to_device(device: torch.device, layout: Any) -> Any:
    return type(layout)(*(item.to(device) if isinstance(item, Tensor) else item for item in layout))
