"""Checks of calibrators, and of the values that `fit` sets, which files may hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from refocal.calibrators import Calibrator, MultilabelCalibrator, attributes


def check_calibrator(value: Any, name: str, sets: Any) -> Calibrator:
    """Check a fitted calibrator of the same classes."""
    if not is_usable(value) or not is_fitted(value) or len(value.classes_) != len(sets.classes_):
        msg = f"{name} must be a fitted calibrator of {len(sets.classes_)} classes, got {value!r:.100}"
        raise ValueError(msg)
    return value


def check_thresholds(value: Any, name: str, sets: Any) -> np.ndarray:
    """Check one threshold per class: finite, or -inf for a class that is in every set."""
    classes = len(sets.classes_)
    ok = isinstance(value, np.ndarray) and value.dtype == np.float64 and value.shape == (classes,)
    if not ok or not (value < np.inf).all():
        msg = f"{name} must be {classes} numbers, one per class, finite or -inf, got {value!r:.100}"
        raise ValueError(msg)
    return np.asarray(value)


def check_penalty(value: Any, name: str, sets: Any) -> float:
    """Check a penalty per rank."""
    if attributes.check_finite(value, name, sets) < 0:
        msg = f"{name} must be at least 0, got {value!r:.100}"
        raise ValueError(msg)
    return float(value)


def check_penalty_after(value: Any, name: str, sets: Any) -> int:
    """Check a number of classes without a penalty."""
    if attributes.check_count(value, name, sets) > len(sets.classes_):
        msg = f"{name} must be at most {len(sets.classes_)}, the number of classes, got {value!r:.100}"
        raise ValueError(msg)
    return int(value)


def is_usable(value: Any) -> bool:
    """Whether this is a calibrator for mutually exclusive classes."""
    return isinstance(value, Calibrator) and not isinstance(value, MultilabelCalibrator)


def needs_no_fit(calibrator: Calibrator) -> bool:
    """Whether a calibrator can predict as it is."""
    try:
        check_is_fitted(calibrator)
    except NotFittedError:
        return False
    return True


def is_fitted(calibrator: Calibrator) -> bool:
    """Whether a calibrator is fitted and knows its classes; one that needs no fit may not know them."""
    return hasattr(calibrator, "classes_") and needs_no_fit(calibrator)
