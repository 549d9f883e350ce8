"""A progress bar over products of a matrix with vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(title: str, *, total: int | None, enabled: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, if enabled. Yields a function that counts products."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=Console(stderr=True), disable=not enabled)
    with bar if enabled else nullcontext():  # Rich 13 would end a disabled one with an empty line
        task = bar.add_task(title, total=total)
        yield lambda products: bar.advance(task, products)
