"""Checks of images of a segmentation network, and what to say if rows are expected instead."""

from __future__ import annotations

from typing import Any

from refocal import _check
from refocal._arrays import Array


def image_axis(value: Any, array: Array, name: str) -> int:
    """Check for the axis of the classes of images (N, classes, ...), and return it counted from the first."""
    if getattr(array, "ndim", 0) < 3:
        shape = tuple(array.shape) if hasattr(array, "shape") else type(array).__name__
        msg = f"{name} must have shape (N, classes, ...) with one spatial axis or more, got {shape}"
        raise ValueError(msg)
    place = _check.axis(value, array, name)
    if place == 0:
        msg = f"axis must not be the axis of the images, 0, got {value}"
        raise ValueError(msg)
    return place


def image_hint(shape: tuple[int, ...]) -> str:
    """The end of a message about a wrong shape: what takes arrays with more than two axes."""
    if len(shape) <= 2:
        return ""
    return ": for images, use refocal.segmentation, whose intervals take an image, not a pixel, for the sample"
