"""The interface of a computation: parameters in, numbers out, and a function that draws them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_ENTRY = "no entry"  # shown instead of a number if the zoo lacks the networks


@dataclass(frozen=True)
class Numbers:
    """The result of a computation.

    Attributes:
        values: Single numbers by name; published numbers are compared with these.
        curves: The data of the figure: lists of numbers, or records of such lists.
        table: Rows of text, the header first; empty if there is no table.
        absent: Names of values that need networks the zoo does not have.
    """

    values: dict[str, float]
    curves: dict[str, Any] = field(default_factory=dict)
    table: tuple[tuple[str, ...], ...] = ()
    absent: tuple[str, ...] = ()


@dataclass(frozen=True)
class Context:
    """What a computation may use in addition to its parameters.

    Attributes:
        data: Folder of data sets; None if not given.
        progress: Called with a few words about the current step.
        zoo: Folder of the logits of trained networks; None if not given.
    """

    data: Path | None = None
    progress: Callable[[str], None] = lambda _: None
    zoo: Path | None = None


def _nothing(_: Any, __: Context) -> dict[str, str]:
    return {}


class Kind(NamedTuple):
    """A kind of figure or table. A spec names a kind and gives its parameters.

    Attributes:
        parameters: A frozen dataclass; its fields and their types define the keys of the spec.
        compute: Computes the numbers.
        draw: Draws the numbers on an empty figure.
        needs: Optional packages that `compute` needs.
        made_from: Names and digests of the input files. If they change, a stored result is outdated.
    """

    parameters: type
    compute: Callable[[Any, Context], Numbers]
    draw: Callable[[Figure, Any, Numbers], None]
    needs: tuple[str, ...] = ()
    made_from: Callable[[Any, Context], dict[str, str]] = _nothing
