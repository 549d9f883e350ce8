"""Where the commands print: results to the output, what is going on to the terminal."""

from __future__ import annotations

import json
import os
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from refocal.report import words


def show(options: Namespace, shown: RenderableType, content: Any) -> None:
    """Print a result: for people, or as JSON where the options say so."""
    if options.json:
        print(json.dumps(content, ensure_ascii=True, allow_nan=False))  # noqa: T201 the result itself
    else:
        Output().print(Text(words.printable(shown)) if isinstance(shown, str) else shown)


@contextmanager
def of_this_thread() -> Iterator[None]:
    """Leave the standard output to this thread: Ray's threads would tell there of workers that died."""
    output = sys.stdout
    sys.stdout = output and _OfThread(output)
    try:
        yield
    finally:
        sys.stdout = output


class _OfThread:
    """A stream for the thread that made it; to others it is the standard error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream if threading.get_ident() == self._thread else sys.stderr, name)


class Output(Console):
    """The standard output."""

    def on_broken_pipe(self) -> None:
        """The reader of the output has gone: that is no failure."""
        raise BrokenPipeError


def check_output(path: str, name: str, suffixes: tuple[str, ...], *, force: bool) -> None:
    """Refuse a name that cannot be written before any work is done."""
    if Path(path).suffix not in suffixes:
        msg = f"--{name} must end in {' or '.join(suffixes)}, got {path!r}"
        raise ValueError(msg)
    if not Path(path).parent.is_dir():
        msg = f"--{name} must be in a folder that exists, got {path!r}"
        raise FileNotFoundError(msg)
    if Path(path).is_dir():
        msg = f"--{name} must be a file, got the folder {path!r}"
        raise IsADirectoryError(msg)
    if os.path.lexists(path) and not force:
        msg = f"{path} exists: choose another name, or replace it by --force"
        raise FileExistsError(msg)


def note(text: str) -> None:
    """Tell people something beside the result."""
    sys.stderr.write(f"refocal: {words.printable(' '.join(text.split()))}\n")


def terminal() -> Console:
    """The standard error, for progress: FORCE_COLOR asks for colors, it does not make a terminal of a file."""
    return Console(stderr=True, force_terminal=sys.stderr is not None and sys.stderr.isatty())


@contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """Says on a terminal what is being done."""
    console = terminal()
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("starting") as status:
        yield lambda text: status.update(Text(words.printable(text)))
