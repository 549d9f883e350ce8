"""Which label means which class of a file: by the names of its columns, or by its labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.errors import Place
from refocal.predictions.header import Header
from refocal.predictions.labels import (
    BOOLEANS,
    NUMBER,
    OBVIOUS,
    WHOLE,
    CodedText,
    LabelCoding,
    LabelKind,
    RawLabels,
    is_missing,
)
from refocal.predictions.names import describe_names, name_option
from refocal.predictions.score_columns import find_label

_SIGNS = ("-1", "1")
_MOST_CLASSES = 1_000_000  # with names that count from 1
_TRUE = "true is the second class"
_NEGATIVE = {"0", *(pair[0] for pair in OBVIOUS)}


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
    columns: int,
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
        columns: Number of columns of scores; a single one is that of the second of two classes.
        kind: What the labels are, by their type; text may hold numbers or booleans. None if there are no labels.
        scan: Reads all labels. It is read only as far as needed.
        place: The file, for errors.
        stored_names: Class names that refocal stored in the file. Labels are then indices.
        given: The label of each class, if the caller names them.
    """
    classes = max(2, columns)
    header = header if columns == 1 else replace(header, positive=None)  # the name of a list of scores means no class
    names = stored_names or header.class_names
    if given is not None:
        return _accept(tuple(given), classes, names, place)
    if kind == "text":
        kind = _find_kind(scan(), names)
    elif kind == "numbers" and stored_names is not None:
        kind = None
    if kind is None:  # there is nothing to settle; if all labels are missing, that is an error of their rows
        return Classes(LabelCoding(classes), names)
    if names is not None and kind != "booleans" and (kind == "text" or all(map(WHOLE.fullmatch, names))):
        return Classes(LabelCoding(classes, names), names)
    if kind == "text":
        return _order(_distinct(scan(), classes), columns, header, place)
    settle = _take_booleans if kind == "booleans" else partial(_take_numbers, scan())
    return settle(header, classes, names, place)


def _take_numbers(
    labels: Iterator[RawLabels], header: Header, classes: int, names: tuple[str, ...] | None, place: Place
) -> Classes:
    _check_lone_column(header, place)
    coding = _find_numbers(labels, classes)
    if names is not None:
        return Classes(coding, names, (_pair(names, coding.values, place),))
    if coding.first == 1:
        return Classes(coding, coding.values, (f"labels start at 1, classes: 1 to {classes}",))
    if coding.names is not None:
        return Classes(coding, coding.names, (f"classes: {describe_names(coding.names)}",))
    return Classes(coding, None, () if header.positive is None else (f"classes: {header.positive} = 1",))


def _accept(given: tuple[str, ...], classes: int, names: tuple[str, ...] | None, place: Place) -> Classes:
    """Take the labels that the caller names; they are class names, too, unless they say no more than the index."""
    if given == LabelCoding(len(given)).values:  # as many as another file of the data set has classes
        return Classes(LabelCoding(classes), names)
    if len(given) != classes or len(set(given)) < classes:
        message = f"classes must name each of {classes} classes once, got {describe_names(given)}"
        raise place.error(message)
    plain = tuple(value.lower() for value in given) == BOOLEANS
    return Classes(LabelCoding(classes, given, chosen=True), names or (None if plain else given))


def _find_kind(labels: Iterator[RawLabels], names: tuple[str, ...] | None) -> LabelKind | None:
    """Say what labels in text are, by the first block that has any; None if there are none."""
    for some in labels:
        if not isinstance(some, CodedText):
            return "numbers"
        found = {value.lower() for value in _values(some)}
        if not found:
            continue
        if found <= set(BOOLEANS):
            return "booleans"
        named = any(name.lower() in found for name in names or () if not WHOLE.fullmatch(name))
        return "numbers" if not named and all(map(NUMBER.fullmatch, found)) else "text"
    return None


def _values(labels: CodedText) -> list[str]:
    """List the different labels that occur and are not missing."""
    values = (labels.values[code].strip() for code in np.unique(labels.codes))
    return [value for value in values if not is_missing(value)]


def _take_booleans(header: Header, classes: int, names: tuple[str, ...] | None, place: Place) -> Classes:
    if classes != 2:
        message = f"booleans are labels of two classes, but there are {classes}"
        raise place.error(message, column=place.labels)
    if names is None:
        _check_lone_column(header, place)
        return Classes(LabelCoding(2, BOOLEANS), None, (_TRUE,))
    if {name.lower() for name in names} == set(BOOLEANS):
        return Classes(LabelCoding(2, names), names)
    return Classes(LabelCoding(2, BOOLEANS), names, (_pair(names, BOOLEANS, place),))


