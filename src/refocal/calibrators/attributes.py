"""Checks of fitted attributes. `save` and `load` accept exactly the values that `fit` can set.

A check takes a value, its name, and the calibrator, whose settings and `classes_` are already set. It returns the value
as `fit` would have set it, or raises a ValueError that names the attribute.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Check = Callable[[Any, str, Any], Any]
Size = int | Callable[[Any], int]

_LARGEST = 1e150  # the largest coefficient: its product with any logit below 1e150 is finite


def check_positive(value: Any, name: str, _: Any) -> float:
    """Check a positive, finite number, such as a temperature."""
    number = _number(value, name)
    return _accept(number, name, "positive and finite", 0 < number < math.inf)


def check_floor(value: Any, name: str, calibrator: Any) -> float:
    """Check a floor of probabilities, which scores that are not probabilities do not have."""
    number = _number(value, name)
    _accept(number, name, "absent unless input is 'probs'", calibrator.input == "probs")
    return _accept(number, name, "between 0 and 1/2", 0 < number <= 0.5)


def check_share(value: Any, name: str, _: Any) -> float:
    """Check a number between 0 and 1."""
    number = _number(value, name)
    return _accept(number, name, "between 0 and 1", 0 < number < 1)


def curve_check(most: int) -> Check:
    """Make a check of one finite number for each of several settings, or none."""

    def check(value: Any, name: str, calibrator: Any) -> np.ndarray:
        size = len(value) if isinstance(value, np.ndarray) and value.ndim == 1 else 0
        _accept(size, name, f"at most {most} numbers", size <= most)
        numbers: np.ndarray = coefficients_check(size)(value, name, calibrator)
        return numbers

    return check


def check_standard_error(value: Any, name: str, _: Any) -> float:
    """Check a number >= 0; infinity means that the data do not determine the parameter."""
    number = _number(value, name)
    return _accept(number, name, "at least 0", number >= 0)


def check_gamma(value: Any, name: str, _: Any) -> float:
    """Check a focusing parameter."""
    number = _number(value, name)
    return _accept(number, name, f"greater than -1, at most {_LARGEST:g}", -1 < number <= _LARGEST)


def check_gammas(value: Any, name: str, calibrator: Any) -> Any:
    """Check a focusing parameter, or a tuple of one per class."""
    if not isinstance(value, tuple):
        return check_gamma(value, name, calibrator)
    classes = count_classes(calibrator)
    if len(value) != classes:
        msg = f"{name} must be a number or one value for each of {classes} classes, got {len(value)} values"
        raise ValueError(msg)
    return tuple(check_gamma(number, f"{name}[{index}]", calibrator) for index, number in enumerate(value))


def check_flag(value: Any, name: str, _: Any) -> bool:
    """Check a bool."""
    return bool(_accept(value, name, "true or false", isinstance(value, bool)))


def check_count(value: Any, name: str, _: Any) -> int:
    """Check a whole number >= 0."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return int(_accept(value, name, "a whole number, at least 0", whole))


def check_text(value: Any, name: str, _: Any) -> str:
    """Check a string."""
    return str(_accept(value, name, "text", isinstance(value, str)))


def check_finite(value: Any, name: str, _: Any) -> float:
    """Check a finite number."""
    number = _number(value, name)
    return _accept(number, name, "finite", math.isfinite(number))


def check_probability(value: Any, name: str, _: Any) -> float:
    """Check a number from 0 to 1."""
    number = _number(value, name)
    return _accept(number, name, "in [0, 1]", 0 <= number <= 1)


def coefficients_check(*shape: Size, least: float = -_LARGEST) -> Check:
    """Make a check of finite numbers of a given shape; a size may be a function of the calibrator."""

    def check(value: Any, name: str, calibrator: Any) -> np.ndarray:
        array = _array(value, name, tuple(size if isinstance(size, int) else size(calibrator) for size in shape))
        with np.errstate(invalid="ignore"):
            good = (array >= least) & (array <= _LARGEST)
        bounds = f"finite, from {least:g} to {_LARGEST:g}"
        if not good.all():
            _accept(float(array[~good][0]), name, bounds, False)
        return array

    return check


