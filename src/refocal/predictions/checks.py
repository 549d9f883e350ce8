"""Checks of the values of predictions; each error reports the first row that breaks the rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from refocal import _check, _image_checks
from refocal._check import Input
from refocal._rounding import MOST_ROUNDING
from refocal.predictions.carried import Carried
from refocal.predictions.errors import Place
from refocal.predictions.labels import unlabeled_hint
from refocal.predictions.names import describe_names, name_option

Task = Literal["binary", "multiclass", "multilabel"]

SPLIT_LENGTH = 64  # characters; split names are words such as "val", and a limit bounds the memory that a file can take
NAME_LENGTH = 256


class Columns(NamedTuple):
    """Rows of predictions as arrays, before or after the checks."""

    scores: np.ndarray
    labels: np.ndarray | None = None
    split: np.ndarray | None = None
    sample_weight: np.ndarray | None = None
    carried: Carried | None = None

    def map(self, function: Callable[[Any], Any]) -> Columns:
        """Apply a function to each array that is present."""
        return Columns(function(self.scores), *(None if array is None else function(array) for array in self[1:]))


def check_columns(columns: Columns, input: Input, place: Place, *, multilabel: bool = False) -> Columns:
    """Check columns and convert them to native dtypes: labels to int64, sample weights to float64.

    If multilabel, each class is a task of its own: rows of probabilities need not sum to 1, labels are 0 or 1 for each
    class and become int8, and one column is one class.
    """
    scores = _scores(columns.scores, input, place, multilabel=multilabel)
    rows, classes = len(scores), count_classes(scores.shape)
    labels, split, weights = columns.labels, columns.split, columns.sample_weight
    if multilabel and labels is not None:
        labels = check_answers(labels, scores.shape, place)
    elif labels is not None:
        labels = _labels(labels, rows, classes, place)
    return Columns(
        scores,
        labels,
        None if split is None else _split(split, rows, place),
        None if weights is None else _weights(weights, rows, place),
        columns.carried,
    )


def count_classes(shape: tuple[int, ...], *, multilabel: bool = False) -> int:
    """Return the number of classes for a shape of scores; a single column is class 1 of two, except if multilabel."""
    columns = shape[1] if len(shape) == 2 else 1
    return columns if multilabel else max(2, columns)


def name_task(shape: tuple[int, ...], *, multilabel: bool) -> Task:
    """Name the task of scores of this shape."""
    return "multilabel" if multilabel else "binary" if count_classes(shape) == 2 else "multiclass"


def has_answers(shape: tuple[int, ...]) -> bool:
    """Whether labels of this shape are multi-label: 0 or 1 for each of several classes."""
    return len(shape) == 2 and shape[1] > 1


def check_scores_dtype(dtype: np.dtype, input: Input, place: Place) -> None:
    """Check the dtype of the scores, which a file declares before its data."""
    if dtype.kind != "f" or dtype.itemsize > 8:
        message = f"must be float16, float32 or float64, got {dtype}"
        raise place.error(message, column=place.name_scores(input))


def describe_look(look: str) -> str:
    """Say that logits look like probabilities, and how to choose."""
    return f"look like probabilities: {look}; choose with {name_option('prob')}, or with logit if they are logits"


def check_scores_form(dtype: np.dtype, shape: tuple[int, ...], input: Input, place: Place) -> None:
    """Check dtype and shape of the scores, which a file declares before its data."""
    check_scores_dtype(dtype, input, place)
    if len(shape) not in (1, 2) or 0 in shape[1:]:
        message = f"must have shape (rows, classes) or (rows,), got {shape}{_image_checks.image_hint(shape)}"
        raise place.error(message, column=place.name_scores(input))
    if shape[0] == 0:
        raise place.no_rows(column=place.name_scores(input))


def check_rows(shape: tuple[int, ...], rows: int, name: str, place: Place) -> None:
    """Check that there is one value per row."""
    if shape != (rows,):
        message = f"must have shape ({rows},), one value per row, got {shape}"
        raise place.error(message, column=name)


def check_text(array: np.ndarray, name: str, place: Place, *, longest: int) -> np.ndarray:
    """Check for printable strings of 1 to `longest` characters, by code points, without making Python strings."""
    if array.dtype.kind != "U":
        message = f"must be text, got {array.dtype}"
        raise place.error(message, column=name)
    width = array.dtype.itemsize // 4
    if width > longest or width == 0:
        message = f"must be text of 1 to {longest} characters, got {array.dtype}"
        raise place.error(message, column=name)
    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    points = native.view(np.uint32).reshape(len(native), width)
    # 0 pads the end of a string. Control characters break lines and terminals; surrogates cannot be encoded as UTF-8.
    control = ((points < 32) & (points > 0)) | ((points >= 127) & (points < 160))
    strange = control | ((points >= 0xD800) & (points < 0xE000)) | (points > 0x10FFFF)
    strange[:, 1:] |= (points[:, :-1] == 0) & (points[:, 1:] > 0)
    bad = strange.any(axis=1) | (points[:, 0] == 0)
    if bad.any():
        row = int(np.argmax(bad))
        found = "".join(chr(point) if point <= 0x10FFFF else "?" for point in points[row]).rstrip("\0")
        message = f"must be printable, nonempty text, got {found!r}"
        raise place.error(message, column=name, row=row)
    return native


def check_names_shape(shape: tuple[int, ...], classes: int, place: Place) -> None:
    """Check that there is one name per class."""
    if shape != (classes,):
        message = f"must have one name for each of {classes} classes, got shape {shape}"
        raise place.error(message, column="class_names")


def check_class_names(names: Any, classes: int, place: Place) -> tuple[str, ...]:
    """Check that each class has a different name."""
    column = "class_names"
    check_names_shape(np.shape(names), classes, place)
    for index, name in enumerate(names):
        # checked here because NumPy pads every name to the longest one
        if not isinstance(name, str) or len(name) > NAME_LENGTH:
            message = f"must be text of 1 to {NAME_LENGTH} characters, got {name!r:.50}"
            raise place.error(message, column=column, row=index)
    found = tuple(str(name) for name in check_text(np.array(names), column, place, longest=NAME_LENGTH))
    if len(set(found)) < classes:
        twice = next(name for name in found if found.count(name) > 1)
        message = f"must be different, got {twice!r} twice"
        raise place.error(message, column=column)
    return found


def _scores(scores: np.ndarray, input: Input, place: Place, *, multilabel: bool) -> np.ndarray:
    check_scores_form(scores.dtype, scores.shape, input, place)
    scores = scores.astype(scores.dtype.newbyteorder("="), copy=False)
    matrix = scores.reshape(len(scores), -1)
    alone = multilabel or matrix.shape[1] == 1
    if input == "logits":
        _logits(matrix, place, alone=alone)
    else:
        _probs(matrix, place, alone=alone)
    return matrix if multilabel else scores


def _logits(matrix: np.ndarray, place: Place, *, alone: bool) -> None:
    """Check logits; `alone`: whether each column is a task of its own."""
    finite = np.isfinite(matrix)
    if finite.all():  # as in nearly every file
        return
    allowed = "must be finite" if alone else "must be finite or -inf (masked)"
    _reject(~finite if alone else ~finite & (matrix != -np.inf), matrix, allowed, "logits", place)
    masked = ~finite.any(axis=1)
    if masked.any():
        row = int(np.argmax(masked))
        message = "must have at least one finite value per row, got only -inf"
        raise place.error(message, column=place.name_scores("logits"), row=row)


def _probs(matrix: np.ndarray, place: Place, *, alone: bool) -> None:
    hint = _check.FOR_LOGITS if place.path is None else f"for logits, choose with {name_option('logit')}"
    _reject(~(matrix >= 0), matrix, "must be non-negative and not NaN", "probs", place, hint=f"; {hint}")
    if alone:
        hint = f"; divide percentages by 100; {hint}"
        _reject(matrix > 1, matrix, "must lie in [0, 1] (are these logits or percentages?)", "probs", place, hint=hint)
        return
    with np.errstate(over="ignore"):  # an infinite sum is rejected as well
        sums = matrix.sum(axis=1, dtype=np.promote_types(matrix.dtype, np.float32))
    wrong = ~(np.abs(sums - 1) <= _check.sum_tolerance(matrix.dtype.itemsize * 8))
    if wrong.any():
        row = int(np.argmax(wrong))
        remedy = "pass task='multilabel'" if place.path is None else f"choose with {name_option('task multilabel')}"
        message = f"must sum to 1, got {sums[row]} (are these logits?); if each class is a yes-or-no question, {remedy}"
        if abs(sums[row] - 100) <= 100 * MOST_ROUNDING:
            message = f"must sum to 1, got {sums[row]}: divide percentages by 100"
        elif place.columns:
            message += f"; the columns of the classes are {describe_names(place.columns)}"
        raise place.error(message, column=place.name_scores("probs"), row=row)


def _reject(bad: np.ndarray, matrix: np.ndarray, allowed: str, input: Input, place: Place, *, hint: str = "") -> None:
    if bad.any():
        row, index = (int(i) for i in np.unravel_index(np.argmax(bad), bad.shape))
        message = f"{allowed}, got {matrix[row, index]}{hint}"
        is_one_column = matrix.shape[1] == 1 and not place.columns  # a single column describes both classes
        raise place.error(message, column=place.name_scores(input, None if is_one_column else index), row=row)


def _labels(labels: np.ndarray, rows: int, classes: int, place: Place) -> np.ndarray:
    check_rows(labels.shape, rows, place.labels, place)
    check_numbers(labels.dtype, place.labels, place)
    bad = ~((labels >= 0) & (labels < classes))
    if labels.dtype.kind == "f":
        bad |= labels != np.floor(labels)
    if bad.any():
        row = int(np.argmax(bad))
        message = f"must be a whole number from 0 to {classes - 1}, got {labels[row]}{unlabeled_hint(labels[row])}"
        raise place.error(message, column=place.labels, row=row)
    return labels.astype(np.int64, copy=False)


def check_answers(labels: np.ndarray, shape: tuple[int, ...], place: Place) -> np.ndarray:
    """Check multi-label labels, 0 or 1 for each score, and convert them to int8."""
    rows, classes = shape[0], count_classes(shape, multilabel=True)
    check_answers_form(labels.dtype, labels.shape, (rows, classes), place)
    matrix = labels.reshape(rows, classes)
    wrong = ~((matrix == 0) | (matrix == 1))
    if wrong.any():
        row, index = (int(i) for i in np.unravel_index(np.argmax(wrong), wrong.shape))
        message = f"must be 0 or 1, got {matrix[row, index]}"
        raise place.error(message, column=place.name_answers(index), row=row)
    return matrix.astype(np.int8, copy=False)


def check_answers_form(dtype: np.dtype, shape: tuple[int, ...], wanted: tuple[int, int], place: Place) -> None:
    """Check dtype and shape of multi-label labels; one class may be without an axis."""
    if shape != wanted and not (wanted[1] == 1 and shape == wanted[:1]):
        message = f"must have shape {wanted} like the scores, 0 or 1 for each class, got {shape}"
        raise place.error(message, column=place.name_answers())
    if dtype.kind != "b":
        check_numbers(dtype, place.name_answers(), place)


def looks_exclusive(checked: Columns, input: Input) -> bool:
    """Whether multi-label predictions look like those of one class per row: one label, and probabilities sum to 1."""
    labels, scores = checked.labels, checked.scores
    if labels is None or labels.shape[1] < 2 or not (labels.sum(axis=1, dtype=np.int64) == 1).all():
        return False
    return input == "logits" or bool((np.abs(scores.sum(axis=1, dtype=np.float64) - 1) <= MOST_ROUNDING).all())


def collapse_answers(labels: np.ndarray, shape: tuple[int, ...], place: Place) -> np.ndarray:
    """Turn rows of one 1 and otherwise 0 into class indices."""
    found = check_answers(labels, (shape[0], count_classes(shape)), place)
    sums = found.sum(axis=1, dtype=np.int64)
    if (sums != 1).any():
        row = int(np.argmax(sums != 1))
        message = (
            f"must have one 1 per row for task multiclass, got {sums[row]}; if each class is a yes-or-no question, "
            f"choose with {name_option('task multilabel')}"
        )
        raise place.error(message, column=place.name_answers(), row=row)
    return found.argmax(axis=1)


def check_numbers(dtype: np.dtype, name: str, place: Place) -> None:
    """Check for a dtype of numbers that fit into float64."""
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
    heavy = weights > _check.LARGEST_WEIGHT  # the sum of their squares could overflow
    if heavy.any():
        row = int(np.argmax(heavy))
        message = (
            f"must be at most {_check.LARGEST_WEIGHT:g}, got {weights[row]}: divide all of them by the same number"
        )
        raise place.error(message, column=place.sample_weight, row=row)
    return weights.astype(np.float64, copy=False)
