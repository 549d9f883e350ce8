"""The lab's command line: arguments in, calls out."""

from __future__ import annotations

from collections.abc import Sequence

from refocal.cli import running
from refocal_lab.cli.parser import parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a refocal-lab command; returns the exit status, as `refocal` does."""
    return running.run(parser(), arguments)
