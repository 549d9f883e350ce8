"""The whole command line of `refocal`."""

from __future__ import annotations

import argparse

import refocal
from refocal.cli import apply, calibrate, demo, evaluate, explain, export
from refocal.cli.options import make_program


def build_parser() -> argparse.ArgumentParser:
    """Make the parser with all commands."""
    program, commands = make_program(
        "refocal", "Class probabilities you can act on, from the scores of a classifier.", refocal.__version__
    )
    for command in (evaluate, calibrate, apply, export, explain, demo):
        command.add_parser(commands)
    return program
