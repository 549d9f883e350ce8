"""What a kind of computation is: parameters in, numbers out, and a drawing of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Numbers:
    """What a computation found.

    Attributes:
        values: Single numbers by name; published numbers are compared with these.
        curves: What the figure shows beyond them: lists of numbers, or records of such lists.
    """

    values: dict[str, float]
    curves: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """What a computation may use besides its parameters.

    Attributes:
        data: Folder of data sets, if one was given.
        progress: Takes a few words on what is being done.
    """

    data: Path | None = None
    progress: Callable[[str], None] = lambda _: None


class Kind(NamedTuple):
    """A kind of figure or table; a spec names it and gives its parameters.

    Attributes:
        parameters: A frozen dataclass; its fields and their types are what a spec may say.
        compute: From parameters to numbers.
        draw: Draws the numbers on an empty figure.
        needs: Packages beyond the base that `compute` needs.
    """

    parameters: type
    compute: Callable[[Any, Context], Numbers]
    draw: Callable[[Figure, Any, Numbers], None]
    needs: tuple[str, ...] = ()
