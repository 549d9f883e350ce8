"""Read JSON and TOML files of users; if a document is invalid, the error names its file."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Readable(Protocol):
    """A file that is open for reading."""

    def read(self, size: int = -1, /) -> bytes:
        """Read at most `size` bytes, or all of them."""


class SkippedWarning(UserWarning):
    """One of many files is invalid and was skipped; the message gives its name and the reason."""


_OPEN_ALREADY = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")  # pipes that a shell opened for this command
_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_regular(path: str | os.PathLike[str]) -> None:
    """Reject a path that is not a regular file before it is opened: a FIFO without a writer would block forever.

    Folders are not rejected here; `open` raises an error that names them.
    """
    mode = os.stat(path).st_mode
    for is_kind, kind in _KINDS:
        if is_kind(mode):
            msg = f"{os.fspath(path)} must be a regular file, got {kind}"
            raise ValueError(msg)


def read_document(path: str | os.PathLike[str]) -> bytes:
    """Read a small file. Pipes are allowed only if they are already open, such as /dev/stdin."""
    if not os.fspath(path).startswith(_OPEN_ALREADY):
        check_regular(path)
    return Path(path).read_bytes()


def unpack(stream: Readable, most: int, refuse: Callable[[str], Exception]) -> bytes:
    """Read a compressed stream of at most `most` bytes; a small file can unpack to any size."""
    content = stream.read(most + 1)
    if len(content) > most:
        reason = f"it unpacks to more than {most:,} bytes"
        raise refuse(reason)
    return content


def parse_json(content: bytes | str, refuse: Callable[[str], Exception]) -> Any:
    """Parse a JSON document, with None for NaN and infinities; `refuse` makes the exception from the reason."""
    return _parse(_loads, content, refuse)


def parse_toml(content: bytes | str, refuse: Callable[[str], Exception]) -> dict[str, Any]:
    """Parse a TOML document; `refuse` makes the exception from the reason."""
    table: dict[str, Any] = _parse(tomllib.loads, content, refuse)
    return table


def _loads(text: str) -> Any:
    return json.loads(text, parse_constant=lambda _: None)


def _parse(parse: Callable[[str], Any], content: bytes | str, refuse: Callable[[str], Exception]) -> Any:
    try:
        return parse(content.decode() if isinstance(content, bytes) else content)
    except RecursionError as error:
        reason = "it is nested too deeply"
        raise refuse(reason) from error
    except ValueError as error:  # also raised for a number with thousands of digits
        raise refuse(str(error)) from error
