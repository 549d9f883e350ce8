"""Run a parsed command: exit status, errors in one line, output in any encoding."""

from __future__ import annotations

import os
import sys
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from refocal._documents import SkippedWarning
from refocal.cli.encoding import accept_any_encoding
from refocal.report.words import printable

INTERRUPTED = 130


def run(parser: ArgumentParser, arguments: Sequence[str] | None = None) -> int:
    """Run one command of a parser; returns the exit status: 0, 1 for input that was refused, 130 after Ctrl-C.

    Wrong usage ends the process with 2, as argparse does.
    """
    accept_any_encoding()
    if not os.environ.get("COLUMNS", "").strip("0 "):  # 0 means that it is not known, but Rich would print nothing
        os.environ.pop("COLUMNS", None)
    try:
        options = parser.parse_args(arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of overflow: what comes of it is checked
            warnings.simplefilter("ignore", FutureWarning)  # of libraries, to those who program with them
            warnings.simplefilter("always", SkippedWarning)
            warnings.showwarning = lambda message, *_, **__: _say(parser.prog, " ".join(str(message).split()))
            with _output(options):
                options.run(options)
        _flush()
    except KeyboardInterrupt:
        _say(parser.prog, "interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has gone
        return 0
    except (ValueError, TypeError, ArithmeticError, OSError, ImportError, RuntimeError, MemoryError) as error:
        reason = " ".join(_told(error).split()) or type(error).__name__
        _say(parser.prog, reason)
        return 1
    finally:
        try:
            _flush()
        except OSError:  # Python would try once more when it ends, and complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _say(program: str, message: str) -> None:
    sys.stderr.write(f"{program}: {printable(message)}\n")


def _output(options: Namespace) -> AbstractContextManager[None]:
    if getattr(options, "engine", None) != "ray":
        return nullcontext()
    from refocal.cli.output import of_this_thread

    return of_this_thread()


def _told(error: Exception) -> str:
    """The words of an error; of the system's own the file and the reason, without its number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def _flush() -> None:
    if sys.stdout is not None:  # it is closed
        sys.stdout.flush()
