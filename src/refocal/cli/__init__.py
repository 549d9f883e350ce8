"""The command line: arguments in, calls out."""

from __future__ import annotations

import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from refocal._documents import SkippedWarning
from refocal.cli.encoding import accept_any_encoding
from refocal.cli.parser import parser
from refocal.report.words import printable

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a refocal command; returns the exit status: 0, 1 for input that was refused, 130 after Ctrl-C.

    Wrong usage ends the process with 2, as argparse does.
    """
    accept_any_encoding()
    if not os.environ.get("COLUMNS", "").strip("0 "):  # 0 means that it is not known, but Rich would print nothing
        os.environ.pop("COLUMNS", None)
    try:
        options = parser().parse_args(arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of overflow: what comes of it is checked
            warnings.simplefilter("ignore", FutureWarning)  # of libraries, to those who program with them
            warnings.simplefilter("always", SkippedWarning)
            warnings.showwarning = _show_warning
            with _output(options):
                options.run(options)
        _flush()
    except KeyboardInterrupt:
        sys.stderr.write("refocal: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has gone
        return 0
    except (ValueError, TypeError, ArithmeticError, OSError, ImportError, RuntimeError, MemoryError) as error:
        reason = " ".join(_told(error).split()) or type(error).__name__
        sys.stderr.write(f"refocal: {printable(reason)}\n")
        return 1
    finally:
        try:
            _flush()
        except OSError:  # Python would try once more when it ends, and complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    sys.stderr.write(f"refocal: {printable(' '.join(str(message).split()))}\n")


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
