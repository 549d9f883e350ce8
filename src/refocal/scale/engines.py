"""Engines run functions of blocks or files: in this process, or on a Ray cluster.

An engine folds: it applies a function to each block of rows and merges the values in the order of the files. Only
functions and values are sent to workers and back, never rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, get_args

from refocal import _check
from refocal.scale.parts import Block, FileSource

T = TypeVar("T")
EngineName = Literal["local", "ray"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)


class ProgressUpdate(NamedTuple):
    """How far a pass over files has come.

    Attributes:
        what: What the pass does, such as "measuring".
        files: Number of files done.
        of_files: Number of files in all.
        rows: Number of rows done.
    """

    what: str
    files: int
    of_files: int
    rows: int


Progress = Callable[[ProgressUpdate], None]


class Folder(Protocol):
    """Runs passes over blocks of rows."""

    def fold(self, source: Any, function: Callable[[Block], T], merge: Callable[[T, T], T], *, what: str) -> T | None:
        """Apply a function to every block and merge the values; None if there is no block."""


class Engine(Folder, Protocol):
    """Runs passes over files."""

    def hold(self, source: FileSource) -> Any:
        """Keep the rows in memory for many passes, if there is room. Pass the result to `fold`."""

    def each(self, function: Callable[[Path], int], paths: Sequence[Path], *, what: str) -> int:
        """Apply a function that returns a number of rows to every file, and return the sum."""


def open_engine(
    engine: EngineName = "local", address: str | None = None, progress: Progress | None = None
) -> AbstractContextManager[Engine]:
    """Open an engine by its name. Leaving the context disconnects it."""
    _check.one_of(engine, "engine", ENGINES)
    tell = progress or (lambda _: None)
    if engine == "ray":
        from refocal.scale.ray_engine import open_ray

        return open_ray(address, tell)
    if address is not None:
        msg = f'address is only for engine="ray", got engine={engine!r} and address={address!r}'
        raise ValueError(msg)
    return nullcontext(LocalEngine(tell))


class LocalEngine:
    """Works in this process, with one block in memory at a time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def fold(
        self, source: FileSource, function: Callable[[Block], T], merge: Callable[[T, T], T], *, what: str
    ) -> T | None:
        """See `Engine`."""
        files = 0

        def blocks() -> Iterator[Block]:
            nonlocal files
            for file in source.files:
                yield from file.blocks(source.read)
                files += 1

        def tell(rows: int) -> None:
            self._progress(ProgressUpdate(what, files, len(source.files), rows))

        found = fold_blocks(blocks(), function, merge, tell)
        tell(found[1])
        return found[0]

    def hold(self, source: FileSource) -> FileSource:
        """Return the source itself: files are read again in each pass, so that only one block is in memory."""
        return source

    def each(self, function: Callable[[Path], int], paths: Sequence[Path], *, what: str) -> int:
        """See `Engine`."""
        rows = 0
        for number, path in enumerate(paths, start=1):
            rows += function(path)
            self._progress(ProgressUpdate(what, number, len(paths), rows))
        return rows


def fold_blocks(
    blocks: Iterable[Block],
    function: Callable[[Block], T],
    merge: Callable[[T, T], T],
    tell: Callable[[int], None] = lambda _: None,
) -> tuple[T | None, int]:
    """Apply a function to each block and merge the values.

    Returns:
        The merged value, None if there is no block, and the number of rows. `tell` is called with the number of rows
        after each block.
    """
    total: T | None = None
    rows = 0
    for block in blocks:
        value = function(block)
        total = value if total is None else merge(total, value)
        rows += len(block.labels)
        tell(rows)
    return total, rows
