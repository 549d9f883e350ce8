"""Labels as files hold them (numbers, booleans, text), and the class that each one means."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from refocal.predictions.errors import Place, PredictionsError
from refocal.predictions.names import describe_names, name_option

LabelKind = Literal["numbers", "booleans", "text"]
WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,6})(?:\.0*)?")
NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
BOOLEANS = ("false", "true")
# pairs of labels whose second one is evidently the class that a probability is about
OBVIOUS = [
    BOOLEANS,
    *(("no", "yes"), ("n", "y"), ("f", "t"), ("negative", "positive"), ("neg", "pos"), ("absent", "present")),
    *(("nein", "ja"), ("non", "oui"), ("no", "sí"), ("no", "si"), ("não", "sim"), ("benign", "malignant")),
]
_MISSING = {"", "na", "n/a", "#n/a", "<na>", "nan", "null"}  # in lower case


class CodedText(NamedTuple):
    """Text in which values repeat: row r holds values[codes[r]]."""

    values: list[str]
    codes: np.ndarray


RawLabels = np.ndarray | CodedText
_ANSWERS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "no": 0, "yes": 1}


def is_missing(text: str) -> bool:
    """Whether text stands for a missing label, unless it is the name of a class."""
    return text.strip().lower() in _MISSING


def refuse_missing(row: int, place: Place) -> PredictionsError:
    """Make the error for a row without a label."""
    message = f"the label is missing; leave such rows out, with pandas by frame.dropna(subset=[{place.labels!r}])"
    return place.error(message, column=place.labels, row=row)


def unlabeled_hint(label: float) -> str:
    """The end of a message about a wrong number: negative ones often stand for no label."""
    return "; leave out rows without a label" if label < 0 else ""


def _show(label: str) -> str:
    """Show a label in an error: words in quotes, numbers and booleans without."""
    bare = NUMBER.fullmatch(label) or label in ("False", "True")
    return label[:100] if bare else repr(label[:100])


@dataclass(frozen=True)
class LabelCoding:
    """The label of each class.

    Attributes:
        classes: Number of classes. A damaged file may claim any number, so nothing of that size is made from it.
        names: The labels as text, in the order of the classes; None if they are whole numbers from `first` on.
        first: The label of the first class, if labels are numbers.
        chosen: Whether the caller names the labels.
    """

    classes: int
    names: tuple[str, ...] | None = None
    first: int = 0
    chosen: bool = False

    @property
    def values(self) -> tuple[str, ...]:
        """The label of each class, as text."""
        return self.names or tuple(str(self.first + index) for index in range(self.classes))

    @cached_property
    def _numbers(self) -> np.ndarray | None:
        """The names as numbers; None if they are words."""
        found = [int(float(value)) for value in self.names or () if WHOLE.fullmatch(value)]
        return np.array(found) if len(found) == self.classes else None

    def decode(self, raw: RawLabels, place: Place) -> np.ndarray:
        """Turn labels into class indices. Numbers that are such indices already are not checked."""
        if isinstance(raw, CodedText):
            table = np.array([self._find(value) for value in raw.values], dtype=np.int64)
            found = table[raw.codes]
            if (found < 0).any():
                row = int(np.argmax(found < 0))
                raise self._refuse(raw.values[raw.codes[row]], row, place)
            return found
        if raw.dtype.kind == "b":
            words = ("False", "True") if self.names is not None and self._numbers is None else ("0", "1")
            pair = [self._find(word) for word in words]
            if -1 in pair:
                raise self._refuse(str(bool(raw[0])), 0, place)
            return np.where(raw, pair[1], pair[0])
        if raw.dtype.kind == "f" and np.isnan(raw).any():
            raise refuse_missing(int(np.argmax(np.isnan(raw))), place)
        return self._decode_numbers(raw, place) if raw.dtype.kind in "iuf" else raw

    def _decode_numbers(self, raw: np.ndarray, place: Place) -> np.ndarray:
        numbers = self._numbers
        if self.names is None and self.first == 0:
            return raw
        if self.names is None:
            found, wrong = (
                raw - self.first,
                ~((raw >= self.first) & (raw < self.first + self.classes) & (raw == np.floor(raw))),
            )
        elif numbers is None:
            found, wrong = raw, np.ones(len(raw), dtype=bool)
        else:
            order = np.argsort(numbers)
            found = order[np.minimum(np.searchsorted(numbers[order], raw), len(numbers) - 1)]
            wrong = numbers[found] != raw
        if wrong.any():
            row = int(np.argmax(wrong))
            raise self._refuse(str(raw[row]), row, place)
        return found

    @cached_property
    def _table(self) -> dict[str, int]:
        """The index of each name, and of each name in lower case if they are different in lower case, too."""
        names = self.names or ()
        folded = {name.lower(): index for index, name in enumerate(names)}
        return {**(folded if len(folded) == len(names) else {}), **{name: index for index, name in enumerate(names)}}

    def _find(self, text: str) -> int:
        """Return the index of a label in text, -1 if there is none."""
        text = text.strip()
        whole = str(int(float(text))) if WHOLE.fullmatch(text) else None
        if self.names is None:
            index = -1 if whole is None else int(whole) - self.first
            return index if 0 <= index < self.classes else -1
        spellings = (text, text.lower(), text if whole is None else whole)
        return next((self._table[spelling] for spelling in spellings if spelling in self._table), -1)

    def _refuse(self, found: str, row: int, place: Place) -> PredictionsError:
        if is_missing(found):
            return refuse_missing(row, place)
        is_number = NUMBER.fullmatch(found) is not None
        shown = _show(found)
        last = self.first + self.classes - 1
        if self.names is None:
            message = f"must be a whole number from {self.first} to {last}, got {shown}"
            message += unlabeled_hint(float(found)) if is_number else ""
        else:
            message = f"must be one of the classes {describe_names(self.names)}, got {shown}"
            if not self.chosen:
                message += f"; name the label of each class with {name_option('classes')}"
            elif is_number and self._numbers is None:
                message += "; classes are the labels as the file has them"
        return place.error(message, column=place.labels, row=row)


def decode_labels(raw: RawLabels, coding: LabelCoding | None, name: str, place: Place) -> np.ndarray:
    """Turn a column of labels into class indices; without a coding, into 0 and 1. Numbers are not checked."""
    if coding is not None:
        return coding.decode(raw, place)
    if not isinstance(raw, CodedText):
        return raw
    found = np.array([_ANSWERS.get(value.strip().lower(), -1) for value in raw.values], dtype=np.int8)[raw.codes]
    if (found < 0).any():
        row = int(np.argmax(found < 0))
        value = raw.values[raw.codes[row]]
        if is_missing(value):
            raise refuse_missing(row, replace(place, labels=name))
        message = f"must be 0 or 1, got {_show(value)}"
        raise place.error(message, column=name, row=row)
    return found
