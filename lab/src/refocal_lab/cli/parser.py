"""The whole command line of `refocal-lab`."""

from __future__ import annotations

import argparse

import refocal
from refocal.cli.options import make_program
from refocal_lab.cli import claims, curvature, reproduce, train, zoo


def build_parser() -> argparse.ArgumentParser:
    """Make the parser with all commands."""
    program, commands = make_program(
        "refocal-lab",
        "Train networks, keep their logits, and reproduce and check the papers behind refocal.",
        refocal.__version__,
    )
    for command in (train, curvature, zoo, claims, reproduce):
        command.add_parser(commands)
    return program
