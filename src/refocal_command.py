"""The command `refocal`: an interrupt while its modules are still being imported ends it as quietly as any other."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; returns the exit status."""
    try:
        from refocal.cli import main as command

        return command()
    except KeyboardInterrupt:
        sys.stderr.write("refocal: interrupted\n")
        return 130
