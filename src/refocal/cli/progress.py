"""Progress on the terminal: what is being done, and how much of it is left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from refocal.report.words import printable

if TYPE_CHECKING:
    from refocal.scale import ProgressUpdate


class Tracker:
    """Shows one line per task.

    Attributes:
        visible: Whether there is a terminal to show it on.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self.visible = not progress.disable

    def step(self, text: str) -> None:
        """Show what is being done, if its extent is not known."""
        self._update("", text)

    def count(self, text: str, done: int, total: int | None, note: str = "") -> None:
        """Show how many parts of the one task are done."""
        self._update("", text, done, total, note)

    def count_task(self, name: str, done: int, total: int, note: str = "") -> None:
        """Show how many parts of one of several tasks are done."""
        self._update(name, name, done, total, note)

    def show_files(self, update: ProgressUpdate) -> None:
        """Show how far a pass over files is."""
        self.count(update.what, update.files, update.of_files, f"files, {update.rows:,} rows")

    def write(self, text: str) -> None:
        """Write a line above the progress, if there is a terminal."""
        if self.visible:
            self._progress.console.print(Text(printable(text)))

    def _update(self, key: str, text: str, done: int = 0, total: int | None = None, note: str = "") -> None:
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task("", total=total, note="")
        # Rich takes a total of None for no change
        self._progress.tasks[list(self._tasks).index(key)].total = total
        self._progress.update(self._tasks[key], description=printable(text), completed=done, note=note)


def find_terminal() -> Console:
    """The standard error. FORCE_COLOR asks for colors; it does not make a file a terminal."""
    return Console(stderr=True, force_terminal=sys.stderr is not None and sys.stderr.isatty())


@contextmanager
def track(*, transient: bool = True) -> Iterator[Tracker]:
    """Show progress while the block runs, if standard error is a terminal.

    Args:
        transient: Remove the lines at the end.
    """
    console = find_terminal()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        *map(_IfCounted, (BarColumn(bar_width=16), MofNCompleteColumn(), TimeRemainingColumn())),
        TextColumn("{task.fields[note]}", markup=False),
    )
    progress = Progress(*columns, console=console, transient=transient, disable=not console.is_terminal)
    with nullcontext() if progress.disable else progress:  # Rich 13 would end a disabled one with an empty line
        yield Tracker(progress)


class _IfCounted(ProgressColumn):
    """A column that is empty for a task of unknown extent."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: Task) -> RenderableType:
        """Draw the column for a task."""
        return Text() if task.total is None else self._column.render(task)
