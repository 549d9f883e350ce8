"""Fitted calibrators as JSON files.

A file holds a schema version, a digest, and values under names from a closed list. It never holds code.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from refocal._documents import parse_json, read_document
from refocal._files import write_text
from refocal._probability_look import optional_input_word
from refocal.calibrators.attributes import Check, check_columns, check_floor, check_labels
from refocal.calibrators.base import Calibrator

SCHEMA = 1
_COMMON: dict[str, Check] = {"classes_": check_labels, "n_features_in_": check_columns, "floor_": check_floor}
_OPTIONAL = ("floor_",)  # of probabilities alone, and not in older files
_SCALARS = (bool, int, float, str)
_PADDED = 256  # class labels are padded to at most this many characters


class FileKind(NamedTuple):
    """What a file holds.

    Attributes:
        word: Its name in the file and in messages.
        list_classes: Function that returns the classes that can be saved, by name.
    """

    word: str
    list_classes: Callable[[], dict[str, Any]]

    @property
    def format(self) -> str:
        """The mark of a file of this kind."""
        return f"refocal {self.word}"


def _list_calibrators() -> dict[str, type[Calibrator]]:
    from refocal import calibrators

    candidates = (getattr(calibrators, name) for name in calibrators.__all__)
    return {
        cls.__name__: cls
        for cls in candidates
        if isinstance(cls, type) and issubclass(cls, Calibrator) and cls._learned
    }


CALIBRATOR = FileKind("calibrator", _list_calibrators)


def save(estimator: Any, path: str | Path, kind: FileKind = CALIBRATOR, *, overwrite: bool = False) -> None:
    """Write a fitted calibrator, or prediction sets, to a JSON file, which appears only when it is complete."""
    if type(estimator).__name__ not in kind.list_classes():
        msg = f"a {type(estimator).__name__} cannot be saved as JSON: save its calibrator and its estimator separately"
        raise TypeError(msg)
    body = _record(estimator)
    _restore(body, kind=kind)  # write nothing that could not be read again
    content = {"format": kind.format, "schema": SCHEMA, "digest": _digest(body), kind.word: body}
    write_text(path, json.dumps(content, allow_nan=False, indent=1), overwrite=overwrite)


def load(path: str | Path) -> Calibrator:
    """Load a calibrator from a JSON file that its `save` method wrote.

    Args:
        path: The file.

    Raises:
        ValueError: If the file is not a calibrator, is damaged, or was written by a newer version of refocal.

    Example:
        >>> import tempfile, numpy as np
        >>> from refocal.calibrators import TemperatureScaling, load
        >>> calibrator = TemperatureScaling().fit(np.array([[4.0, 0.0], [0.0, 4.0], [1.0, 0.0]]), [0, 1, 1])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     calibrator.save(folder + "/calibrator.json")
        ...     same = load(folder + "/calibrator.json")
        >>> same.temperature_ == calibrator.temperature_
        True
    """
    calibrator: Calibrator = read(path, CALIBRATOR)
    return calibrator


def read(path: str | Path, kind: FileKind) -> Any:
    """Read a file that `save` wrote."""
    problem = f"{path} is not a {kind.word} file"
    origin = "the method save, or calibrate --save," if kind is CALIBRATOR else "the method save"
    content = parse_json(
        read_document(path), lambda reason: ValueError(f"{problem}: {reason}; {origin} writes such files, as JSON")
    )
    if not isinstance(content, dict) or content.get("format") != kind.format:
        msg = f'{problem}: "format" must be {kind.format!r}'
        raise ValueError(msg)
    schema = content.get("schema")
    if not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
        msg = f"{path} has schema {schema!r}; this version of refocal reads schemas 1 to {SCHEMA}: update refocal"
        raise ValueError(msg)
    body = content.get(kind.word)
    try:
        if content.get("digest") != _digest(body):
            msg = "its content does not match its digest"
            raise ValueError(msg)
        return _restore(body, kind=kind)
    except (ValueError, RecursionError) as error:
        msg = f"{path} is damaged: {error}"
        raise ValueError(msg) from error


def digest(calibrator: Calibrator) -> str:
    """Compute a digest of the settings and fitted attributes; two calibrators with one digest predict the same."""
    return _digest(_record(calibrator))


def _record(calibrator: Any) -> dict[str, Any]:
    """Convert a fitted calibrator to values that JSON can hold."""
    names = (*_COMMON, *calibrator._learned)
    return {
        "kind": type(calibrator).__name__,
        "parameters": {name: _encode(value) for name, value in calibrator.get_params(deep=False).items()},
        "learned": {name: _encode(getattr(calibrator, name)) for name in names if hasattr(calibrator, name)},
    }


def _restore(record: Any, within: str = "", *, kind: FileKind = CALIBRATOR) -> Any:
    """Build a calibrator from its record and check it; errors put `within` before the names of attributes."""
    registry = kind.list_classes()
    name, parameters, learned = (_part(record, key, within) for key in ("kind", "parameters", "learned"))
    if not isinstance(name, str) or name not in registry:
        msg = f"{within}kind must be one of {sorted(registry)}, got {name!r:.100}"
        raise ValueError(msg)
    allowed, earlier = registry[name]._get_param_names(), getattr(registry[name], "_earlier", {})
    settings = {key: value for key, value in earlier.items() if key in allowed} | {
        key: _decode(value, within + key) for key, value in _items(parameters, "parameters", allowed, within)
    }
    try:
        calibrator = registry[name](**settings)
    except TypeError as error:  # a parameter without a default is missing
        msg = f"{within}parameters of {name} are incomplete: {error}"
        raise ValueError(msg) from error
    rules = {**_COMMON, **calibrator._learned}
    values = dict(_items(learned, "learned", rules, within))
    _set_learned(calibrator, rules, values, within)
    try:
        optional_input_word(calibrator.input)
        calibrator._check_settings(len(calibrator.classes_) if hasattr(calibrator, "classes_") else None)
    except (ValueError, TypeError, OverflowError) as error:
        msg = f"{within}parameters of {name}: {error}"
        raise ValueError(msg) from error
    return calibrator


def _set_learned(calibrator: Any, rules: dict[str, Check], values: dict[str, Any], within: str) -> None:
    """Set every attribute that `fit` sets.

    Nothing may be there only for a calibrator that needs no fit, or for a candidate that was not fitted.
    """
    if not values and (within or _is_fitted(calibrator)):
        return
    needed = _COMMON if _is_fitted(calibrator) else rules
    earlier = getattr(calibrator, "_earlier", {})
    for name, rule in rules.items():
        if name in values:
            setattr(calibrator, name, rule(_decode(values[name], within + name), within + name, calibrator))
        elif name in earlier:
            setattr(calibrator, name, earlier[name])
        elif name in needed and name not in _OPTIONAL:
            msg = f"{within}{name} is missing"
            raise ValueError(msg)


def _is_fitted(calibrator: Calibrator) -> bool:
    try:
        check_is_fitted(calibrator)
    except NotFittedError:
        return False
    except (ValueError, TypeError):  # raised by a bad parameter, which is checked later
        return False
    return True


def _part(record: Any, key: str, within: str) -> Any:
    if not isinstance(record, dict) or key not in record:
        msg = f"{within}{key} is missing"
        raise ValueError(msg)
    return record[key]


def _items(record: Any, what: str, allowed: Container[str], within: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(record, dict):
        msg = f"{within}{what} must be an object, got {record!r:.100}"
        raise ValueError(msg)
    for name in record:
        if name not in allowed:
            msg = f"{within}{what} has an unknown name, {name!r:.100}: another version of refocal may have written it"
            raise ValueError(msg)
    return record.items()


def _encode(value: Any) -> Any:
    """Convert a value to one that JSON can hold. A type that JSON lacks becomes a dict whose key names the type."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    match value:
        case Calibrator():
            encoded: dict[str, Any] = {"calibrator": _record(value)}
        case np.ndarray():
            items = [_encode(item) for item in value.ravel().tolist()]
            encoded = {"array": items, "shape": list(value.shape), "dtype": value.dtype.str}
        case float():
            encoded = {"float": str(value)}
        case list():
            encoded = {"list": [_encode(item) for item in value]}
        case tuple():
            encoded = {"tuple": [_encode(item) for item in value]}
        case dict():
            encoded = {"dict": [[_encode(key), _encode(item)] for key, item in value.items()]}
        case _:
            msg = f"a {type(value).__name__} cannot be saved as JSON"
            raise TypeError(msg)
    return encoded


