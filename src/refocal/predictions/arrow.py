"""Conversion between predictions and Arrow arrays, for parquet and csv files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from refocal._extras import how_to_install
from refocal.predictions.carried import Carried
from refocal.predictions.checks import NAME_LENGTH, SPLIT_LENGTH, Columns
from refocal.predictions.errors import Place
from refocal.predictions.header import Header, name_outputs
from refocal.predictions.labels import CodedText, LabelCoding, LabelKind, RawLabels, decode_labels, refuse_missing
from refocal.predictions.names import name_option
from refocal.predictions.predictions import Predictions


def require_arrow() -> None:
    """Raise an error that says how to install pyarrow if it is missing."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        message = f"parquet and csv files need pyarrow: {how_to_install('arrow')}"
        raise ImportError(message) from error


def from_arrow(batch: Any, header: Header, coding: LabelCoding | None, place: Place, *, labels: bool = True) -> Columns:
    """Convert a record batch to columns; reject missing values, but do not check values otherwise.

    Args:
        batch: The record batch.
        header: The use of its columns.
        coding: The label of each class; None if multi-label.
        place: The file, for errors.
        labels: Whether to convert the labels.
    """
    if header.per_class:
        parts = [_numbers(batch.column(name), name, place, scores=True) for name in header.columns]
        scores = np.concatenate(parts).reshape(len(parts), -1).T  # one class after another, as in the file
    else:
        scores = _lists_or_numbers(batch.column(header.columns[0]), header.columns[0], place)
    return Columns(
        scores,
        _labels(batch, header, coding, place) if labels else None,
        None if header.split is None else _text(batch.column(header.split), header.split, place),
        None if header.weight is None else _numbers(batch.column(header.weight), header.weight, place),
    )


def carry(batch: Any, header: Header) -> Carried:
    """Keep all columns beside the scores."""
    import pyarrow as pa

    table = pa.Table.from_batches([batch]).drop_columns(list(header.columns)).replace_schema_metadata(None)
    return Carried(table, header.label, header.others, header.per_class, header.positive, header.columns)


def _labels(batch: Any, header: Header, coding: LabelCoding | None, place: Place) -> np.ndarray | None:
    if header.answers:
        parts = (read_labels(batch.column(name), name, place) for name in header.answers)
        columns = [decode_labels(raw, None, name, place) for raw, name in zip(parts, header.answers, strict=True)]
        return np.stack(columns, axis=1)
    if header.label is None:
        return None
    column = batch.column(header.label)
    if is_list(column.type):
        return _lists_or_numbers(column, header.label, place, scores=False)
    return decode_labels(read_labels(column, header.label, place), coding, header.label, place)


def is_list(dtype: Any) -> bool:
    """Whether a column holds a list of values per row."""
    import pyarrow as pa

    return bool(pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype))


def find_label_kind(dtype: Any) -> LabelKind:
    """Say what a column of labels holds, by its type."""
    import pyarrow as pa

    if pa.types.is_boolean(dtype):
        return "booleans"
    return "text" if is_text(dtype) else "numbers"


def read_labels(array: Any, name: str, place: Place) -> RawLabels:
    """Convert a column of labels; reject missing values."""
    import pyarrow as pa

    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise refuse_missing(row, replace(place, labels=name))
    if is_text(array.type):
        return _code(array, name, place, longest=NAME_LENGTH)
    if pa.types.is_boolean(array.type):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    return _numbers(array, name, place)


def is_text(dtype: Any) -> bool:
    """Whether a column holds text."""
    import pyarrow as pa

    dtype = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    return bool(pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype))


def carried_columns(carried: Carried) -> dict[str, Any]:
    """Return the columns that are written as they were read."""
    return dict(zip(carried.table.column_names, carried.table.columns, strict=True))


