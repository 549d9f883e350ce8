"""Start a program so that Ctrl-C ends it quietly, even during imports and when pressed repeatedly."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # the exit status
_PATIENCE = 5.0  # seconds, after which another Ctrl-C ends the process at once
_SHOW_CURSOR = "\x1b[?25h"
_handler: Callable[[int, FrameType | None], None] | None = None  # of Ctrl-C, if this process runs a program


def start(name: str, package: str) -> int:
    """Import the package of a program and run its `main`.

    Args:
        name: The name of the program, for messages.
        package: The package to import, such as "refocal.cli".

    Returns:
        The exit status.
    """
    _count_interrupts(name)
    try:
        status: int = importlib.import_module(package).main()
    except KeyboardInterrupt:
        sys.stderr.write(f"{name}: interrupted\n")
        status = INTERRUPTED
    if getattr(sys.modules.get("refocal.scale.cluster"), "abandoned", False):
        os._exit(status)  # threads that wait for a cluster would crash the process while it ends
    return status


@contextmanager
def killed_by_interrupts() -> Iterator[None]:
    """Let Ctrl-C end the program at once, during calls that wait in C++ and hold the interpreter.

    There, a handler in Python would not run before the call returns. Programs of others keep their handlers.
    """
    is_ours = _handler is not None and signal.getsignal(signal.SIGINT) is _handler
    if not is_ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        sys.stderr.write(_SHOW_CURSOR)  # a progress display hides it, and would not show it again
        sys.stderr.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _handler)


def _count_interrupts(name: str) -> None:
    """Let the first Ctrl-C interrupt the work, and ignore further ones during the cleanup."""
    global _handler  # noqa: PLW0603 a state of the whole process
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # background jobs ignore it
        return
    first: float | None = None

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            raise KeyboardInterrupt
        if time.monotonic() - first > _PATIENCE:
            os.write(2, f"{name}: interrupted\n".encode())
            os._exit(INTERRUPTED)

    _handler = handle
    signal.signal(signal.SIGINT, handle)
