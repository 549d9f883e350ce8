"""The command line: one module per command, with its parser and its run.

The modules of the commands import only what `--help` needs. Their `run` functions import the rest.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a refocal command.

    Args:
        arguments: The words after `refocal`; None for those of this process.

    Returns:
        The exit status, see `refocal.cli.running.run`.
    """
    from refocal.cli.parser import build_parser
    from refocal.cli.running import run

    return run(build_parser(), arguments)