def add_scores(columns: dict[str, Any], block: Predictions, scores: np.ndarray, place: Place) -> dict[str, Any]:
    """Append one column per class, or one column for two classes, named after the classes."""
    import pyarrow as pa

    matrix = scores.reshape(len(block), -1)
    multilabel = block.task == "multilabel"
    names = block.class_names
    positive = None if block.carried is None else block.carried.positive
    if names is None and not multilabel and positive is not None and matrix.shape[1] == 1:
        names = ("", positive)
    for index, name in enumerate(name_outputs(matrix.shape[1], names, block.input, multilabel=multilabel)):
        if name in columns:
            message = f"column {name!r} is there already: rename it, or leave it out with {name_option('ignore')}"
            raise place.error(message)
        columns[name] = pa.array(matrix[:, index])
    return columns


def optional_columns(block: Predictions, *, per_class: bool = False) -> dict[str, Any]:
    """Convert all columns of a block except the scores to Arrow arrays.

    Multi-label labels become one column of lists, or one column per class.
    """
    labels: dict[str, np.ndarray | None] = {"label": block.labels}
    if block.task == "multilabel" and block.labels is not None and per_class:
        labels = {**split_answers(block)}
    columns = {**labels, "split": block.split, "weight": block.sample_weight}
    return {name: to_arrow(column) for name, column in columns.items() if column is not None}


def split_answers(block: Predictions) -> dict[str, np.ndarray]:
    """Make one column of labels per class of multi-label predictions."""
    labels = np.asarray(block.labels)
    names = name_outputs(block.classes, block.class_names, "label", multilabel=True)
    return {name: labels[:, index] for index, name in enumerate(names)}


def to_arrow(values: np.ndarray) -> Any:
    """Convert a column of numbers or text, or of lists if it has two axes."""
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return flat if values.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _lists_or_numbers(array: Any, name: str, place: Place, *, scores: bool = True) -> np.ndarray:
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
        return _numbers(array, name, place, scores=scores)
    if classes == 0:
        message = "must have at least one value per row, got none"
        raise place.error(message, column=name, row=0)
    flat = array.flatten()
    if not scores and pa.types.is_boolean(flat.type):
        flat = flat.cast(pa.uint8())
    return _numbers(flat, name, place, scores=scores, classes=classes).reshape(len(array), classes)


def _numbers(array: Any, name: str, place: Place, *, scores: bool = False, classes: int = 1) -> np.ndarray:
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):  # categories of numbers
        with place.parsing(name):
            array = array.dictionary_decode()
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.float64())
    if not (pa.types.is_floating(array.type) or (pa.types.is_integer(array.type) and not scores)):
        wanted = "float16, float32 or float64" if scores else "numbers"
        message = f"must be {wanted}, got {array.type}"
        raise place.error(message, column=name)
    _reject_null(array, name, place, classes)
    return array.to_numpy(zero_copy_only=False)


def _text(array: Any, name: str, place: Place) -> np.ndarray:
    if not is_text(array.type):
        message = f"must be text, got {array.type}"
        raise place.error(message, column=name)
    values, codes = _code(array, name, place, longest=SPLIT_LENGTH)
    return np.array([value[:SPLIT_LENGTH] for value in values])[codes]


def _code(array: Any, name: str, place: Place, *, longest: int) -> CodedText:
    """Convert text to its different values and their codes; reject values that are missing or too long."""
    import pyarrow as pa

    _reject_null(array, name, place)
    with place.parsing(name):
        coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
        values = coded.dictionary.to_pylist()
        codes = coded.indices.to_numpy(zero_copy_only=False)
    for code, value in enumerate(values):
        # checked here because NumPy pads every string to the longest one and drops a trailing NUL
        if (value is None or len(value) > longest or "\0" in value) and (codes == code).any():
            row = int(np.argmax(codes == code))
            found = value if value is None else value[: longest + 1]
            message = f"must be printable text of 1 to {longest} characters, got {found!r}"
            raise place.error(message, column=name, row=row)
    if len(codes) and not 0 <= codes.min() <= codes.max() < len(values):
        message = "points beyond its dictionary: the file is damaged"
        raise place.error(message, column=name)
    return CodedText([value or "" for value in values], codes)


def _reject_null(array: Any, name: str, place: Place, classes: int = 1) -> None:
    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False))) // classes
        message = "a value is missing"
        raise place.error(message, column=name, row=row)
