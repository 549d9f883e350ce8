"""The command line: arguments in, calls out."""

from __future__ import annotations

from collections.abc import Sequence

from refocal.cli import running
from refocal.cli.parser import parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a refocal command; returns the exit status: 0, 1 for input that was refused, 130 after Ctrl-C.

    Wrong usage ends the process with 2, as argparse does.
    """
    return running.run(parser(), arguments)
