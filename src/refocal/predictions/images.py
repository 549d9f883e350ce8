"""npz files of images: scores with a class axis and spatial axes, and one label per pixel, read batch by batch."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refocal import _image_checks
from refocal._check import Input
from refocal._files import replacing
from refocal._probability_look import find_probability_look
from refocal.predictions import checks
from refocal.predictions.checks import NAME_LENGTH
from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.errors import Place, PredictionsWarning
from refocal.predictions.npz_arrays import Archive, Member, archive_arrays, open_archive, read_names, take

Write = Callable[[np.ndarray, np.ndarray | None], None]


class ImageBlock(NamedTuple):
    """Some images of a file that follow each other: the number of the first, their scores, and labels if there are."""

    first: int
    scores: np.ndarray
    labels: np.ndarray | None


@dataclass(frozen=True)
class ImageFile:
    """An npz file of images. Its header is checked, its values are not.

    Attributes:
        path: The file.
        input: Whether scores are logits or probs.
        shape: The shape of the scores, with the images on axis 0.
        axis: The axis of the classes, counted from the first.
        class_names: The names of the classes, if the file has them.
        has_labels: Whether there are labels.
    """

    path: Path
    input: Input
    shape: tuple[int, ...]
    axis: int
    class_names: tuple[str, ...] | None
    has_labels: bool
    _choice: ColumnChoice = field(repr=False)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, axis: int = 1, columns: ColumnChoice | None = None) -> ImageFile:
        """Read the header of a file; what had to be guessed about its arrays is a `PredictionsWarning`.

        Args:
            path: The npz file.
            axis: The axis of the classes: 1 for (N, K, H, W), -1 for (N, H, W, K).
            columns: The arrays of labels and scores, if their names are not clear.
        """
        choice = columns or ColumnChoice()
        if not _is_npz(path):
            message = "images are read from npz files only, and never beside rows"
            raise Place(Path(path)).error(message)
        with open_archive(Path(path), choice) as opened:
            place, columns_used = opened.place, opened.columns
            scores, labels = _open_members(opened)
            checks.check_scores_dtype(scores.dtype, columns_used.input, place)
            if len(scores.shape) < 3 or 0 in scores.shape[1:]:
                message = f"must have shape (images, classes, ...) for images, got {scores.shape}"
                raise place.error(message, column=scores.name)
            if scores.shape[0] == 0:
                message = "there are no images"
                raise place.error(message, column=scores.name)
            at = _image_checks.image_axis(axis, np.broadcast_to(np.float32(0), scores.shape), scores.name)
            names = _read_class_names(opened, max(2, scores.shape[at]))
            if labels is not None:
                _check_labels(labels, scores.shape[:at] + scores.shape[at + 1 :], place)
            for name, instead in ((columns_used.split, "write one file per split, or "), (columns_used.weight, "")):
                if name is not None:
                    message = f"does not work with images: {instead}leave it out with --ignore {name}"
                    raise place.error(message, column=name)
            for member in filter(None, (scores, labels)):
                if member.fortran:
                    message = "is in Fortran order, which cannot be read in batches: save it in C order"
                    raise place.error(message, column=member.name)
            if guesses := columns_used.describe(choice, width=scores.shape[at]):
                warnings.warn(f"{path}: {'; '.join(guesses)}", PredictionsWarning, stacklevel=1)
            return cls(
                Path(path),
                columns_used.input,
                scores.shape,
                at,
                names,
                labels is not None,
                choice,
            )

    @property
    def channels(self) -> int:
        """The number of scores per pixel; 1 for class 1 of two classes."""
        return self.shape[self.axis]

    @property
    def image_scores(self) -> int:
        """The number of scores of an image."""
        return math.prod(self.shape[1:])

    def read(self, images: int) -> Iterator[ImageBlock]:
        """Read the file from its start, a number of images at a time, in native byte order.

        Logits that look like probabilities are rejected, unless the choice of arrays says that they are logits.
        """
        with open_archive(self.path, self._choice) as opened:
            scores, labels = _open_members(opened)
            if scores.shape != self.shape:
                message = f"must have shape {self.shape}, got {scores.shape}: the file changed while it was read"
                raise opened.place.error(message, column=scores.name)
            for first in range(0, self.shape[0], images):
                count = min(images, self.shape[0] - first)
                taken = [
                    None if member is None else _to_native(take(member, count, opened.place))
                    for member in (scores, labels)
                ]
                assert taken[0] is not None
                if self.input == "logits" and self._choice.logit is None and (look := self._find_look(taken[0])):
                    raise opened.place.error(checks.describe_look(look), column=scores.name)
                yield ImageBlock(first, taken[0], taken[1])

    def _find_look(self, scores: np.ndarray) -> str | None:
        """Return what makes the logits of all images look like probabilities; the first shows nearly always a logit."""

        def find(images: np.ndarray) -> str | None:
            return find_probability_look(np.moveaxis(images, self.axis, -1).reshape(-1, self.channels))

        return find(scores[:1]) and find(scores)


def holds_images(path: str | os.PathLike[str], *, columns: ColumnChoice | None = None) -> bool:
    """Whether a file is an npz file whose scores have spatial axes."""
    if not _is_npz(path):
        return False
    with open_archive(Path(path), columns or ColumnChoice()) as opened:
        return len(opened.member(opened.columns.columns[0]).shape) > 2


@contextmanager
def write_images(path: str | os.PathLike[str], like: ImageFile, *, overwrite: bool) -> Iterator[Write]:
    """Write probabilities of images, with the labels of a file and the names of its classes, batch by batch.

    Yields a function that takes probabilities of the shape of the scores of `like`, and labels if it has them. The file
    appears under its name when the `with` block ends without an exception; otherwise nothing remains.
    """
    rows = {"probs": like.shape[1:]}
    if like.has_labels:
        rows["labels"] = like.shape[1 : like.axis] + like.shape[like.axis + 1 :]
    with (
        replacing(path, overwrite=overwrite) as file,
        archive_arrays(file, Path(path).parent, rows, class_names=like.class_names) as spools,
    ):

        def write(probs: np.ndarray, labels: np.ndarray | None) -> None:
            spools["probs"].add(probs.astype(np.float32, copy=False))
            if labels is not None:
                spools["labels"].add(labels)

        yield write


def _is_npz(path: str | os.PathLike[str]) -> bool:
    return Path(path).suffix.lower() == ".npz"


def _open_members(opened: Archive) -> tuple[Member, Member | None]:
    label = opened.columns.label
    return opened.member(opened.columns.columns[0]), None if label is None else opened.member(label)


def _read_class_names(opened: Archive, classes: int) -> tuple[str, ...] | None:
    if "class_names" not in opened.infos:
        return None
    member = opened.member("class_names")
    checks.check_text(np.empty(0, dtype=member.dtype), member.name, opened.place, longest=NAME_LENGTH)
    checks.check_names_shape(member.shape, classes, opened.place)
    return checks.check_class_names(read_names(member, opened.place), classes, opened.place)


def _check_labels(labels: Member, shape: tuple[int, ...], place: Place) -> None:
    if labels.shape != shape:
        message = f"must have shape {shape}, one label per pixel, got {labels.shape}"
        raise place.error(message, column=labels.name)
    if labels.dtype.kind not in "iub":
        message = f"must be whole numbers, got {labels.dtype}"
        raise place.error(message, column=labels.name)


def _to_native(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder("="), copy=False)
