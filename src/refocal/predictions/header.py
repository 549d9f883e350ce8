"""The header of a file: from the names of its columns or arrays to the scores and the columns that hold them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from refocal._check import INPUTS, Input
from refocal.predictions.errors import Place

_NUMBERED = re.compile(r"(logit|prob)_(0|[1-9][0-9]{0,6})")  # at most 7 digits: a name cannot ask for a huge number


@dataclass(frozen=True)
class Header:
    """Whether scores are logits or probs, and their columns: one for all classes, or one per class in order."""

    input: Input
    columns: tuple[str, ...]
    numbered: bool


def parse_array_names(names: Sequence[str], place: Place) -> Header:
    """Parse the header of an npz file."""
    _check_names(names, [*INPUTS, "labels", "split", "weights", "class_names"], place, "array")
    input = _choose_input([input for input in INPUTS if input in names], names, place, "an array")
    return Header(input, (input,), numbered=False)


def parse_column_names(names: Sequence[str], place: Place) -> Header:
    """Parse the header of a parquet or csv file."""
    numbered = [name for name in names if _NUMBERED.fullmatch(name)]
    named = [name for name in names if not _NUMBERED.fullmatch(name)]
    known = [*INPUTS, "logit_0", "prob_0", "label", "split", "weight"]
    _check_names(named, known, place, "column")
    _check_twice(numbered, place, "column")
    inputs = [
        input for input in INPUTS if input in named or any(name.startswith(input[:-1] + "_") for name in numbered)
    ]
    input = _choose_input(inputs, names, place, "columns logit_0 ... or prob_0 ..., or one column")
    if not numbered:
        return Header(input, (input,), numbered=False)
    if input in named:
        message = f"scores must be in one place, got columns {input} and {numbered[0]}"
        raise place.error(message)
    columns = sorted(numbered, key=lambda name: int(name.rpartition("_")[2]))
    for index, name in enumerate(columns):
        if name != f"{input[:-1]}_{index}":
            message = f"columns must be numbered from 0 without gaps, but {input[:-1]}_{index} is missing before {name}"
            raise place.error(message)
    return Header(input, tuple(columns), numbered=True)


def _choose_input(inputs: list[Input], names: Sequence[str], place: Place, what: str) -> Input:
    if len(inputs) > 1:
        message = "scores must be logits or probs, got both"
        raise place.error(message)
    if not inputs:
        found = ", ".join(repr(name) for name in names[:10]) or "nothing"
        message = f"scores are missing: the file must have {what} 'logits' or 'probs', got {found}"
        raise place.error(message)
    return inputs[0]


def _check_names(names: Sequence[str], known: list[str], place: Place, what: str) -> None:
    _check_twice(names, place, what)
    for name in names:
        if name not in known:
            bare = name[:100].strip().lower()
            numbered = what == "column" and _NUMBERED.fullmatch(bare)
            close = [bare] if numbered else difflib.get_close_matches(bare, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            allowed = ", ".join(known)
            message = f"unknown {what} {name[:100]!r}{hint} (known: {allowed})"
            raise place.error(message)


def _check_twice(names: Sequence[str], place: Place, what: str) -> None:
    if len(set(names)) < len(names):
        seen: set[str] = set()
        for name in names:
            if name in seen:
                message = f"{what} {name[:100]!r} appears twice"
                raise place.error(message)
            seen.add(name)
