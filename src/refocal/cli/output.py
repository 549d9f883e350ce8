"""Where the commands print: results to the output, what is going on to the terminal."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from refocal.report import words


def show(options: Namespace, shown: RenderableType, content: Any) -> None:
    """Print a result: for people, or as JSON where the options say so."""
    if options.json:
        print(json.dumps(content, ensure_ascii=True, allow_nan=False))  # noqa: T201 the result itself
    else:
        Output().print(Text(words.printable(shown)) if isinstance(shown, str) else shown)


class Output(Console):
    """The standard output."""

    def on_broken_pipe(self) -> None:
        """The reader of the output has gone: that is no failure."""
        raise BrokenPipeError


def terminal() -> Console:
    """The standard error, for progress."""
    return Console(stderr=True)


@contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """Says on a terminal what is being done."""
    console = terminal()
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("starting") as status:
        yield lambda text: status.update(Text(words.printable(text)))