def check_ranges(value: Any, name: str, calibrator: Any) -> np.ndarray:
    """Check the two ends of one range per function, (2, C)."""
    array: np.ndarray = coefficients_check(2, count_functions)(value, name, calibrator)
    _accept(array.tolist(), name, "lower ends, and upper ends not below them", bool((array[0] <= array[1]).all()))
    return array


def check_mixture(value: Any, name: str, _: Any) -> np.ndarray:
    """Check three shares that sum to 1."""
    array = coefficients_check(3, least=0.0)(value, name, _)
    return np.asarray(_accept(array, name, "shares that sum to 1", abs(array.sum() - 1) < 1e-6))


def check_knots(value: Any, name: str, calibrator: Any) -> np.ndarray:
    """Check ends of pieces (C, M): M is a power of two, rows are in ascending order, and unused ends are infinite."""
    array = _tables(value, name, calibrator)
    size = array.shape[1]
    _accept(array.shape, name, "tables of 2^k columns", size > 0 and size & (size - 1) == 0)
    following = array[:, 1:] >= array[:, :-1]
    order = "in ascending order, beginning with a finite number and padded with inf"
    _accept(array.tolist(), name, order, bool(following.all() and np.isfinite(array[:, 0]).all()))
    return array


def check_probabilities(value: Any, name: str, calibrator: Any) -> np.ndarray:
    """Check one probability per knot."""
    array = _array(value, name, calibrator.knots_.shape)
    _accept(array.tolist(), name, "in [0, 1]", bool(((array >= 0) & (array <= 1)).all()))
    return array


def check_rising_probabilities(value: Any, name: str, calibrator: Any) -> np.ndarray:
    """Check one probability per knot, in ascending order."""
    array = check_probabilities(value, name, calibrator)
    _accept(array.tolist(), name, "in ascending order", bool((array[:, 1:] >= array[:, :-1]).all()))
    return array


def check_labels(value: Any, name: str, _: Any) -> np.ndarray:
    """Check an array of two or more different class labels."""
    ok = isinstance(value, np.ndarray) and value.ndim == 1 and len(value) >= 2 and value.dtype.kind in "biufUOmM"
    _accept(value, name, "an array of two or more labels", ok)
    try:
        different = len(np.unique(value)) == len(value)
    except TypeError:  # labels of kinds that cannot be compared
        different = False
    _accept(value, name, "different labels of one kind", different)
    return np.asarray(value)


def check_columns(value: Any, name: str, calibrator: Any) -> int:
    """Check a number of columns: one per class, or a single column for two classes."""
    number = count_classes(calibrator)
    allowed = (1, 2) if number == 2 else (number,)
    return int(_accept(value, name, " or ".join(map(str, allowed)), type(value) is int and value in allowed))


def count_classes(calibrator: Any) -> int:
    """Count the classes of a calibrator."""
    return len(calibrator.classes_)


def count_functions(calibrator: Any) -> int:
    """Count the functions of a one-against-the-rest method: one per class, or one in all for two classes."""
    number = count_classes(calibrator)
    return 1 if number == 2 else number


def _tables(value: Any, name: str, calibrator: Any) -> np.ndarray:
    # without a method, only the top class of three or more has a table
    method = getattr(calibrator, "method", "one_vs_rest")
    top_label = method == "top_label" or (method is None and count_classes(calibrator) > 2)
    width = value.shape[1] if isinstance(value, np.ndarray) and value.ndim == 2 else 1
    return _array(value, name, (1 if top_label else count_functions(calibrator), width))


def _array(value: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    ok = (
        isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.dtype.itemsize == 8 and value.shape == shape
    )
    got = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else value
    _accept(got, name, f"float64 of shape {shape}", ok)
    return np.asarray(value, dtype=np.float64)


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _accept(value, name, "a number", False)
    try:
        return float(value)
    except OverflowError:
        return _accept(math.inf, name, "a number that float64 holds", False)


def _accept(value: Any, name: str, allowed: str, good: Any) -> Any:
    if not good:
        msg = f"{name} must be {allowed}, got {value!r:.100}"
        raise ValueError(msg)
    return value
