"""A convolutional network over words with global pooling, over documents that lie one after another without padding."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refocal.train.models.layers import Head, WordVectors

POOL = 5
STRIDE = POOL * POOL  # a document begins at a multiple of this
GAP = 2 * POOL  # places without words after each: as far as the second convolution sees
SPREAD = 2  # the same for the third, in pieces of STRIDE places


class Packed(NamedTuple):
    """Documents one after another.

    Attributes:
        words: Numbers of the words (T,), T a multiple of `STRIDE`; at least `GAP` places lie between two documents.
        present: Whether there is a word at a place (T,).
        pieces: Pieces of `STRIDE` places (P,), in the order of documents with `SPREAD` empty ones after each: numbers
            below T / STRIDE, which itself stands for an empty one.
        document: Which document each of these is of (P,); `documents` where it is of none.
        documents: How many there are.
    """

    words: Tensor
    present: Tensor
    pieces: Tensor
    document: Tensor
    documents: int


class GlobalPoolingCNN(nn.Module):
    """Three convolutions of five words each, pooled by five between them and over the whole document, two dense layers.

    Features are zero where there are no words, so that what is told of a document does not depend on what lies beside
    it. Given word vectors are not trained.

    Args:
        classes: Number of classes.
        shape: Number of words, and dimensions of their vectors.
        width: Features of each layer.

    Reference: Lin, Chen, Yan: Network in Network. ICLR 2014, section 3.2 (global pooling); the layers are those of the
        example "Using pre-trained word embeddings" of Keras, which the code that 002 names trains.
    """

    def __init__(self, *, classes: int, shape: tuple[int, int], width: int = 128) -> None:
        super().__init__()
        self.words = WordVectors(*shape, tuned=False)
        inputs = (shape[1], width, width)
        self.convolutions = nn.ModuleList(nn.Conv1d(size, width, 5, padding=2) for size in inputs)
        self.dense = nn.Linear(width, width)
        self.head = Head(width, classes)

    def forward(self, packed: Packed) -> Tensor:
        """Logits (documents, classes)."""
        present = packed.present.to(self.dense.weight.dtype)[:, None]
        features = self.words(packed.words) * present
        first, second, third = self.convolutions
        features = _pooled(torch.relu(_convolved(features, first)) * present)
        features = _pooled(torch.relu(_convolved(features, second)) * _pooled(present))
        features = F.pad(features, (0, 0, 0, 1))[packed.pieces]
        features = torch.relu(_convolved(features, third))
        return self.head(torch.relu(self.dense(_pooled_to(features, packed))))


def _convolved(features: Tensor, convolution: nn.Module) -> Tensor:
    """(T, C) -> (T, D): products of the matrices of the five places, added up."""
    assert isinstance(convolution, nn.Conv1d)
    weights = convolution.weight.permute(2, 1, 0)
    assert convolution.bias is not None
    places = len(features)
    padded = F.pad(features, (0, 0, 2, 2))
    total = torch.addmm(convolution.bias, padded[:places], weights[0])
    for shift in range(1, 5):
        total = torch.addmm(total, padded[shift : shift + places], weights[shift])
    return total


def _pooled(features: Tensor) -> Tensor:
    """The largest of each five places; features are not negative, so that places without words do not count."""
    return features.reshape(-1, POOL, features.shape[1]).amax(dim=1)


def _pooled_to(features: Tensor, packed: Packed) -> Tensor:
    """The largest of each document (documents, C); 0 for one without words."""
    bins = packed.document[:, None].expand_as(features)
    pooled = features.new_zeros(packed.documents + 1, features.shape[1])
    return pooled.scatter_reduce(0, bins, features, "amax", include_self=True)[: packed.documents]
