"""Which label means which class of a file: by the names of its columns, or by its labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.errors import Place
from refocal.predictions.header import Header
from refocal.predictions.labels import WHOLE, CodedText, LabelCoding, LabelKind, RawLabels
from refocal.predictions.names import describe_names, name_option

_BOOLEANS = ("false", "true")
_MOST_CLASSES = 1_000_000  # with names that count from 1
_TRUE = "true is the second class"
# pairs of labels whose second one is evidently the class that a probability is about; all are in sorted order
_OBVIOUS = [
    _BOOLEANS,
    *(("no", "yes"), ("n", "y"), ("f", "t"), ("negative", "positive"), ("neg", "pos"), ("absent", "present")),
]


class Classes(NamedTuple):
    """How labels are read (None if multi-label), the names of the classes, and what was guessed, in words."""

    coding: LabelCoding | None
    names: tuple[str, ...] | None
    guesses: tuple[str, ...] = ()

    @property
    def is_multilabel(self) -> bool:
        """Whether each class has its own label, 0 or 1."""
        return self.coding is None


_MULTILABEL = "task: multi-label, each class is a yes-or-no question"


def settle_multilabel(
    header: Header,
    classes: int,
    choice: ColumnChoice,
    *,
    stored_names: tuple[str, ...] | None = None,
    several: bool = False,
) -> Classes | None:
    """Settle the classes of multi-label predictions; None if they are not multi-label.

    Args:
        header: The columns.
        classes: Number of columns of scores.
        choice: The columns that the caller names.
        stored_names: Class names that refocal stored in the file.
        several: Whether labels have a value for each class.
    """
    if choice.task == "multiclass" or (choice.task is None and not several):
        return None
    only = (header.positive,) if classes == 1 and header.positive is not None else None
    names = stored_names or header.class_names or only
    return Classes(None, names, () if choice.task else (_MULTILABEL,))


def settle_classes(
    header: Header,
    classes: int,
    kind: LabelKind | None,
    scan: Callable[[], Iterator[RawLabels]],
    place: Place,
    *,
    stored_names: tuple[str, ...] | None = None,
    given: Iterable[str] | None = None,
) -> Classes:
    """Find out which label means which class.

    Args:
        header: The columns.
        classes: Number of classes.
        kind: What the labels are; None if there are none.
        scan: Reads all labels. It is read only as far as needed, and not at all if the names of columns settle it.
        place: The file, for errors.
        stored_names: Class names that refocal stored in the file. Labels are then indices.
        given: The label of each class, if the caller names them.
    """
    names = stored_names or header.class_names
    zero = LabelCoding(classes)
    if given is not None:
        return _accept(tuple(given), classes, names, place)
    if kind == "booleans":
        if classes != 2:
            message = f"booleans are labels of two classes, but there are {classes}"
            raise place.error(message, column=place.labels)
        named = names is not None and {name.lower() for name in names} == set(_BOOLEANS)
        return Classes(LabelCoding(2, names if names and named else _BOOLEANS), names, () if named else (_TRUE,))
    if kind is None or (kind == "numbers" and stored_names is not None):
        return Classes(zero, names)
    if names is not None and (kind == "text" or all(map(WHOLE.fullmatch, names))):
        return Classes(LabelCoding(classes, names), names)
    if kind == "numbers":
        return _from_one(classes, names) if _start_at_one(scan(), classes) else Classes(zero, names)
    return _order(_distinct(scan(), classes), classes, header.positive, place)


def _accept(given: tuple[str, ...], classes: int, names: tuple[str, ...] | None, place: Place) -> Classes:
    """Take the labels that the caller names; they are class names, too, unless they say no more than the index."""
    if given == LabelCoding(len(given)).values:  # as many as another file of the data set has classes
        return Classes(LabelCoding(classes), names)
    if len(given) != classes or len(set(given)) < classes:
        message = f"classes must name each of {classes} classes once, got {describe_names(given)}"
        raise place.error(message)
    plain = tuple(value.lower() for value in given) == _BOOLEANS
    return Classes(LabelCoding(classes, given), names or (None if plain else given))


def _from_one(classes: int, names: tuple[str, ...] | None = None) -> Classes:
    coding = LabelCoding(classes, first=1)
    return Classes(coding, names or coding.values, (f"labels start at 1, classes: 1 to {classes}",))


def _start_at_one(labels: Iterator[RawLabels], classes: int) -> bool:
    """Whether label 0 never occurs and label K does; the first label outside 1 to K settles it."""
    top = 0
    for some in labels if classes <= _MOST_CLASSES else ():
        if isinstance(some, CodedText) or not (some.min(initial=1) >= 1 and some.max(initial=0) <= classes):
            return False
        top = max(top, int(some.max(initial=0)))
    return top == classes


def _distinct(labels: Iterator[RawLabels], classes: int) -> list[str]:
    """Collect different labels until there is one per class."""
    found: dict[str, None] = {}
    for some in labels:
        if isinstance(some, CodedText):
            values = (some.values[code] for code in np.unique(some.codes))
            found.update((value, None) for value in values if value)  # a missing label is an error of its row
        if len(found) >= classes:
            break
    return list(found)


def _order(found: list[str], classes: int, positive: str | None, place: Place) -> Classes:
    """Order the classes of labels in words: the one that the scores are about is the second of two."""
    lower = {value.lower() for value in found}
    zero = LabelCoding(classes)
    if not found:
        return Classes(zero, None)
    if classes == 2 and lower <= set(_BOOLEANS):
        return Classes(LabelCoding(2, _BOOLEANS), None, (_TRUE,))
    if all(map(WHOLE.fullmatch, found)):
        numbers = {int(float(value)) for value in found}
        if max(numbers) < classes:
            return Classes(zero, None)
        if min(numbers) == 1 and max(numbers) == classes <= _MOST_CLASSES:
            return _from_one(classes)
    values = sorted(found, key=lambda value: (value.lower(), value))
    if classes == 2 and len(values) == 1:
        values = _complete(values[0], positive)
    if len(values) != classes:
        message = (
            f"the labels {describe_names(values)} do not tell the {classes} classes: name the label of each class with "
            f"{name_option('classes')}"
        )
        raise place.error(message, column=place.labels)
    if classes == 2 and positive in values:
        values = [value for value in values if value != positive] + [positive]
    obvious = classes == 2 and (positive in values or tuple(value.lower() for value in values) in _OBVIOUS)
    how = "" if obvious else f" (in sorted order; change it with {name_option('classes')})"
    return Classes(LabelCoding(classes, tuple(values)), tuple(values), (f"classes: {describe_names(values)}{how}",))


def _complete(only: str, positive: str | None) -> list[str]:
    """Add the other of two classes if the only label, or the class that the scores are about, tells it."""
    if positive not in (None, only):
        return [only, str(positive)]
    pair = next((pair for pair in _OBVIOUS if only.lower() in pair), (only,))
    return [only if word == only.lower() else word.title() if only.istitle() else word for word in pair]
