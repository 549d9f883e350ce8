"""The command `refocal`: Ctrl-C ends it quietly, also while its modules are still being imported, and if repeated."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType

_INTERRUPTED = 130
_PATIENCE = 5.0  # seconds, after which another Ctrl-C ends the process at once


def main() -> int:
    """Run the command line; returns the exit status."""
    _count_interrupts()
    try:
        from refocal.cli import main as command

        status = command()
    except KeyboardInterrupt:
        sys.stderr.write("refocal: interrupted\n")
        status = _INTERRUPTED
    if getattr(sys.modules.get("refocal.scale.cluster"), "abandoned", False):
        os._exit(status)  # threads that wait for a cluster would crash the process on its way out
    return status


def _count_interrupts() -> None:
    """Let the first Ctrl-C interrupt the work, and the next ones leave alone what is being cleaned up after it."""
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored in the background
        return
    first: float | None = None

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            raise KeyboardInterrupt
        if time.monotonic() - first > _PATIENCE:
            os.write(2, b"refocal: interrupted\n")
            os._exit(_INTERRUPTED)

    signal.signal(signal.SIGINT, handle)
