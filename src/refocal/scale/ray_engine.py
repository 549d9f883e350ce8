"""The engine on Ray: each task works on a group of files, and Ray restarts a task whose worker dies.

A task returns one merged value. It is counted once, when the task has ended, no matter how often the task was started.
If a file crashes its worker every time, the error names the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from refocal._extras import how_to_install
from refocal.scale import cluster
from refocal.scale.engines import Progress, ProgressUpdate, fold_blocks
from refocal.scale.parts import Block, File, FileSource
from refocal.scale.tasks import Group, run_in_order

T = TypeVar("T")
_TASKS = 2000  # per pass: with more files, tasks get several files, so that few values are sent
_STORE_SHARE = 0.5  # the part of the cluster's object store that stored rows may take


class Result(NamedTuple):
    """The result of a task: a value, and the numbers of files and rows behind it."""

    value: Any
    files: int
    rows: int


@dataclass(frozen=True)
class StoredBlocks:
    """References to blocks in the cluster's object store, each with the files of the task that read it."""

    blocks: list[tuple[Group, Any]]


class RayEngine:
    """Runs tasks on the cluster that this process is connected to."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def fold(
        self,
        source: FileSource | StoredBlocks,
        function: Callable[[Block], T],
        merge: Callable[[T, T], T],
        *,
        what: str,
    ) -> T | None:
        """See `Engine`."""
        if isinstance(source, StoredBlocks):
            results = run_in_order(partial(_fold_stored, function=function), source.blocks)
            of_files = len(source.blocks)
        else:
            run = partial(_fold_files, read=source.read, function=function, merge=merge)
            results, of_files = run_in_order(run, _group_files(source.files)), len(source.files)
        total: T | None = None
        for value in self._track(results, what, of_files):
            if value is not None:
                total = value if total is None else merge(total, value)
        return total

    def hold(self, source: FileSource) -> FileSource | StoredBlocks:
        """Read the files into the object store, unless they are too large for it."""
        import ray

        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        room = resources.get("object_store_memory", 0.0)
        size = sum(file.path.stat().st_size for file in source.files)
        if size > _STORE_SHARE * room or cluster.uses_client():  # a client cannot stream
            return source
        run = partial(_read_blocks, read=source.read)
        with closing(run_in_order(run, _group_files(source.files), streams=True)) as streams:
            return StoredBlocks([(group, block) for group, blocks in streams for block in blocks])

    def each(self, function: Callable[[Path], int], paths: Sequence[Path], *, what: str) -> int:
        """See `Engine`."""
        results = run_in_order(
            partial(_run_files, function=function), _group_files([File(path, None) for path in paths])
        )
        return sum(self._track(results, what, len(paths)))

    def _track(self, results: Generator[tuple[Group, Result]], what: str, of_files: int) -> Iterator[Any]:
        files = rows = 0
        with closing(results):  # now, because a traceback would keep it open until the cluster is gone
            for _, result in results:
                files, rows = files + result.files, rows + result.rows
                self._progress(ProgressUpdate(what, files, of_files, rows))
                yield result.value


def _group_files(files: Sequence[File]) -> list[tuple[Group, tuple[File, ...]]]:
    """Divide files into at most `_TASKS` groups of equal size, in order."""
    calls = min(len(files), _TASKS)
    ends = [number * len(files) // calls for number in range(calls + 1)]
    groups = [tuple(files[start:end]) for start, end in pairwise(ends)]
    return [(tuple(file.path for file in group), group) for group in groups]


def _fold_files(files: Sequence[File], *, read: Any, function: Any, merge: Any) -> Result:
    total, rows = fold_blocks(_read_blocks(files, read=read), function, merge)
    return Result(total, len(files), rows)


def _fold_stored(block: Block, *, function: Any) -> Result:
    return Result(function(block), 1, len(block.labels))


def _read_blocks(files: Sequence[File], *, read: Any) -> Iterator[Block]:
    return chain.from_iterable(file.blocks(read) for file in files)


def _run_files(files: Sequence[File], *, function: Callable[[Path], int]) -> Result:
    rows = sum(function(file.path) for file in files)
    return Result(rows, len(files), rows)


@contextmanager
def open_ray(address: str | None, progress: Progress) -> Iterator[RayEngine]:
    """Open the engine on the cluster that this process is connected to, at an address, or on this machine.

    Without an address, a cluster that runs on this machine is used. If there is none, one is started, and stopped at
    the end. Leaving the context, even by an exception or Ctrl-C, disconnects, and Ray ends the running tasks.
    """
    try:
        import ray
    except ImportError as error:
        msg = f'engine="ray" needs Ray: {how_to_install("ray")}'
        raise ImportError(msg) from error
    ours = not ray.is_initialized()
    if ours:
        cluster.connect(address or os.environ.get("RAY_ADDRESS"))
    elif address not in (None, "auto", current := ray.get_runtime_context().gcs_address):
        msg = f"address must be {current}, to which this process is connected, got {address!r}"
        raise ValueError(msg)
    try:
        yield RayEngine(progress)
    finally:
        if ours:
            cluster.leave()
