"""The images of files, as batches that fit into the memory that a command may take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from refocal._check import Input
from refocal.cli.memory import format_size
from refocal.metrics.defaults import BINS
from refocal.predictions import ColumnChoice
from refocal.predictions.errors import PredictionsError
from refocal.predictions.images import ImageFile
from refocal.predictions.protocol import block_rows

# Bytes per score and per pixel of a batch, measured and rounded up: scores, their probabilities, and copies of labels.
_PER_SCORE, _PER_PIXEL = 40, 64
_PER_SUM = 24  # bytes per sum that is kept of an image: the sums themselves, and copies while limits are computed


@dataclass
class ImageBatches:
    """Scores and labels of images, read from the start of the files each time they are iterated over.

    Attributes:
        files: The files; all have the same classes.
        size: The most images of a batch.
        used: Whether each image is used, (N,); the others are read, but not returned.
        done: The number of images read so far in this pass.
    """

    files: tuple[ImageFile, ...]
    size: int
    used: np.ndarray
    done: int = field(default=0, init=False)
    _place: str = field(default="", init=False)

    @classmethod
    def open(
        cls, files: Sequence[str], *, labels: bool, most_bytes: int, columns: ColumnChoice, **axis: int
    ) -> ImageBatches:
        """Read the headers of files.

        Args:
            files: npz files of images.
            labels: Whether labels must be there.
            most_bytes: The memory that batches, and the sums of all images, may take.
            columns: The arrays of labels and scores, if their names are not clear.
            **axis: The axis of the classes, if it is not the default of `ImageFile.open`.
        """
        opened = tuple(ImageFile.open(file, columns=columns, **axis) for file in files)
        count, largest = sum(file.shape[0] for file in opened), max(opened, key=lambda file: file.image_scores)
        found = cls(opened, 1, np.ones(count, dtype=bool))
        for file in opened:
            if labels and not file.has_labels:
                msg = f"{file.path} has no labels, which measuring and fitting need: name their array with --label"
                raise ValueError(msg)
            found.check_same(replace(found, files=(file,)))
        scores = largest.image_scores
        image = _PER_SCORE * scores + _PER_PIXEL * (scores // found.channels)
        kept = _PER_SUM * count * ((max(2, found.channels) + 2) * BINS + 10) if labels else 0
        if kept + image > most_bytes:
            msg = (
                f"an image of {largest.path}, and the sums of all images, would take about "
                f"{format_size(kept + image)} of memory, more than the limit of {format_size(most_bytes)}: raise "
                "--memory, or give fewer or smaller images"
            )
            raise ValueError(msg)
        return replace(found, size=min(block_rows(scores), (most_bytes - kept) // image))

    @property
    def input(self) -> Input:
        """Whether scores are logits or probs."""
        return self.files[0].input

    @property
    def channels(self) -> int:
        """The number of scores per pixel; 1 for class 1 of two classes."""
        return self.files[0].channels

    @property
    def count(self) -> int:
        """The number of images that are used."""
        return int(np.count_nonzero(self.used))

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The names of the classes, if the first file has them."""
        return self.files[0].class_names

    def take(self, images: np.ndarray) -> ImageBatches:
        """Use only some images, by their numbers."""
        used = np.zeros(len(self.used), dtype=bool)
        used[images] = True
        return replace(self, used=used)

    def check_same(self, other: ImageBatches) -> None:
        """Reject files of other images that have other classes or another kind of scores."""
        one, two = self.files[0], other.files[0]
        if (one.input, one.channels) != (two.input, two.channels):
            msg = (
                f"{one.path} and {two.path} must hold the same kind of scores, got {one.input} of {one.channels} "
                f"classes and {two.input} of {two.channels}"
            )
            raise ValueError(msg)
        if None not in (one.class_names, two.class_names) and one.class_names != two.class_names:
            msg = f"{one.path} and {two.path} must have the same class names in the same order"
            raise ValueError(msg)

    def __iter__(self) -> Iterator[tuple[np.ndarray, Any]]:
        self.done, start = 0, 0
        for file in self.files:
            for first, scores, labels in file.read(self.size):
                used = np.flatnonzero(self.used[start + first : start + first + len(scores)])
                # runs of neighbors, so that an error about row i of a batch is about image number `first` + i
                for run in np.split(used, np.flatnonzero(np.diff(used) > 1) + 1):
                    if len(run):
                        rows = slice(run[0], run[-1] + 1)
                        at = first + int(run[0])
                        self._place = f"{file.path}, rows counted from image {at}" if at else str(file.path)
                        yield scores[rows], None if labels is None else labels[rows]
                        self.done += len(run)
            start += file.shape[0]
            self._place = str(file.path)  # for what is wrong with all images together

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Name the file and the images in errors about values."""
        try:
            yield
        except PredictionsError:  # names them already
            raise
        except (ValueError, TypeError) as error:
            if not self._place:  # nothing was read yet
                raise
            msg = f"{self._place}: {error}"
            raise type(error)(msg) from error
