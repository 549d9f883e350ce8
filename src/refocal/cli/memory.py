"""How much memory a command may take, and whether its files have to be read block by block for that."""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from collections.abc import Sequence

DEFAULT = "4G"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

# What a command takes for each score and each row that it holds, rounded up from measurements: the scores and their
# probabilities in float64 with the copies on the way; for a fit and for measures by class, some arrays of that size
# more.
MEASURING, FITTING = 24, 48
_PER_ROW = 128


def size(text: str) -> int:
    """Bytes, from a number with K, M, G or T behind it."""
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,3})?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        msg = f"must be a number of bytes, perhaps with K, M, G or T behind it, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(float(found[1]) * _UNITS[found[2].upper()])


def needed(files: Sequence[str], *, per_score: int) -> int:
    """The memory that files take when they are held as a whole: by their headers, whatever they weigh on disk."""
    from refocal.predictions import PredictionsReader
    from refocal.predictions.errors import NoRowsError

    total = 0
    for file in files:
        try:
            with PredictionsReader(file) as blocks:
                total += per_score * blocks.size.scores + _PER_ROW * blocks.size.rows
        except NoRowsError:
            continue
    return total


def too_large(options: Namespace, files: Sequence[str], *, per_score: int) -> str | None:
    """Why files cannot be held as a whole within the memory that the user allows; None where they can."""
    need = needed(files, per_score=per_score)
    if need <= options.memory:
        return None
    return f"{' and '.join(files)} would take about {told(need)} of memory, more than --memory {told(options.memory)}"


def told(number: int) -> str:
    """A number of bytes for people."""
    for unit in ("T", "G", "M", "K"):
        if number >= _UNITS[unit]:
            return f"{number / _UNITS[unit]:.1f}{unit}"
    return f"{number}B"
