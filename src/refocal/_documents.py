"""Reading JSON and TOML that users give: whatever is wrong with a document, the error names its file."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Readable(Protocol):
    """An open file."""

    def read(self, size: int = -1, /) -> bytes:
        """As many bytes as there are, or as are asked for."""


class SkippedWarning(UserWarning):
    """One of many files cannot be used and is left out: the message names it and says why."""


_OPEN_ALREADY = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")  # a pipe that the shell made for this command
_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse what is no regular file before it is opened: a FIFO without a writer would block forever.

    Folders are left to `open`, whose error names them.
    """
    mode = os.stat(path).st_mode
    for is_kind, kind in _KINDS:
        if is_kind(mode):
            msg = f"{os.fspath(path)} must be a regular file, got {kind}"
            raise ValueError(msg)


def read_document(path: str | os.PathLike[str]) -> bytes:
    """The content of a small file; a pipe only where its path says that it is open already, as /dev/stdin does."""
    if not os.fspath(path).startswith(_OPEN_ALREADY):
        check_regular(path)
    return Path(path).read_bytes()


def unpack(stream: Readable, most: int, refuse: Callable[[str], Exception]) -> bytes:
    """All that a compressed stream holds, but no more than `most` bytes: a small file can unpack to any size."""
    content = stream.read(most + 1)
    if len(content) > most:
        reason = f"it unpacks to more than {most:,} bytes"
        raise refuse(reason)
    return content


def parse_json(content: bytes | str, refuse: Callable[[str], Exception]) -> Any:
    """The value of a JSON document, with None for NaN and infinities; `refuse` makes the exception from the reason."""
    return _parse(_loads, content, refuse)


def parse_toml(content: bytes | str, refuse: Callable[[str], Exception]) -> dict[str, Any]:
    """The table of a TOML document, as `parse_json`."""
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
    except ValueError as error:  # also of a number with thousands of digits
        raise refuse(str(error)) from error
