"""What a kind of computation is: parameters in, numbers out, and a drawing of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_ENTRY = "no entry"  # in place of a number that needs networks which are not there


@dataclass(frozen=True)
class Numbers:
    """What a computation found.

    Attributes:
        values: Single numbers by name; published numbers are compared with these.
        curves: What the figure shows beyond them: lists of numbers, or records of such lists.
        table: Rows of words, the first of them the head; no rows for a figure without a table.
        absent: Names of values that need networks which are not there.
    """

    values: dict[str, float]
    curves: dict[str, Any] = field(default_factory=dict)
    table: tuple[tuple[str, ...], ...] = ()
    absent: tuple[str, ...] = ()


@dataclass(frozen=True)
class Context:
    """What a computation may use besides its parameters.

    Attributes:
        data: Folder of data sets, if one was given.
        progress: Takes a few words on what is being done.
        zoo: Folder of trained networks' logits, if one was given.
    """

    data: Path | None = None
    progress: Callable[[str], None] = lambda _: None
    zoo: Path | None = None


def _nothing(_: Any, __: Context) -> dict[str, str]:
    return {}


class Kind(NamedTuple):
    """A kind of figure or table; a spec names it and gives its parameters.

    Attributes:
        parameters: A frozen dataclass; its fields and their types are what a spec may say.
        compute: From parameters to numbers.
        draw: Draws the numbers on an empty figure.
        needs: Packages beyond the base that `compute` needs.
        made_from: Names and digests of the files beside the spec that decide the numbers; a result is out of date when
            they change.
    """

    parameters: type
    compute: Callable[[Any, Context], Numbers]
    draw: Callable[[Figure, Any, Numbers], None]
    needs: tuple[str, ...] = ()
    made_from: Callable[[Any, Context], dict[str, str]] = _nothing
