"""A convolutional network over words with global pooling, for documents joined end to end instead of padded."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refocal_lab.train.models.layers import Head, WordVectors

POOL = 5
STRIDE = POOL * POOL  # a document starts at a multiple of this
GAP = 2 * POOL  # places without words after each document, as far as the second convolution sees
SPREAD = 2  # the same for the third convolution, in pieces of STRIDE places


class PackedDocuments(NamedTuple):
    """Documents joined end to end.

    Attributes:
        words: Numbers of the words (T,). T is a multiple of `STRIDE`; at least `GAP` places separate two documents.
        absent: Whether a place has no word (T,).
        pieces: Numbers of pieces of `STRIDE` places (P,), document by document, with `SPREAD` empty pieces after each
            document. The number T / STRIDE stands for an empty piece.
        rows: Positions in `pieces` of the pieces of each document (N, longest); P fills the rest of a row.
    """

    words: Tensor
    absent: Tensor
    pieces: Tensor
    rows: Tensor


class GlobalPoolingCNN(nn.Module):
    """Three convolutions over five words, max pooling between them and over the whole document, and two dense layers.

    Features are zero at places without words, so the logits of a document do not depend on its neighbors. Given word
    vectors are not trained.

    Args:
        classes: Number of classes.
        shape: Number of words, and dimensions of their vectors.
        width: Features of each layer.

    Reference: Lin, Chen, Yan: Network in Network. ICLR 2014, section 3.2 (global pooling). The layers are those of the
        Keras example "Using pre-trained word embeddings", which the code that Mukhoti et al. (2020) name trains, with
        the initial weights of Keras (Glorot, Bengio: Understanding the difficulty of training deep feedforward neural
        networks. AISTATS 2010).
    """

    def __init__(self, *, classes: int, shape: tuple[int, int], width: int = 128) -> None:
        super().__init__()
        self.words = WordVectors(*shape, tuned=False)
        inputs = (shape[1], width, width)
        self.convolutions = nn.ModuleList(nn.Conv1d(size, width, 5, padding=2) for size in inputs)
        self.dense = nn.Linear(width, width)
        self.head = Head(width, classes)
        for layer in (*self.convolutions, self.dense, self.head):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, packed: PackedDocuments) -> Tensor:
        """Logits (documents, classes)."""
        first, second, third = self.convolutions
        features = self.words(packed.words).masked_fill_(packed.absent[:, None], 0.0)
        features = _pool(_convolve(features, first), packed.absent)
        features = _pool(_convolve(features, second), packed.absent.reshape(-1, POOL).all(dim=1))
        features = F.pad(features, (0, 0, 0, 1)).index_select(0, packed.pieces)
        features = F.pad(torch.relu(_convolve(features, third)), (0, 0, 0, 1))
        pooled = F.embedding(packed.rows, features).amax(dim=1)  # features are not negative, so empty rows do not count
        return self.head(torch.relu(self.dense(pooled)))


def _convolve(features: Tensor, convolution: nn.Module) -> Tensor:
    """(T, C) -> (T, D), computed on an image of one row with channels last, which needs no copies."""
    assert isinstance(convolution, nn.Conv1d)
    weight = convolution.weight[:, :, None].contiguous(memory_format=torch.channels_last)
    return _places(F.conv2d(_image(features), weight, convolution.bias, padding=(0, 2)))


def _pool(features: Tensor, absent: Tensor) -> Tensor:
    """Max pooling over five places, rectified. Overwrites the features at places without words."""
    here = features.masked_fill_(absent[:, None], 0.0)
    return torch.relu(_places(F.max_pool2d(_image(here), (1, POOL))))


def _image(features: Tensor) -> Tensor:
    """(T, C) -> (1, C, 1, T), a view of the same memory."""
    return features.T[None, :, None]


def _places(image: Tensor) -> Tensor:
    """(1, C, 1, T) -> (T, C)."""
    return image[0, :, 0].T