def _pair(names: tuple[str, ...], labels: tuple[str, ...], place: Place) -> str:
    """Say which label is taken for which class; reject an evident pair of names in the wrong order."""
    if tuple(name.lower() for name in reversed(names)) in OBVIOUS:
        one, two = labels
        message = (
            f"it is not clear whether label {two} means {names[0]} or {names[1]}, because the scores are in the order "
            f"{names[0]}, {names[1]}: name the labels in this order with {name_option('classes')}; "
            f"{two},{one} if {two} means {names[0]}"
        )
        raise place.error(message, column=place.labels)
    return f"classes: {describe_names([f'{name} = {label}' for name, label in zip(names, labels, strict=True)])}"


def _check_lone_column(header: Header, place: Place) -> None:
    """Reject a single column of scores that is evidently that of the first class, not of the second."""
    if header.positive is not None and header.positive.lower() in _NEGATIVE:
        message = (
            f"{header.columns[0]} seems to be about {header.positive}, but scores of one column are those of the "
            f"second class: name the label of each class, that of {header.positive} last, with {name_option('classes')}"
        )
        raise place.error(message, column=place.labels)


def _find_numbers(labels: Iterator[RawLabels], classes: int) -> LabelCoding:
    """Find out whether numbers count from 0, count from 1 or are -1 and 1; the first label that is none settles it.

    They count from 1 if label 0 never occurs and label K does.
    """
    zero = LabelCoding(classes)
    top = 0.0
    for some in labels if classes <= _MOST_CLASSES else ():
        if isinstance(some, CodedText):
            values = _values(some)
            if not all(map(NUMBER.fullmatch, values)):
                return zero
            found = np.unique(np.array(values, dtype=np.float64))
        else:
            found = np.unique(some[~np.isnan(some)])
        if not len(found):
            continue
        if classes == 2 and found[0] == -1 and set(found.tolist()) <= {-1, 1}:
            return LabelCoding(2, _SIGNS)
        if found[0] < 1 or found[-1] > classes:
            return zero
        top = max(top, float(found[-1]))
    return LabelCoding(classes, first=1) if top == classes else zero


def _distinct(labels: Iterator[RawLabels], classes: int) -> list[str]:
    """Collect different labels until there is one per class.

    Spellings in upper and lower case are one label, the first of them, unless there are as many classes as spellings.
    """
    found: dict[str, None] = {}
    folded: dict[str, str] = {}
    for some in labels:
        for value in _values(some) if isinstance(some, CodedText) else ():
            found[value] = None
            folded.setdefault(value.lower(), value)
        if len(folded) >= classes:
            break
    return list(folded.values() if len(folded) == classes else found)


def _order(found: list[str], columns: int, header: Header, place: Place) -> Classes:
    """Order the classes of labels in words: the one that the scores are about is the second of two."""
    classes, positive = max(2, columns), header.positive
    if positive == "0":
        _check_lone_column(header, place)
    values = sorted(found, key=lambda value: (value.lower(), value))
    if classes == 2 and len(values) == 1:
        values = _complete(values[0], positive)
    if len(values) != classes:
        message = (
            f"there are {classes} classes, but the labels are {describe_names(values)}: name the label of each class "
            f"with {name_option('classes')}"
        )
        raise place.error(message, column=place.labels)
    meant = next((value for value in values if positive is not None and value.lower() == positive.lower()), None)
    named = None
    if meant is None:
        _check_lone_column(header, place)
        named = find_label(header.columns[0], values) if columns == 1 else None
    second = meant or named
    if classes == 2 and second is not None:
        values = [value for value in values if value != second] + [second]
    elif tuple(value.lower() for value in reversed(values)) in OBVIOUS:
        values = values[::-1]
    how = "in sorted order" if named is None else f"by the name of {describe_names(header.columns)}"
    obvious = classes == 2 and (meant is not None or tuple(value.lower() for value in values) in OBVIOUS)
    hint = "" if obvious else f" ({how}; change it with {name_option('classes')})"
    return Classes(LabelCoding(classes, tuple(values)), tuple(values), (f"classes: {describe_names(values)}{hint}",))


def _complete(only: str, positive: str | None) -> list[str]:
    """Add the other of two classes if the only label, or the class that the scores are about, tells it."""
    if positive is not None and positive.lower() != only.lower():
        return [only, positive]
    pair = next((pair for pair in OBVIOUS if only.lower() in pair), (only,))
    return [only if word == only.lower() else word.title() if only.istitle() else word for word in pair]
