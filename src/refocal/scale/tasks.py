"""Tasks on Ray. Every wait checks that the cluster is alive, and the number of retries is limited."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from refocal.scale.cluster import RETRIES, Watch

Group = tuple[Path, ...]
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_TO_END = 10.0  # for canceled tasks


class WorkerDiedError(RuntimeError):
    """A task crashed its worker every time it was started."""


def run_in_order(
    run: Callable[[Any], Any], calls: Sequence[tuple[Group, Any]], *, streams: bool = False
) -> Generator[tuple[Group, Any]]:
    """Run a function in tasks, and yield files and results in the order of the calls.

    Closing the generator ends the tasks that are still running. If a task with several files crashes its worker, its
    files are done again one by one, so that the error names the file.

    Args:
        run: The function to run.
        calls: For each call, its files and the argument of the function. A tuple as argument has one item per file.
        streams: Whether `run` is a generator. Its result is then a list of references to the values that it yields,
            which stay in the object store.
    """
    import ray

    task = ray.remote(_stream if streams else _call).options(num_cpus=1, max_retries=RETRIES)
    shared = ray.put(run)
    waiting = deque((group, argument, task.remote(shared, argument)) for group, argument in calls)
    watch = Watch()
    try:
        while waiting:
            group, argument, handle = waiting[0]
            try:
                with original_errors(describe_files(group)):
                    result = _collect(handle, watch) if streams else _await(handle, watch)
            except WorkerDiedError:
                if len(group) == 1 or not isinstance(argument, tuple):
                    raise
                alone = [((path,), (file,)) for path, file in zip(group, argument, strict=True)]
                yield from run_in_order(run, alone, streams=streams)
            else:
                yield group, result
            waiting.popleft()
    finally:
        end([handle for _, _, handle in waiting])


def end(handles: Sequence[Any]) -> None:
    """End tasks, and wait until they have ended, because a running task could still complete a file.

    The wait is short, because a stopped cluster does not answer.
    """
    import ray

    for handle in handles:
        ray.cancel(handle, force=True)
    references = [handle.completed() if hasattr(handle, "completed") else handle for handle in handles]
    wait([reference.future() for reference in references], timeout=_SECONDS_TO_END)


def first_done(futures: Sequence[Future[Any]], watch: Watch) -> set[Future[Any]]:
    """Wait until at least one future is done, and return those that are. Raises if the cluster has stopped."""
    while not (done := wait(futures, timeout=_SECONDS_BETWEEN_LOOKS, return_when=FIRST_COMPLETED).done):
        watch.check()
    return done


@contextmanager
def original_errors(what: str) -> Iterator[None]:
    """Raise the original error of a worker instead of Ray's wrapper. `what` says what the worker was working on."""
    from ray.exceptions import OutOfMemoryError, RayError, WorkerCrashedError

    try:
        yield
    except (WorkerCrashedError, OutOfMemoryError) as error:
        reason = str(error).partition("\n")[0]
        msg = f"a worker died {RETRIES + 1} times while it worked on {what}: {reason}"
        raise WorkerDiedError(msg) from error
    except RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, Exception) and not isinstance(cause, RayError):
            raise cause from None
        msg = f"the Ray cluster failed: {error}"
        raise RuntimeError(msg) from error


def describe_files(group: Group) -> str:
    """Describe files in an error message."""
    return str(group[0]) if len(group) == 1 else f"one of {len(group)} files from {group[0]} to {group[-1]}"


def _await(reference: Any, watch: Watch) -> Any:
    """Wait for the value of a reference. `ray.get` would ignore Ctrl-C while the cluster is stopped."""
    (done,) = first_done([reference.future()], watch)
    return done.result()


def _collect(stream: Any, watch: Watch) -> list[Any]:
    """Wait for a stream to end. Its last value is an exception to raise, or None."""
    _await(stream.completed(), watch)
    *references, last = stream
    error = _await(last, watch)
    if error is not None:
        raise error
    return references


def _call(run: Callable[[Any], Any], argument: Any) -> Any:
    return run(argument)


def _stream(run: Callable[[Any], Iterator[Any]], argument: Any) -> Iterator[Any]:
    try:
        for item in run(argument):  # noqa: UP028 Ray sends values, which `yield from` would pass on
            yield item
    except Exception as error:
        yield error
    else:
        yield None
