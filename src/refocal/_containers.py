"""Reading data out of containers: lists, arrays of any library, data frames and series become arrays.

Every public function that takes scores, labels or weights reads them here, so that all of them accept the same things.
Rows of a frame are samples, by position; its index is not used.

This module imports no library of arrays or frames except NumPy: if an object of another library is passed in, that
library is already imported.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import array_api_compat
import numpy as np

from refocal import _check
from refocal._arrays import is_torch

_BFLOAT16 = SimpleNamespace(bits=16, tiny=2.0**-126, eps=2.0**-7)  # NumPy has no `finfo` of this dtype
_NO_FRACTIONS = 2.0**52  # float64 numbers from here on are whole, whatever they mean
_MISSING = {"NAType", "NaTType", "NoneType"}  # types of missing values besides NaN, in pandas, polars and Arrow


def to_array(values: Any, name: str, *, column: bool = False) -> Any:
    """Convert a container to an array.

    NumPy arrays, PyTorch tensors and arrays of the array API stay what they are; a tensor loses its gradient. Lists,
    frames, series, Arrow tables and objects with `__array__` or `__dlpack__` become NumPy arrays. Anything else is
    returned as it is, for the caller to reject.

    Args:
        values: The container.
        name: Its name in messages.
        column: Whether a frame with one column becomes one-dimensional, as labels and weights are.
    """
    _check.unmasked(values, name)
    if isinstance(values, np.ndarray):
        return values
    if is_torch(values):
        return _from_tensor(values, name)
    if is_frame(values):
        array = _from_frame(values, name)
        return array[:, 0] if column and array.shape[1] == 1 else array
    if array_api_compat.is_array_api_obj(values):
        return values
    if isinstance(values, (list, tuple)):
        return _from_list(values, name)
    return _from_series(values, name)


def to_numpy(values: Any, name: str, *, column: bool = False) -> np.ndarray:
    """Convert a container to a NumPy array in main memory; bfloat16 becomes float32. See `to_array`."""
    array = to_array(values, name, column=column)
    if is_torch(array):
        return (array.float() if str(array.dtype) == "torch.bfloat16" else array).cpu().numpy()
    if not isinstance(array, np.ndarray):
        is_strict = type(array).__module__.startswith("array_api_strict")  # it converts by DLPack alone
        array = np.from_dlpack(array) if is_strict else np.asarray(array)
    if array.ndim == 0 and array.dtype.kind not in "biufc":
        found = None if values is None else type(values).__name__
        msg = f"{name} must be a list, an array, a tensor, a frame or a series, got {found}"
        raise TypeError(msg)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def float_limits(array: Any) -> Any:
    """Return `bits`, `tiny` and `eps` of an array's dtype, as `numpy.finfo` does; for other dtypes those of float64."""
    dtype = str(getattr(array, "dtype", "")).removeprefix("torch.")
    if dtype == "bfloat16":
        return _BFLOAT16
    return np.finfo(dtype if dtype in ("float16", "float32") else np.float64)


def is_frame(values: Any) -> bool:
    """Return whether this is a table of columns: a frame of pandas or polars, or an Arrow table."""
    return _is_one_of(values, "pandas", "DataFrame") or _is_one_of(values, "polars", "DataFrame") or _is_table(values)


def list_columns(frame: Any) -> list[tuple[Any, Any]]:
    """Return the columns of a frame, each with its name."""
    if _is_table(frame):
        return list(zip(frame.column_names, frame.columns, strict=True))
    if _is_one_of(frame, "polars", "DataFrame"):
        return [(series.name, series) for series in frame.get_columns()]
    return list(frame.items())


def list_values(column: Any, name: str) -> list[Any]:
    """Return the values of a column as Python objects, with missing values as they are. See `is_missing`."""
    array = to_numpy(column, name) if is_torch(column) else _check.unmasked(column, name)
    if isinstance(array, np.ndarray) and array.dtype.kind == "M":
        array = array.astype("datetime64[us]")  # of nanoseconds, NumPy would make numbers
    for way in ("to_pylist", "to_list", "tolist"):
        if hasattr(array, way):
            return list(getattr(array, way)())
    return list(array)


def is_missing(value: Any) -> bool:
    """Return whether a value stands for a missing one: None, NaN, or NA or NaT of pandas."""
    return type(value).__name__ in _MISSING or (isinstance(value, float | np.floating) and math.isnan(value))


def column_names(values: Any) -> tuple[str, ...] | None:
    """Return the names of a frame's columns if there are several and all are different text; otherwise None."""
    if not is_frame(values):
        return None
    names = list(values.column_names if _is_table(values) else values.columns)
    if len(names) < 2 or len(set(names)) < len(names) or not all(isinstance(each, str) for each in names):
        return None
    return tuple(names)


def check_order(names: Sequence[str] | None, expected: Sequence[str] | None, name: str) -> None:
    """Check that columns have the expected order, if they have names and these are the expected ones."""
    if names is None or expected is None or tuple(names) == tuple(expected) or {*names} != {*expected}:
        return
    msg = f"the columns of {name} must be in the order {_list(expected)}, got {_list(names)}"
    raise ValueError(msg)


