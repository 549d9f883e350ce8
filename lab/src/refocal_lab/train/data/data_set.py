"""A data set in memory, with where it came from and how it was divided."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from refocal_lab.train.data.words import Documents, Forest

LEARNED_DIMENSIONS = 100  # of word vectors that are not given


@dataclass(frozen=True, eq=False)
class Part:
    """Samples of one part of a data set.

    Attributes:
        inputs: uint8 (N, H, W, C) images, float32 (N, F) vectors, N documents or N trees.
        labels: int64 (N,), of a tree the label of its root.
        indices: int64 (N,), places in the publisher's order of the file that the samples come from.
    """

    inputs: np.ndarray | Documents | Forest
    labels: np.ndarray
    indices: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: np.ndarray) -> Part:
        """The samples with these places in the publisher's order, which must be increasing in both."""
        rows = np.searchsorted(self.indices, indices)
        return Part(self.inputs[rows], self.labels[rows], indices)


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training, validation and test samples.

    Attributes:
        name: What `load` calls it.
        classes: Their names, in the order of the labels.
        train: What to train on.
        val: What to choose and calibrate on.
        test: What to measure on.
        source: Which files it came from, and how they were verified.
        split: How it was divided.
        mean: Mean of the training inputs in their own units: one number a channel, or one for vectors; 0 for texts.
        std: Standard deviation of the same; 1 for texts.
        vocabulary: Of texts, the words that have a number of their own, counted from 1; 0 stands for all others.
        vectors: float32 (1 + words, D), what the words' vectors are at first; None where they are learned.
        word_vectors: Which these are, in words.
        scored: The classes that samples have, of which their labels are the places; None for all. Nodes of trees may
            have others.
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
    def kind(self) -> str:
        """What the samples are: "arrays", "documents" or "trees"."""
        kinds = {Documents: "documents", Forest: "trees"}
        return kinds.get(type(self.train.inputs), "arrays")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample as a network takes it: (channels, height, width) or (features,); of texts (words, D)."""
        if not isinstance(self.train.inputs, np.ndarray):
            dimensions = LEARNED_DIMENSIONS if self.vectors is None else self.vectors.shape[1]
            return 1 + len(self.vocabulary), dimensions
        shape = self.train.inputs.shape[1:]
        return shape if len(shape) == 1 else (shape[2], *shape[:2])


def moments(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation, exact for bytes, whose values are counted."""
    if inputs.dtype != np.uint8:
        return np.array([inputs.mean(dtype=np.float64)]), np.array([inputs.std(dtype=np.float64)])
    values = np.arange(256)
    counts = np.stack([np.bincount(inputs[..., channel].ravel(), minlength=256) for channel in range(inputs.shape[-1])])
    places = counts.sum(axis=1)
    mean = counts @ values / places
    return mean, np.sqrt(counts @ values**2 / places - mean**2)
