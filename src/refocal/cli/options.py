"""Options that several commands have, and how a command is added to a parser."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any

from refocal.cli import memory

_WHERE = (
    "take all files together as one data set, as a pattern in quotes does: in this process, block by block (local, the "
    "default), or on a Ray cluster"
)
EXITS = "exit status: 0 done, 1 input was refused (the message says why), 2 wrong usage, 130 interrupted"


def add_command(
    commands: Any, name: str, summary: str, examples: str, *, module: str, call: str | None = None
) -> argparse.ArgumentParser:
    """Add a command that calls a function of a module, which is imported only then."""
    made: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"examples:\n  {examples.replace(chr(10), chr(10) + '  ')}\n\n{EXITS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--json", action="store_true", help="print JSON for machines")
    made.set_defaults(run=_later(call or name, module))
    return made


def add_engine(command: Any, where: str = _WHERE) -> None:
    """Add --engine and --address."""
    command.add_argument("--engine", choices=("local", "ray"), help=where)
    command.add_argument(
        "--address",
        action=_Address,
        help="of the Ray cluster, auto or host:port (default: one on this machine); means --engine ray",
    )


def add_memory(command: Any) -> None:
    """Add --memory."""
    command.add_argument(
        "--memory",
        type=memory.size,
        default=memory.DEFAULT,
        metavar="SIZE",
        help="files whose rows would take more memory than this, whatever they weigh on disk, are read block by block, "
        f"without intervals: a number of bytes, or such as 500M or 16G (default: {memory.DEFAULT})",
    )


class _Address(argparse.Action):
    """The address of a cluster is a wish for Ray, where no engine is named."""

    def __call__(self, _parser: object, options: argparse.Namespace, value: Any, _flag: str | None = None) -> None:
        options.address, options.engine = value, options.engine or "ray"


def add_force(command: argparse.ArgumentParser) -> None:
    """Add --force."""
    command.add_argument("--force", action="store_true", help="replace files that exist")


def _later(name: str, module: str) -> Callable[[argparse.Namespace], None]:
    def run(options: argparse.Namespace) -> None:
        getattr(importlib.import_module(module), name)(options)

    return run
