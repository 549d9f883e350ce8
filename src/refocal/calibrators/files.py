"""Fitted calibrators as JSON files: a schema version, names from a closed list, a digest, never code."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from refocal._files import write_text
from refocal.calibrators.base import Calibrator

FORMAT = "refocal calibrator"
SCHEMA = 1


def save(calibrator: Calibrator, path: str | Path) -> None:
    """Write a fitted calibrator, under a temporary name first."""
    if type(calibrator).__name__ not in _registry():
        msg = f"a {type(calibrator).__name__} cannot be saved as JSON: save its calibrator, and its estimator by itself"
        raise TypeError(msg)
    body = _record(calibrator)
    content = {"format": FORMAT, "schema": SCHEMA, "digest": _digest(body), "calibrator": body}
    write_text(path, json.dumps(content, allow_nan=False, indent=1), overwrite=True)


def load(path: str | Path) -> Calibrator:
    """Read a calibrator that `save` wrote.

    Args:
        path: The file.

    Raises:
        ValueError: If the file is no calibrator, is damaged, or was written by a newer version of refocal.

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
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        msg = f"{path} is not a calibrator file: {error}"
        raise ValueError(msg) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        msg = f'{path} is not a calibrator file: "format" must be {FORMAT!r}'
        raise ValueError(msg)
    schema = content.get("schema")
    if not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
        msg = f"{path} has schema {schema!r}; this version of refocal reads 1 to {SCHEMA}: update refocal"
        raise ValueError(msg)
    body = content.get("calibrator")
    if content.get("digest") != _digest(body):
        msg = f"{path} is damaged: its content does not match its digest"
        raise ValueError(msg)
    try:
        return _restore(body)
    except (KeyError, TypeError, AttributeError) as error:
        msg = f"{path} is damaged: {error!r}"
        raise ValueError(msg) from error


def digest(calibrator: Calibrator) -> str:
    """What tells a fitted calibrator from another one."""
    return _digest(_record(calibrator))


def _registry() -> dict[str, type[Calibrator]]:
    from refocal import calibrators

    candidates = (getattr(calibrators, name) for name in calibrators.__all__)
    return {
        cls.__name__: cls
        for cls in candidates
        if isinstance(cls, type) and issubclass(cls, Calibrator) and cls._learned
    }


def _record(calibrator: Calibrator) -> dict[str, Any]:
    """A fitted calibrator as what JSON knows."""
    names = ("classes_", "n_features_in_", *calibrator._learned)
    return {
        "kind": type(calibrator).__name__,
        "parameters": {name: _encode(value) for name, value in calibrator.get_params(deep=False).items()},
        "learned": {name: _encode(getattr(calibrator, name)) for name in names if hasattr(calibrator, name)},
    }


def _restore(record: Any) -> Calibrator:
    registry = _registry()
    kind = record["kind"]
    if kind not in registry:
        msg = f"the kind of calibrator must be one of {sorted(registry)}, got {kind!r}"
        raise ValueError(msg)
    calibrator = registry[kind](**{name: _decode(value) for name, value in record["parameters"].items()})
    allowed = {"classes_", "n_features_in_", *calibrator._learned}
    for name, value in record["learned"].items():
        if name not in allowed:
            msg = f"unknown attribute {name!r}"
            raise KeyError(msg)
        setattr(calibrator, name, _decode(value))
    return calibrator


def _encode(value: Any) -> Any:
    """A value as what JSON knows; whatever JSON lacks is a dict with one telling key."""
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


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "calibrator" in value:
        return _restore(value["calibrator"])
    if "array" in value:
        items = [_decode(item) for item in value["array"]]
        return np.array(items, dtype=np.dtype(value["dtype"])).reshape(value["shape"])
    if "float" in value:
        return float(value["float"])
    if "dict" in value:
        return {_decode(key): _decode(item) for key, item in value["dict"]}
    return tuple(map(_decode, value["tuple"])) if "tuple" in value else [_decode(item) for item in value["list"]]


def _digest(body: Any) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
