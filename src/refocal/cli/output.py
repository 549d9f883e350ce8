"""What the commands print, and the names of the files that they write."""

from __future__ import annotations

import json
import os
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from refocal.report import words

SUFFIXES = {
    "save": (".json",),
    "out": (".npz", ".parquet", ".csv"),
    "report": (".html", ".json"),
    "onnx": (".onnx",),
}


class Output(Console):
    """The standard output."""

    def on_broken_pipe(self) -> None:
        """Let the program end quietly when the reader of its output has gone."""
        raise BrokenPipeError


def show(options: Namespace, text: RenderableType, content: Any) -> None:
    """Print a result: for people, or as JSON if the options say so."""
    if options.json:
        print(json.dumps(content, ensure_ascii=True, allow_nan=False))  # noqa: T201 the result itself
    else:
        Output().print(Text(words.printable(text)) if isinstance(text, str) else text)


def show_line(text: str) -> None:
    """Print a line for people, without breaking it: it may be copied."""
    Output().print(Text(words.printable(text)), soft_wrap=True)


def note(text: str) -> None:
    """Tell people something on standard error that is not part of the result."""
    sys.stderr.write(f"refocal: {words.printable(' '.join(text.split()))}\n")


def check_outputs(
    options: Namespace, inputs: Sequence[str | None], *, allowed: Mapping[str, tuple[str, ...]] = SUFFIXES
) -> None:
    """Reject, before any work, names of files that cannot be written; `allowed` are the endings of each option."""
    taken = {Path(file).resolve() for file in inputs if file}
    for name, suffixes in allowed.items():
        path = getattr(options, name, None)
        if path is None:
            continue
        if Path(path).resolve() in taken:
            msg = f"--{name} must not name another file of this command, got {path!r}"
            raise ValueError(msg)
        taken.add(Path(path).resolve())
        check_output(path, name, suffixes, force=options.force)


def check_output(path: str, name: str, suffixes: tuple[str, ...], *, force: bool) -> None:
    """Reject, before any work, the name of a file that cannot be written.

    Args:
        path: The file.
        name: The option that names it, without its dashes.
        suffixes: How it may end.
        force: Whether it may exist.
    """
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
        msg = f"{path} exists: choose another name, or overwrite it with --force"
        raise FileExistsError(msg)


@contextmanager
def reserve_stdout() -> Iterator[None]:
    """Reserve standard output for this thread: Ray's threads report workers that died there."""
    output = sys.stdout
    sys.stdout = output and _ThreadStream(output)
    try:
        yield
    finally:
        sys.stdout = output


class _ThreadStream:
    """A stream for the thread that made it; standard error for all others."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream if threading.get_ident() == self._thread else sys.stderr, name)