def encode_labels(labels: np.ndarray, names: Sequence[str] | None, classes: int, *, how: str) -> np.ndarray:
    """Convert labels to class indices if they are text, booleans or floats; other labels are returned as they are.

    Text is looked up in the class names. False and True are classes 0 and 1, unless these are the names of the classes.
    Floats must be whole numbers: a column with missing values, since removed, has them.

    Args:
        labels: Labels in NumPy.
        names: The name of each class, or None.
        classes: The number of classes.
        how: The end of the error message: how to name the classes.
    """
    if labels.dtype.kind == "O" and labels.ndim:
        labels = _from_objects(labels, "labels")
    if labels.dtype.kind == "f" and np.isnan(labels).any():  # as missing integers are read
        msg = f"labels must not have missing values, got nan in row {int(np.argmax(np.isnan(labels)))}"
        raise ValueError(msg)
    if labels.dtype.kind == "f":
        numbers = labels.astype(np.float64)
        bad = (numbers != np.floor(numbers)) | (np.abs(numbers) >= _NO_FRACTIONS)
        _check.reject_rows(bad, numbers, f"labels must be class indices, whole numbers from 0 to {classes - 1}")
        return numbers.astype(np.int64)
    if labels.dtype.kind == "b":
        if classes != 2:
            msg = f"labels must be class indices from 0 to {classes - 1}, got booleans"
            raise ValueError(msg)
        if names is None or {*names} != {"False", "True"}:
            return labels.astype(np.int8)
        labels = labels.astype(str)
    if labels.dtype.kind != "U":
        return labels
    if labels.size == 0:
        return labels.astype(np.int8)
    if names is None:
        msg = f"labels must be class indices if the classes have no names, got {str(labels.flat[0])!r}: {how}"
        raise ValueError(msg)
    found, inverse = np.unique(labels, return_inverse=True)
    index = {name: number for number, name in enumerate(names)}
    unknown = next((str(label) for label in found if str(label) not in index), None)
    if unknown is not None:
        row = int(np.flatnonzero(labels == unknown)[0])
        msg = f"labels must be among the class names {_list(names)}, got {unknown!r} in row {row}: {how}"
        raise ValueError(msg)
    return np.array([index[str(label)] for label in found])[inverse].reshape(labels.shape)


def _list(names: Sequence[str]) -> str:
    """List names in a message, at most five of them."""
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")


def _is_one_of(values: Any, package: str, *kinds: str) -> bool:
    """Return whether this is an object of a class of a package, which is imported if it is."""
    module = sys.modules.get(package)
    return module is not None and isinstance(values, tuple(getattr(module, kind) for kind in kinds))


def _is_table(values: Any) -> bool:
    return _is_one_of(values, "pyarrow", "Table", "RecordBatch")


def _from_tensor(tensor: Any, name: str) -> Any:
    if tensor.device.type == "meta":
        msg = f"{name} must have values, got a tensor on the device 'meta', which has none"
        raise TypeError(msg)
    if str(tensor.layout) != "torch.strided":
        msg = f"{name} must be dense, got a sparse tensor: pass its .to_dense()"
        raise TypeError(msg)
    return tensor.detach()


def _from_list(values: Sequence[Any], name: str) -> np.ndarray:
    try:
        array = np.asarray(_replace_tensors(values, name))
    except ValueError as error:
        msg = f"{name} must be an array or nested lists of equal lengths, got lists of different lengths"
        raise ValueError(msg) from error
    return _from_objects(array, name) if array.dtype.kind == "O" else array


def _replace_tensors(values: Any, name: str) -> Any:
    """Convert the tensors in nested lists: NumPy reads neither gradients, bfloat16 nor the memory of a GPU."""
    first = values
    while isinstance(first, list | tuple) and first:
        first = first[0]
    if not is_torch(first):
        return values
    return to_numpy(values, name) if is_torch(values) else [_replace_tensors(each, name) for each in values]


def _from_frame(frame: Any, name: str) -> np.ndarray:
    """Convert a frame to a matrix; a missing number becomes NaN."""
    array: np.ndarray = np.asarray(frame) if _is_table(frame) else frame.to_numpy()
    if array.dtype.kind != "O":
        return array
    columns = list_columns(frame)
    parts = [_from_series(column, name) for _, column in columns]
    for (column, _), part in zip(columns, parts, strict=True):
        if part.ndim > 1 or part.dtype.kind not in "biuf":
            msg = f"{name} must have columns of numbers, got column {column!r} of other values: leave it out"
            raise TypeError(msg)
    return np.stack(parts, axis=1)


def _from_series(series: Any, name: str) -> Any:
    """Convert one column. A missing number becomes NaN; other missing values are rejected."""
    if _is_one_of(series, "polars", "LazyFrame"):
        msg = f"{name} must be in memory, got a LazyFrame: pass its .collect()"
        raise TypeError(msg)
    if _is_one_of(series, "scipy.sparse", "spmatrix", "sparray"):
        msg = f"{name} must be dense, got a sparse matrix: pass its .toarray()"
        raise TypeError(msg)
    if _is_one_of(series, "pyarrow", "Array", "ChunkedArray"):
        array = series.to_numpy(zero_copy_only=False)
    elif _is_one_of(series, "pandas", "Series", "Index") or _is_one_of(series, "polars", "Series"):
        array = series.to_numpy()
    elif hasattr(series, "__array__"):
        array = np.asarray(series)
    else:
        return np.from_dlpack(series) if hasattr(series, "__dlpack__") else series
    return _from_objects(array, name) if array.dtype.kind == "O" else array


def _from_objects(array: np.ndarray, name: str) -> np.ndarray:
    """Convert Python objects to text, numbers or rows of numbers; if they are none of these, leave them as they are."""
    values = array.ravel().tolist()
    for index, value in enumerate(values):
        if is_missing(value):
            msg = f"{name} must not have missing values, got {value} in row {index // (array.size // len(array))}"
            raise ValueError(msg)
    if all(isinstance(value, str) for value in values):
        return np.asarray(values, dtype=str).reshape(array.shape)
    if array.ndim == 1 and all(isinstance(value, (list, np.ndarray)) for value in values):
        return _from_list(values, name)
    if all(isinstance(value, (bool, int, float, np.generic)) for value in values):
        return np.asarray(values).reshape(array.shape)
    return array
