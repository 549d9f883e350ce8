"""The command line: arguments in, calls out."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from refocal.cli.parser import parser

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a refocal command; returns the exit status: 0, 1 for input that was refused, 130 after Ctrl-C.

    Wrong usage ends the process with 2, as argparse does.
    """
    options = parser().parse_args(arguments)
    try:
        options.run(options)
    except KeyboardInterrupt:
        sys.stderr.write("refocal: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, TypeError, OSError, ImportError) as error:
        sys.stderr.write(f"refocal: {error}\n")
        return 1
    return 0
