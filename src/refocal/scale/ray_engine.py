"""The engine on Ray: Ray Data spreads the files, runs the tasks and runs them again where a worker dies.

A task is a group of files, or rows of them that the object store holds, and gives one merged value. A value counts
when its task has ended, once, however often a worker had to start it.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from refocal.scale.engines import Done, Progress, folded
from refocal.scale.parts import Block, Source

T = TypeVar("T")
_TASKS = 2000  # of a pass; more files than that share tasks, so that few values travel
_STORE_SHARE = 0.5  # of the cluster's object store that held rows may take
_SECONDS_TO_ANSWER = 5.0
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # and no settings
_HTTP2_SETTINGS = 4  # the type of the frame that every server answers with (RFC 9113, section 3.4)


@dataclass(frozen=True)
class Held:
    """Rows in the object store of the cluster."""

    rows: Any
    parts: int


class Ray:
    """Tasks on a cluster that this process is connected to."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def fold(
        self, source: Source | Held, function: Callable[[Block], T], merge: Callable[[T, T], T], *, what: str
    ) -> T | None:
        """See `Engine`."""
        total: T | None = None
        if isinstance(source, Held):
            run, data, of_files = partial(_fold_held, function=function), source.rows, source.parts
        else:
            run = partial(_fold_files, read=source.read, function=function, merge=merge)
            data, of_files = _files(source.paths), len(source.paths)
        for value in self._values(data, run, what, of_files):
            if value is not None:
                total = value if total is None else merge(total, value)
        return total

    def hold(self, source: Source) -> Source | Held:
        """Reads the files into the object store, unless they are too large for it."""
        import ray

        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        room = resources.get("object_store_memory", 0.0)
        if sum(path.stat().st_size for path in source.paths) > _STORE_SHARE * room:
            return source
        with original_errors():
            held = _tasks(_files(source.paths), partial(_rows_of_files, read=source.read)).materialize()
        return Held(held, held.num_blocks())

    def each(self, function: Callable[[Path], int], paths: Sequence[Path], *, what: str) -> int:
        """See `Engine`."""
        return sum(self._values(_files(paths), partial(_each_file, function=function), what, len(paths)))

    def _values(self, data: Any, run: Callable[..., Any], what: str, of_files: int) -> Iterator[Any]:
        files = rows = 0
        with original_errors():
            for row in _tasks(data, run).iter_rows():
                value, more_files, more_rows = row["result"]
                files, rows = files + more_files, rows + more_rows
                self._progress(Done(what, files, of_files, rows))
                yield value


def _files(paths: Sequence[Path]) -> Any:
    import ray.data

    return ray.data.from_items([str(path) for path in paths], override_num_blocks=min(len(paths), _TASKS))


def _tasks(data: Any, run: Callable[..., Any]) -> Any:
    return data.map_batches(run, batch_size=None)


def _fold_files(batch: dict[str, np.ndarray], *, read: Any, function: Any, merge: Any) -> Iterator[dict[str, Any]]:
    blocks = chain.from_iterable(read(Path(path)) for path in batch["item"])
    with _carrying_errors():
        total, rows = folded(blocks, function, merge)
        yield _boxed(total, len(batch["item"]), rows)


def _fold_held(batch: dict[str, np.ndarray], *, function: Any) -> Iterator[dict[str, Any]]:
    block = Block(batch["scores"], batch["labels"], batch["weights"])
    with _carrying_errors():
        yield _boxed(function(block), 1, len(block.labels))


def _rows_of_files(batch: dict[str, np.ndarray], *, read: Any) -> Iterator[dict[str, Any]]:
    with _carrying_errors():
        for block in chain.from_iterable(read(Path(path)) for path in batch["item"]):
            weights = np.ones(len(block.labels)) if block.weights is None else block.weights
            yield {"scores": block.scores, "labels": block.labels, "weights": weights}


def _each_file(batch: dict[str, np.ndarray], *, function: Callable[[Path], int]) -> Iterator[dict[str, Any]]:
    with _carrying_errors():
        for path in batch["item"]:
            rows = function(Path(path))
            yield _boxed(rows, 1, rows)


class _CarriedError(Exception):
    """Carries what a task raised: Ray adds words to the message of an exception, and leaves attributes alone."""

    original: Exception


@contextmanager
def _carrying_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        carrier = _CarriedError()
        carrier.original = error
        raise carrier from None


def _boxed(value: Any, files: int, rows: int) -> dict[str, Any]:
    """A row of one Python object."""
    box = np.empty(1, dtype=object)
    box[0] = (value, files, rows)
    return {"result": box}


@contextmanager
def connected(address: str | None, progress: Progress) -> Iterator[Ray]:
    """The engine on a cluster: the one this process is connected to, that at an address, or one of this machine.

    Without an address a cluster that runs on this machine is used, else one is started, and stopped at the end.
    Leaving, also by an exception or Ctrl-C, disconnects, and Ray ends what was still running for this process.
    """
    try:
        import ray
        from ray.data import DataContext
    except ImportError as error:
        msg = "engine=\"ray\" needs Ray: pip install 'refocal[ray]'"
        raise ImportError(msg) from error
    ours = not ray.is_initialized()
    if ours:
        _connect(address or os.environ.get("RAY_ADDRESS"))
    elif address not in (None, "auto", ray.get_runtime_context().gcs_address):
        msg = f"this process is connected to {ray.get_runtime_context().gcs_address}, got address={address!r}"
        raise ValueError(msg)
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # what goes wrong is raised
    context = DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = True
    context.op_resource_reservation_enabled = False  # for operations side by side: with one it leaves CPUs idle
    try:
        with DataContext.current(context):
            yield Ray(progress)
    finally:
        logger.setLevel(level)
        if ours:
            ray.shutdown()


def _connect(address: str | None) -> None:
    import ray

    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address not in (None, "auto", "local"):
        _knock(address)
    try:
        ray.init(address=address or "auto", **quiet)
    except ConnectionError as error:
        if address is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(address="local", include_dashboard=False, **quiet)
            return
        msg = f"the Ray cluster at {address} cannot be reached: {error}"
        raise ConnectionError(msg) from error


def _knock(address: str) -> None:
    """Refuse an address where nothing listens, or something that is not Ray, which speaks HTTP/2.

    Ray itself would wait for minutes.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        msg = f"address must be 'auto', 'local', host:port or ray://host:port, got {address!r}"
        raise ValueError(msg)
    try:
        with socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER) as line:
            line.sendall(_HTTP2_GREETING)
            answer = line.recv(9, socket.MSG_WAITALL)
    except OSError as error:
        msg = f"the Ray cluster at {address} cannot be reached: {error}"
        raise ConnectionError(msg) from error
    encrypted = os.environ.get("RAY_USE_TLS") == "1"  # then it is another greeting that Ray understands
    if not encrypted and (len(answer) < 9 or answer[3] != _HTTP2_SETTINGS):
        msg = f"the Ray cluster at {address} cannot be reached: something else listens there"
        raise ConnectionError(msg)


@contextmanager
def original_errors() -> Iterator[None]:
    """Raise what a worker raised, as a local run would, and not what Ray wraps it in."""
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, _CarriedError):
            raise cause.original from None
        if isinstance(cause, Exception) and not isinstance(cause, RayError):
            raise cause from None
        msg = f"the Ray cluster failed: {error}"
        raise RuntimeError(msg) from error
