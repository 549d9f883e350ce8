"""A data set in memory, with where it came from and how it was divided."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Part:
    """Samples of one part of a data set.

    Attributes:
        inputs: uint8 (N, H, W, C) images, or float32 (N, F) vectors.
        labels: int64 (N,).
        indices: int64 (N,), places in the publisher's order of the file that the samples come from.
    """

    inputs: np.ndarray
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
        mean: Mean of the training inputs in their own units: one number a channel, or one for vectors.
        std: Standard deviation of the same.
    """

    name: str
    classes: tuple[str, ...]
    train: Part
    val: Part
    test: Part
    source: str
    split: str
    mean: np.ndarray
    std: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample as a network takes it: (channels, height, width) or (features,)."""
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
