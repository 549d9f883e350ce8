"""Checks of the values of predictions; each error names the first row that breaks the rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from refocal import _check
from refocal.predictions.errors import Place

INPUTS = ("logits", "probs")
SPLIT_LENGTH = 64  # characters; split names are words such as "val", and a limit bounds what a file can make us hold
NAME_LENGTH = 256


class Columns(NamedTuple):
    """Rows of predictions as arrays, before or after they are checked."""

    scores: np.ndarray
    labels: np.ndarray | None = None
    split: np.ndarray | None = None
    sample_weight: np.ndarray | None = None

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> Columns:
        """The function of each array that is there."""
        return Columns(function(self.scores), *(None if array is None else function(array) for array in self[1:]))


def check(columns: Columns, input: str, place: Place) -> Columns:
    """The columns, in native dtypes: scores as they came, labels int64, sample weights float64."""
    scores = _scores(columns.scores, input, place)
    rows, classes = len(scores), number_of_classes(scores.shape)
    labels, split, weights = columns.labels, columns.split, columns.sample_weight
    return Columns(
        scores,
        None if labels is None else _labels(labels, rows, classes, place),
        None if split is None else _split(split, rows, place),
        None if weights is None else _weights(weights, rows, place),
    )


def number_of_classes(shape: tuple[int, ...]) -> int:
    """Classes of scores of a shape: those of one column are about class 1 of two."""
    return max(2, shape[1]) if len(shape) == 2 else 2


def check_scores_form(dtype: np.dtype, shape: tuple[int, ...], input: str, place: Place) -> None:
    """Form of the scores, which a file declares before its data."""
    if dtype.kind != "f" or dtype.itemsize > 8:
        message = f"must be float16, float32 or float64, got {dtype}"
        raise place.error(message, column=place.scores(input))
    if len(shape) not in (1, 2) or 0 in shape[1:]:
        message = f"must have shape (rows, classes) or (rows,), got {shape}"
        raise place.error(message, column=place.scores(input))
    if shape[0] == 0:
        raise place.no_rows(column=place.scores(input))


def check_rows(shape: tuple[int, ...], rows: int, name: str, place: Place) -> None:
    """One value a row."""
    if shape != (rows,):
        message = f"must have shape ({rows},), one value a row, got {shape}"
        raise place.error(message, column=name)


def check_text(array: np.ndarray, name: str, place: Place, *, longest: int) -> np.ndarray:
    """Printable strings of 1 to `longest` characters, looked at as code points, without making Python strings."""
    if array.dtype.kind != "U":
        message = f"must be text, got {array.dtype}"
        raise place.error(message, column=name)
    width = array.dtype.itemsize // 4
    if width > longest or width == 0:
        message = f"must be text of 1 to {longest} characters, got {array.dtype}"
        raise place.error(message, column=name)
    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    points = native.view(np.uint32).reshape(len(native), width)
    # 0 pads the end of a string. Controls would break lines and terminals, surrogates cannot be written as UTF-8.
    control = ((points < 32) & (points > 0)) | ((points >= 127) & (points < 160))
    strange = control | ((points >= 0xD800) & (points < 0xE000)) | (points > 0x10FFFF)
    strange[:, 1:] |= (points[:, :-1] == 0) & (points[:, 1:] > 0)
    bad = strange.any(axis=1) | (points[:, 0] == 0)
    if bad.any():
        row = int(np.argmax(bad))
        found = "".join(chr(point) if point <= 0x10FFFF else "?" for point in points[row]).rstrip("\0")
        message = f"must be printable text, not empty, got {found!r}"
        raise place.error(message, column=name, row=row)
    return native


def check_names_shape(shape: tuple[int, ...], classes: int, place: Place) -> None:
    """One name a class."""
    if shape != (classes,):
        message = f"must name each of {classes} classes, got shape {shape}"
        raise place.error(message, column="class_names")


def class_names(names: Any, classes: int, place: Place) -> tuple[str, ...]:
    """A different name for each class."""
    column = "class_names"
    check_names_shape(np.shape(names), classes, place)
    for index, name in enumerate(names):
        # before NumPy makes every name as long as the longest
        if not isinstance(name, str) or len(name) > NAME_LENGTH:
            message = f"must be text of 1 to {NAME_LENGTH} characters, got {name!r:.50}"
            raise place.error(message, column=column, row=index)
    found = tuple(str(name) for name in check_text(np.array(names), column, place, longest=NAME_LENGTH))
    if len(set(found)) < classes:
        twice = next(name for name in found if found.count(name) > 1)
        message = f"must be different, got {twice!r} twice"
        raise place.error(message, column=column)
    return found


def _scores(scores: np.ndarray, input: str, place: Place) -> np.ndarray:
    check_scores_form(scores.dtype, scores.shape, input, place)
    scores = scores.astype(scores.dtype.newbyteorder("="), copy=False)
    matrix = scores.reshape(len(scores), -1)
    if input == "logits":
        _logits(matrix, place)
    else:
        _probs(matrix, place)
    return scores


def _logits(matrix: np.ndarray, place: Place) -> None:
    finite = np.isfinite(matrix)
    if finite.all():  # of nearly every file
        return
    one = matrix.shape[1] == 1
    allowed = "must be finite" if one else "must be finite or -inf (masked)"
    _reject(~finite if one else ~finite & (matrix != -np.inf), matrix, allowed, "logits", place)
    masked = ~finite.any(axis=1)
    if masked.any():
        row = int(np.argmax(masked))
        message = "must have one finite value a row, got -inf only"
        raise place.error(message, column=place.scores("logits"), row=row)


def _probs(matrix: np.ndarray, place: Place) -> None:
    _reject(~(matrix >= 0), matrix, "must be non-negative and not NaN", "probs", place)
    if matrix.shape[1] == 1:
        _reject(matrix > 1, matrix, "must lie in [0, 1]", "probs", place)
        return
    with np.errstate(over="ignore"):  # an infinite sum is not 1 either
        sums = matrix.sum(axis=1, dtype=np.promote_types(matrix.dtype, np.float32))
    wrong = ~(np.abs(sums - 1) <= _check.sum_tolerance(matrix.dtype.itemsize * 8))
    if wrong.any():
        row = int(np.argmax(wrong))
        message = f"must sum to 1 a row, got {sums[row]} (logits have a name of their own)"
        raise place.error(message, column=place.scores("probs"), row=row)


def _reject(bad: np.ndarray, matrix: np.ndarray, allowed: str, input: str, place: Place) -> None:
    if bad.any():
        row, index = (int(i) for i in np.unravel_index(np.argmax(bad), bad.shape))
        message = f"{allowed}, got {matrix[row, index]}"
        of_one = matrix.shape[1] == 1 and not place.numbered  # one column is about both classes
        raise place.error(message, column=place.scores(input, None if of_one else index), row=row)


def _labels(labels: np.ndarray, rows: int, classes: int, place: Place) -> np.ndarray:
    check_rows(labels.shape, rows, place.labels, place)
    check_numbers(labels.dtype, place.labels, place)
    bad = ~((labels >= 0) & (labels < classes))
    if labels.dtype.kind == "f":
        bad |= labels != np.floor(labels)
    if bad.any():
        row = int(np.argmax(bad))
        message = f"must be a whole number from 0 to {classes - 1}, got {labels[row]}"
        raise place.error(message, column=place.labels, row=row)
    return labels.astype(np.int64, copy=False)


def check_numbers(dtype: np.dtype, name: str, place: Place) -> None:
    """A dtype of numbers that float64 holds."""
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        message = f"must be numbers, got {dtype}"
        raise place.error(message, column=name)


def _split(split: np.ndarray, rows: int, place: Place) -> np.ndarray:
    check_rows(split.shape, rows, "split", place)
    return check_text(split, "split", place, longest=SPLIT_LENGTH)


def _weights(weights: np.ndarray, rows: int, place: Place) -> np.ndarray:
    check_rows(weights.shape, rows, place.sample_weight, place)
    check_numbers(weights.dtype, place.sample_weight, place)
    bad = ~((weights >= 0) & np.isfinite(weights))
    if bad.any():
        row = int(np.argmax(bad))
        message = f"must be non-negative and finite, got {weights[row]}"
        raise place.error(message, column=place.sample_weight, row=row)
    heavy = weights > _check.LARGEST_WEIGHT  # their sum, or that of their squares, could overflow
    if heavy.any():
        row = int(np.argmax(heavy))
        message = f"must be at most {_check.LARGEST_WEIGHT:g}, got {weights[row]}: divide all of them by one number"
        raise place.error(message, column=place.sample_weight, row=row)
    return weights.astype(np.float64, copy=False)
