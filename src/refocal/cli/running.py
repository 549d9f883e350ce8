"""Run a parsed command: exit status, errors in one line, output in any encoding."""

from __future__ import annotations

import os
import re
import sys
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from refocal._documents import SkippedWarning
from refocal._program import INTERRUPTED
from refocal.cli.encoding import accept_any_encoding

_NEGATIVE = re.compile(r"-[0-9]")


def run(parser: ArgumentParser, arguments: Sequence[str] | None = None) -> int:
    """Run one command of a program.

    Args:
        parser: The program, from `make_program`.
        arguments: Its words; None for those of this process.

    Returns:
        The exit status: 0 for success, 1 for invalid input, 130 after Ctrl-C. Wrong usage ends the process with
        status 2, as argparse does.
    """
    accept_any_encoding()
    if not os.environ.get("COLUMNS", "").strip("0 "):  # 0 means unknown, but Rich would print nothing
        os.environ.pop("COLUMNS", None)
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        options = parser.parse_args(_join_negative(words))
        options.words = [parser.prog, *words]
        from refocal.predictions.errors import PredictionsWarning  # not needed for --help

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of overflow: the results are checked
            warnings.simplefilter("ignore", FutureWarning)  # of libraries, meant for programmers
            warnings.simplefilter("always", SkippedWarning)
            warnings.simplefilter("default", PredictionsWarning)  # each text once
            warnings.showwarning = lambda message, *_, **__: _report(parser.prog, " ".join(str(message).split()))
            with _reserve_output(options):
                options.run(options)
        _flush()
    except KeyboardInterrupt:
        _report(parser.prog, "interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has gone
        return 0
    except (ValueError, TypeError, ArithmeticError, OSError, ImportError, RuntimeError, MemoryError) as error:
        reason = " ".join(_describe(error).split()) or type(error).__name__
        _report(parser.prog, reason)
        return 1
    finally:
        try:
            _flush()
        except OSError:  # Python would try again at exit, and complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _join_negative(words: Sequence[str]) -> list[str]:
    """Join --classes with a value such as -1,1, which argparse would take for an option."""
    found: list[str] = []
    for word in words:
        if found and found[-1] == "--classes" and _NEGATIVE.match(word):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def _report(program: str, message: str) -> None:
    from refocal.report.words import printable

    sys.stderr.write(f"{program}: {printable(message)}\n")


def _reserve_output(options: Namespace) -> AbstractContextManager[None]:
    if getattr(options, "engine", None) != "ray":
        return nullcontext()
    from refocal.cli.output import reserve_stdout

    return reserve_stdout()


def _describe(error: Exception) -> str:
    """The message of an error; for one of the operating system, the file and the reason without its number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def _flush() -> None:
    if sys.stdout is not None:  # None if it is closed
        sys.stdout.flush()
