"""The format of a file, chosen by its suffix."""

from __future__ import annotations

from pathlib import Path

from refocal.predictions import csv, npz, parquet
from refocal.predictions.errors import Place
from refocal.predictions.protocol import Format

_FORMATS: dict[str, Format] = {".npz": npz, ".parquet": parquet, ".csv": csv}


def find_format(path: Path) -> Format:
    """Return the module that reads and writes files with this suffix."""
    try:
        return _FORMATS[path.suffix.lower()]
    except KeyError:
        message = f"the suffix must be one of {', '.join(_FORMATS)}, got {path.suffix!r}"
        raise Place(path).error(message) from None
