"""The command line: arguments in, calls out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import refocal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a refocal command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="refocal", description="Class probabilities you can act on.")
    parser.add_argument("--version", action="version", version=f"refocal {refocal.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("demo", help="recover the posterior of focal scores that ship with the package")
    parser.parse_args(arguments)
    return _demo()


def _demo() -> int:
    from rich.console import Console

    from refocal import demo

    Console().print(demo.run())
    return 0
