"""What reports of all tasks share: they are saved as a page or as JSON, and export their calibrator."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from refocal._files import write_text

SCHEMA = 1

Fitted = TypeVar("Fitted")


def save_report(
    path: str | os.PathLike[str], *, render: Callable[[], str], serialize: Callable[[], str], overwrite: bool
) -> None:
    """Write a report: the page that `render` makes (.html), or the JSON that `serialize` makes (.json)."""
    makers = {".html": render, ".json": serialize}
    suffix = Path(path).suffix
    if suffix not in makers:
        msg = f"path must end in .html or .json, got {str(path)!r}"
        raise ValueError(msg)
    write_text(path, makers[suffix](), overwrite=overwrite)


def require_calibrator(calibrator: Fitted | None, *, fit: str) -> Fitted:
    """Return the calibrator of a report, to export it; `fit` is the function that would have fitted one."""
    if calibrator is None:
        msg = (
            "this report has no calibrator to export, because nothing was fitted: fit one with "
            f"refocal.{fit}(scores, labels) and use its report"
        )
        raise ValueError(msg)
    return calibrator


def write_json(report: Any) -> str:
    """Serialize a record in ASCII, with its schema version. NaN and infinite numbers become null."""
    return json.dumps({"schema": SCHEMA, **_to_plain(report)}, allow_nan=False)


def _to_plain(value: Any) -> Any:
    """Convert a record to values that JSON can hold."""
    if hasattr(value, "_asdict"):  # a NamedTuple
        value = value._asdict()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if dataclasses.is_dataclass(value):
        written = (each for each in dataclasses.fields(value) if each.metadata.get("json", True))
        return {each.name: _to_plain(getattr(value, each.name)) for each in written}
    if isinstance(value, Mapping):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_to_plain(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
