"""Conversion between predictions and Arrow arrays, for parquet and csv files."""

from __future__ import annotations

from typing import Any

import numpy as np

from refocal.predictions.checks import SPLIT_LENGTH, Columns
from refocal.predictions.errors import Place
from refocal.predictions.header import Header
from refocal.predictions.predictions import Predictions


def require_arrow() -> None:
    """Raise an error that says how to install pyarrow if it is missing."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        message = "parquet and csv files need pyarrow: pip install 'refocal[arrow]'"
        raise ImportError(message) from error


def from_arrow(batch: Any, header: Header, place: Place) -> Columns:
    """Convert a record batch to columns; reject missing values, but do not check values otherwise."""
    present = set(batch.schema.names)
    if header.numbered:
        parts = [_numbers(batch.column(name), name, place, scores=True) for name in header.columns]
        scores = np.concatenate(parts).reshape(len(parts), -1).T  # one class after another, as in the file
    else:
        scores = _lists_or_numbers(batch.column(header.input), header.input, place)
    return Columns(
        scores,
        _numbers(batch.column("label"), "label", place) if "label" in present else None,
        _text(batch.column("split"), place) if "split" in present else None,
        _numbers(batch.column("weight"), "weight", place) if "weight" in present else None,
    )


def optional_columns(block: Predictions) -> dict[str, Any]:
    """Convert all columns of a block except the scores to Arrow arrays."""
    import pyarrow as pa

    columns = {"label": block.labels, "split": block.split, "weight": block.sample_weight}
    return {name: pa.array(column) for name, column in columns.items() if column is not None}


def _lists_or_numbers(array: Any, name: str, place: Place) -> np.ndarray:
    import pyarrow as pa

    dtype = array.type
    if pa.types.is_fixed_size_list(dtype):
        _reject_null(array, name, place)
        classes = dtype.list_size
    elif pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        _reject_null(array, name, place)
        lengths = np.diff(array.offsets.to_numpy())
        classes = int(lengths[0])
        if (lengths != classes).any():
            row = int(np.argmax(lengths != classes))
            message = f"must have {classes} values per row like the rows before, got {lengths[row]}"
            raise place.error(message, column=name, row=row)
    else:
        return _numbers(array, name, place, scores=True)
    if classes == 0:
        message = "must have at least one value per row, got none"
        raise place.error(message, column=name, row=0)
    return _numbers(array.flatten(), name, place, scores=True, classes=classes).reshape(len(array), classes)


def _numbers(array: Any, name: str, place: Place, *, scores: bool = False, classes: int = 1) -> np.ndarray:
    import pyarrow as pa

    if not (pa.types.is_floating(array.type) or (pa.types.is_integer(array.type) and not scores)):
        wanted = "float16, float32 or float64" if scores else "numbers"
        message = f"must be {wanted}, got {array.type}"
        raise place.error(message, column=name)
    _reject_null(array, name, place, classes)
    return array.to_numpy(zero_copy_only=False)


def _text(array: Any, place: Place) -> np.ndarray:
    import pyarrow as pa

    dtype = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if not (pa.types.is_string(dtype) or pa.types.is_large_string(dtype)):
        message = f"must be text, got {array.type}"
        raise place.error(message, column="split")
    _reject_null(array, "split", place)
    with place.parsing("split"):
        coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
        names = coded.dictionary.to_pylist()
        codes = coded.indices.to_numpy(zero_copy_only=False)
    for code, name in enumerate(names):
        # checked here because NumPy pads every string to the longest one and drops a trailing NUL
        if (name is None or len(name) > SPLIT_LENGTH or "\0" in name) and (codes == code).any():
            row = int(np.argmax(codes == code))
            found = name if name is None else name[: SPLIT_LENGTH + 1]
            message = f"must be printable text of 1 to {SPLIT_LENGTH} characters, got {found!r}"
            raise place.error(message, column="split", row=row)
    with place.parsing("split"):  # codes of a damaged dictionary can point beyond its end
        return np.array([(name or "")[:SPLIT_LENGTH] for name in names])[codes]


def _reject_null(array: Any, name: str, place: Place, classes: int = 1) -> None:
    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False))) // classes
        message = "a value is missing"
        raise place.error(message, column=name, row=row)
