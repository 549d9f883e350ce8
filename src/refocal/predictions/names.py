"""Names of columns: patterns that match them, and how messages list them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

from refocal.predictions.errors import Place


def name_option(option: str) -> str:
    """Name the option that settles a question, such as "label" or "task multilabel", for error messages."""
    name, _, value = option.partition(" ")
    return f"--{option}, in Python ColumnChoice({name}={repr(value) if value else '...'})"


def describe_names(names: Sequence[str]) -> str:
    """List names of columns, at most ten; those with spaces at an end in quotes, so that they can be seen."""
    shown = ["".join(c if c.isprintable() else "?" for c in name[:100]) or "(no name)" for name in names[:10]]
    listed = [name if name == name.strip() else f"'{name}'" for name in shown]
    return ", ".join([*listed, f"and {len(names) - 10} more"] if len(names) > 10 else listed)


def find_names(
    patterns: Iterable[str], names: Sequence[str], option: str, place: Place, *, every: Sequence[str]
) -> list[str]:
    """Find the columns that names or patterns mean, each once.

    Args:
        patterns: The names or patterns.
        names: The columns that are free.
        option: The option that holds the patterns, for errors.
        place: The file, for errors.
        every: All columns of the file, for errors.
    """
    found = (name for pattern in patterns for name in _match_names(pattern, names, option, place, every))
    return list(dict.fromkeys(found))


def _match_names(pattern: str, names: Sequence[str], option: str, place: Place, every: Sequence[str]) -> list[str]:
    """Find the columns that a name or pattern means."""
    if found := _match(pattern, names):
        return found
    if _match(pattern, every):
        message = f"column {pattern!r}, which {option} names, has another use already: it holds labels or is ignored"
        raise place.error(message)
    message = f"there is no column {pattern!r}, which {option} names; the columns are {describe_names(every)}"
    raise place.error(message)


def _match(pattern: str, names: Sequence[str]) -> list[str]:
    """A name that exists is no pattern."""
    return [pattern] if pattern in names else [name for name in names if fnmatch.fnmatchcase(name, pattern)]
