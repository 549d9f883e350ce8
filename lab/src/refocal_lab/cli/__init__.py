"""The lab's command line: one module per command, with its parser and its run, as in `refocal.cli`."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a refocal-lab command.

    Args:
        arguments: The words after `refocal-lab`; None for those of this process.

    Returns:
        The exit status, see `refocal.cli.running.run`.
    """
    from refocal.cli.running import run
    from refocal_lab.cli.parser import build_parser

    return run(build_parser(), arguments)
