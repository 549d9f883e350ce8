"""Where the work is done: in this process, or on a Ray cluster. Both run the same functions of blocks and files.

An engine folds: a function of one block gives a value, values are merged in the order of the files. What travels is
functions and values, never rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from refocal import _check
from refocal.scale.parts import Block, FileSource

T = TypeVar("T")
ENGINES = ("local", "ray")


class ProgressUpdate(NamedTuple):
    """How far a pass over the files has come."""

    what: str
    files: int
    of_files: int
    rows: int


Progress = Callable[[ProgressUpdate], None]


class Engine(Protocol):
    """What runs passes over files."""

    def fold(self, source: Any, function: Callable[[Block], T], merge: Callable[[T, T], T], *, what: str) -> T | None:
        """The merged values of a function of every block; None where there is no block."""

    def hold(self, source: FileSource) -> Any:
        """The source, read once and kept in memory for many passes where that is possible; `fold` takes it."""

    def each(self, function: Callable[[Path], int], paths: Sequence[Path], *, what: str) -> int:
        """The sum of a function of every file, which gives a number of rows."""


def open_engine(
    engine: str = "local", address: str | None = None, progress: Progress | None = None
) -> AbstractContextManager[Engine]:
    """An engine by its name."""
    _check.one_of(engine, "engine", ENGINES)
    tell = progress or (lambda _: None)
    if engine == "ray":
        from refocal.scale.ray_engine import open_ray

        return open_ray(address, tell)
    if address is not None:
        msg = f'address belongs to engine="ray", got engine={engine!r} and address={address!r}'
        raise ValueError(msg)
    return nullcontext(LocalEngine(tell))


class LocalEngine:
    """One process, one block in memory at a time."""

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
        """The files are read again in each pass: memory stays that of a block."""
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
    """The merged values of a function of blocks, and how many rows they have, of which `tell` hears on the way."""
    total: T | None = None
    rows = 0
    for block in blocks:
        value = function(block)
        total = value if total is None else merge(total, value)
        rows += len(block.labels)
        tell(rows)
    return total, rows
