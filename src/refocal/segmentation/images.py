"""Reading batches of images: scores with the classes on any axis, and labels with pixels to ignore."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from refocal import _image_checks
from refocal._arrays import move_axis, namespace
from refocal._check import Input
from refocal._containers import to_array
from refocal.metrics.inputs import ArrayLike, Block, Sample, read


class ImagePart(NamedTuple):
    """Some pixels of one image that count, as rows."""

    image: int
    places: np.ndarray  # (n,) flat positions in the image
    block: Block  # scores (n, K), or (n,) for P(class 1)


@dataclass(frozen=True)
class ImageBatch:
    """Scores and labels of matching shapes. Scores are checked as they are read.

    Attributes:
        sample: The scores (N, K, S), or flat if there is one channel, and the labels.
        channels: K; 1 for scores of class 1 of two classes.
        shape: The shape of the labels, (N, ...).
    """

    sample: Sample
    channels: int
    shape: tuple[int, ...]

    @classmethod
    def read(
        cls, scores: ArrayLike, labels: ArrayLike, *, axis: int, ignore_index: int | None, input: Input
    ) -> ImageBatch:
        """Check shapes, dtypes and labels. A batch may have no pixel that counts."""
        array = classes_first(to_array(scores, "scores"), axis)
        channels = int(array.shape[1])
        task: Any = {"task": "binary" if channels == 1 else "multiclass"}
        only = array[:, 0] if channels == 1 else array
        sample = read(only, labels, input=input, **task, ignore_index=ignore_index, batch=True)
        return cls(sample, channels, sample.shape)

    @property
    def places(self) -> int:
        """The number of pixels of an image."""
        return math.prod(self.shape[1:])

    @property
    def labels(self) -> np.ndarray:
        """The labels (N, ...)."""
        return self.sample.labels.reshape(self.shape)

    def parts(self) -> Iterator[ImagePart]:
        """The pixels that count, image after image, a block of rows at a time."""
        counted = np.flatnonzero(self.sample.counts())
        start = 0
        for block in self.sample.blocks():
            flat = counted[start : start + len(block.labels)]
            start += len(flat)
            # Blocks of a single channel may reach over several images.
            ends = np.searchsorted(flat, np.arange(flat[0] // self.places, flat[-1] // self.places + 2) * self.places)
            for low, high in itertools.pairwise(ends.tolist()):
                if low < high:
                    rows = slice(low, high)
                    part = Block(block.scores[rows], block.labels[rows], None, None)
                    yield ImagePart(int(flat[low]) // self.places, flat[rows] % self.places, part)


def classes_first(array: Any, axis: int) -> Any:
    """Check the axis of the classes and move it to axis 1, as (N, K, ...)."""
    return move_axis(array, _image_checks.image_axis(axis, array, "scores"), 1, xp=namespace(array))
