"""How much memory a command may take, and whether its files must be read block by block to stay within it."""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from refocal.predictions import ColumnChoice

DEFAULT = "4G"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

# Bytes per score and per row, measured and rounded up: the scores and their probabilities in float64, with temporary
# copies. Fits and measures per class hold several more arrays of that size.
MEASURING, FITTING = 24, 48
_PER_ROW = 128


def parse_size(text: str) -> int:
    """Read a number of bytes that may end in K, M, G or T."""
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,3})?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        msg = f"must be a number of bytes, which may end in K, M, G or T, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(float(found[1]) * _UNITS[found[2].upper()])


def format_size(number: int) -> str:
    """Write a number of bytes for people."""
    for unit in ("T", "G", "M", "K"):
        if number >= _UNITS[unit]:
            return f"{number / _UNITS[unit]:.1f}{unit}"
    return f"{number}B"


class Survey(NamedTuple):
    """What the headers of files say.

    Attributes:
        excess: Why the files cannot be held within --memory; None if they can.
        multilabel: Whether they are multi-label predictions.
    """

    excess: str | None
    multilabel: bool


def survey(options: Namespace, files: Sequence[str], *, per_score: int) -> Survey:
    """Find out from the headers of files whether they fit into --memory, and their task."""
    from refocal.cli.inputs import choose_columns

    need, multilabel = estimate(files, per_score=per_score, columns=choose_columns(options))
    if need <= options.memory:
        return Survey(None, multilabel)
    limit = format_size(options.memory)
    named = " and ".join(files if len(files) < 4 else [f"{len(files)} files from {files[0]} to {files[-1]}"])
    excess = f"{named} would take about {format_size(need)} of memory, more than --memory {limit}"
    return Survey(excess, multilabel)


def estimate(files: Sequence[str], *, per_score: int, columns: ColumnChoice | None = None) -> tuple[int, bool]:
    """Estimate the memory for holding whole files, from their headers; the size on disk says little.

    Returns:
        The number of bytes, and whether the files are multi-label predictions.
    """
    from refocal.predictions import PredictionsReader
    from refocal.predictions.errors import NoRowsError

    need = 0
    data_set = [Path(file) for file in files]
    found: dict[bool, str] = {}
    for file in files:
        try:
            with PredictionsReader(file, columns=columns, data_set=data_set) as blocks:
                need += per_score * blocks.size.scores + _PER_ROW * blocks.size.rows
                found.setdefault(blocks.task == "multilabel", file)
        except NoRowsError:
            continue
    if len(found) > 1:
        msg = f"{found[True]} is multi-label, but {found[False]} is not: choose with --task"
        raise ValueError(msg)
    return need, True in found


def choose_sample(options: Namespace, classes: int) -> int:
    """Choose how many rows of files beyond --memory to hold for statistics that need rows: a quarter of --memory."""
    from refocal.scale.sampling import SAMPLE, choose_sample_size

    per_row = FITTING * classes + _PER_ROW
    return choose_sample_size(classes, most_rows=min(SAMPLE, options.memory // (4 * per_row)))
