"""A data set in memory, with its source and the way it was divided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from refocal_lab.train.data.words import Documents, Forest

Kind = Literal["arrays", "documents", "trees"]  # of samples
LEARNED_DIMENSIONS = 100  # of word vectors that start at random


@dataclass(frozen=True, eq=False)
class Part:
    """Samples of one part of a data set.

    Attributes:
        inputs: Images, uint8 (N, H, W, C); vectors, float32 (N, F); N documents or N trees.
        labels: Class indices, int64 (N,); for a tree, the class of its root.
        indices: Positions of the samples in the publisher's file, int64 (N,).
    """

    inputs: np.ndarray | Documents | Forest
    labels: np.ndarray
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: np.ndarray) -> Part:
        """The samples at these positions of the publisher's file. Both sets of indices must be increasing."""
        rows = np.searchsorted(self.indices, indices)
        return Part(self.inputs[rows], self.labels[rows], indices)


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training, validation and test samples.

    Attributes:
        name: Name of the data set.
        classes: Names of the classes, in the order of the labels.
        train: Samples to train on.
        val: Samples to choose and calibrate on.
        test: Samples to measure on.
        source: The files it came from, and how they were verified.
        split: How it was divided.
        mean: Mean of the training inputs in their own units: one value per channel, or one for vectors; 0 for texts.
        std: Standard deviation of the training inputs, in the same form; 1 for texts.
        vocabulary: For texts, the words with numbers 1, 2, ...; 0 is the number of all other words.
        vectors: Initial word vectors, float32 (1 + words, D); None if they start at random.
        word_vectors: A description of these vectors.
        scored: The classes that samples can have; labels are positions in this tuple. None for all classes. Nodes of
            trees can have other classes.
    """

    name: str
    classes: tuple[str, ...]
    train: Part
    val: Part
    test: Part
    source: str
    split: str
    mean: np.ndarray = field(default_factory=lambda: np.zeros(1))
    std: np.ndarray = field(default_factory=lambda: np.ones(1))
    vocabulary: tuple[str, ...] = ()
    vectors: np.ndarray | None = None
    word_vectors: str | None = None
    scored: tuple[int, ...] | None = None

    @property
    def kind(self) -> Kind:
        """The kind of samples: "arrays", "documents" or "trees"."""
        kinds: dict[type, Kind] = {Documents: "documents", Forest: "trees"}
        return kinds.get(type(self.train.inputs), "arrays")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input of a network: (channels, height, width) or (features,); (words, D) for texts."""
        if not isinstance(self.train.inputs, np.ndarray):
            dimensions = LEARNED_DIMENSIONS if self.vectors is None else self.vectors.shape[1]
            return 1 + len(self.vocabulary), dimensions
        shape = self.train.inputs.shape[1:]
        return shape if len(shape) == 1 else (shape[2], *shape[:2])


def moments(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per channel of images, or over all values of vectors. Exact for bytes."""
    if inputs.dtype != np.uint8:
        return np.array([inputs.mean(dtype=np.float64)]), np.array([inputs.std(dtype=np.float64)])
    values = np.arange(256)
    counts = np.stack([np.bincount(inputs[..., channel].ravel(), minlength=256) for channel in range(inputs.shape[-1])])
    places = counts.sum(axis=1)
    mean = counts @ values / places
    return mean, np.sqrt(counts @ values**2 / places - mean**2)
