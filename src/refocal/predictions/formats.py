"""The format of a file, chosen by its suffix."""

from __future__ import annotations

from pathlib import Path

from refocal.predictions import csv, npz, parquet
from refocal.predictions.errors import Place
from refocal.predictions.protocol import Format

_FORMATS: dict[str, Format] = {".npz": npz, ".parquet": parquet, ".csv": csv}
_REMEDIES = {
    ".npy": ": save scores and labels in one file with numpy.savez",
    ".gz": ": unpack the file",
    **dict.fromkeys((".tsv", ".txt"), ": a text file with a header and columns may be called .csv"),
    **dict.fromkeys((".xls", ".xlsx"), ": save the sheet as csv in UTF-8"),
    **dict.fromkeys((".pkl", ".pickle", ".pt", ".pth", ".joblib"), ": pickles are never read; save with numpy.savez"),
}


def find_format(path: Path) -> Format:
    """Return the module that reads and writes files with this suffix."""
    try:
        return _FORMATS[path.suffix.lower()]
    except KeyError:
        remedy = _REMEDIES.get(path.suffix.lower(), "")
        message = f"the suffix must be one of {', '.join(_FORMATS)}, got {path.suffix!r}{remedy}"
        raise Place(path).error(message) from None