def _decode(value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        return value
    if "calibrator" in value:
        return _restore(value["calibrator"], f"{name}.")
    try:
        return _decode_dict(value, name)
    except (KeyError, TypeError, OverflowError, ValueError) as error:
        msg = f"{name} cannot be read: {error}"
        raise ValueError(msg) from error


def _decode_dict(value: dict[str, Any], name: str) -> Any:
    if "array" in value:
        return _decode_array(value, name)
    if "float" in value:
        return float(value["float"])
    if "dict" in value:
        return {_decode(key, name): _decode(item, name) for key, item in value["dict"]}
    items = [_decode(item, name) for item in value["tuple" if "tuple" in value else "list"]]
    return tuple(items) if "tuple" in value else items


def _decode_array(value: dict[str, Any], name: str) -> np.ndarray:
    """Build an array. Its memory is bounded by the number of items, whatever dtype the file claims."""
    items = [_decode(item, name) for item in value["array"]]
    dtype, shape = np.dtype(value["dtype"]), tuple(value["shape"])
    if dtype.kind not in "biufUOmM" or not all(item is None or isinstance(item, _SCALARS) for item in items):
        msg = f"must be an array of numbers or text, got {value['dtype']!r}"
        raise ValueError(msg)
    if any(type(length) is not int or length < 0 for length in shape) or math.prod(shape) != len(items):
        msg = f"has {len(items)} values, which do not fit the shape {shape!r:.100}"
        raise ValueError(msg)
    if dtype.kind == "U":
        longest = max((len(str(item)) for item in items), default=0)
        dtype = np.dtype(f"U{min(dtype.itemsize // 4, max(longest, _PADDED))}")
    return np.array(items, dtype=dtype).reshape(shape)


def _digest(body: Any) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
