"""What the names of a file's columns or arrays say: the kind of the scores, and where everything stands."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from refocal.predictions.errors import Place
from refocal.predictions.values import KINDS

_NUMBERED = re.compile(r"(logit|prob)_(0|[1-9][0-9]{0,6})")  # digits bounded: a number of any length is never made


@dataclass(frozen=True)
class Header:
    """The kind of the scores, and the columns that hold them: one for all classes, or one a class in order."""

    kind: str
    columns: tuple[str, ...]
    numbered: bool


def arrays(names: Sequence[str], place: Place) -> Header:
    """The header of an npz file."""
    _check_names(names, [*KINDS, "labels", "split", "weights", "class_names"], place, "array")
    return Header(*_one_kind([kind for kind in KINDS if kind in names], names, place, "an array"), numbered=False)


def table(names: Sequence[str], place: Place) -> Header:
    """The header of a parquet or csv file."""
    numbered = [name for name in names if _NUMBERED.fullmatch(name)]
    named = [name for name in names if not _NUMBERED.fullmatch(name)]
    known = [*KINDS, "logit_0", "prob_0", "label", "split", "weight"]
    _check_names(named, known, place, "column")
    _check_twice(numbered, place, "column")
    kinds = [kind for kind in KINDS if kind in named or any(name.startswith(kind[:-1] + "_") for name in numbered)]
    kind, whole = _one_kind(kinds, names, place, "columns logit_0 ... or prob_0 ..., or one column")
    if not numbered:
        return Header(kind, whole, numbered=False)
    if kind in named:
        message = f"scores must stand in one place, got the columns {kind} and {numbered[0]}"
        raise place.error(message)
    columns = sorted(numbered, key=lambda name: int(name.rpartition("_")[2]))
    for index, name in enumerate(columns):
        if name != f"{kind[:-1]}_{index}":
            message = f"columns must be numbered from 0 without gaps, {kind[:-1]}_{index} is missing before {name}"
            raise place.error(message)
    return Header(kind, tuple(columns), numbered=True)


def _one_kind(kinds: list[str], names: Sequence[str], place: Place, what: str) -> tuple[str, tuple[str, ...]]:
    if len(kinds) > 1:
        message = "scores must be logits or probs, got both"
        raise place.error(message)
    if not kinds:
        found = ", ".join(repr(name) for name in names[:10]) or "nothing"
        message = f"scores are missing: there must be {what} 'logits' or 'probs', got {found}"
        raise place.error(message)
    return kinds[0], (kinds[0],)


def _check_names(names: Sequence[str], known: list[str], place: Place, what: str) -> None:
    _check_twice(names, place, what)
    for name in names:
        if name not in known:
            bare = name[:100].strip().lower()
            numbered = what == "column" and _NUMBERED.fullmatch(bare)
            close = [bare] if numbered else difflib.get_close_matches(bare, known, n=1)
            hint = f", did you mean {close[0]!r}?" if close else ""
            allowed = ", ".join(known)
            message = f"unknown {what} {name[:100]!r}{hint} (known: {allowed})"
            raise place.error(message)


def _check_twice(names: Sequence[str], place: Place, what: str) -> None:
    if len(set(names)) < len(names):
        seen: set[str] = set()
        for name in names:
            if name in seen:
                message = f"{what} {name[:100]!r} stands there twice"
                raise place.error(message)
            seen.add(name)
