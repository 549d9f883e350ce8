"""Data sets of your own, made from arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from refocal_lab.train.data.data_set import DataSet, Part, moments

Samples = tuple[np.ndarray, np.ndarray]  # inputs and labels


def make_data_set(
    name: str,
    *,
    classes: Sequence[str],
    train: Samples,
    val: Samples,
    test: Samples,
    source: str = "your own",
) -> DataSet:
    """A data set from arrays of your own, normalized by the mean and standard deviation of its training part.

    Args:
        name: What the cards of runs call it.
        classes: Names of the K classes, in the order of the labels.
        train: Inputs and labels to train on. Inputs are uint8 images (N, H, W, C) or vectors (N, F); labels are class
            indices (N,), 0 to K - 1.
        val: The same, to choose and calibrate on.
        test: The same, to measure on.
        source: Where the samples come from, for the card.

    Example:
        >>> vectors, labels = np.eye(4), np.array([0, 1, 0, 1])
        >>> part = vectors, labels
        >>> make_data_set("corners", classes=("even", "odd"), train=part, val=part, test=part).shape
        (4,)
    """
    training, validation, testing = (
        _make_part(*samples, part) for part, samples in (("train", train), ("val", val), ("test", test))
    )
    split = f"{len(training):,} / {len(validation):,} / {len(testing):,}, as given"
    data = DataSet(name, tuple(classes), training, validation, testing, source, split)
    check_data_set(data)
    mean, std = moments(np.asarray(training.inputs))
    return replace(data, mean=mean, std=np.where(std > 0, std, 1.0))


def check_data_set(data: DataSet) -> None:
    """Reject arrays that training would stumble over: their shapes, types and labels."""
    if len(data.classes) < 2:
        msg = f"classes must have at least 2 names, got {len(data.classes)}"
        raise ValueError(msg)
    for name in ("train", "val", "test"):
        part = getattr(data, name)
        if not len(part):
            msg = f"{name} must have at least one sample"
            raise ValueError(msg)
        if len(part.inputs) != len(part.labels):
            msg = f"{name} must have one label per input, got {len(part.inputs)} inputs and {len(part.labels)} labels"
            raise ValueError(msg)
        if not isinstance(part.labels, np.ndarray) or part.labels.dtype != np.int64 or part.labels.ndim != 1:
            found = getattr(part.labels, "dtype", type(part.labels).__name__)
            msg = f"{name}.labels must be an int64 array of shape (N,), got {found} of shape {np.shape(part.labels)}"
            raise ValueError(msg)
        scored = len(data.classes) if data.scored is None else len(data.scored)
        if part.labels.min() < 0 or part.labels.max() >= scored:
            msg = f"{name}.labels must be 0 to {scored - 1}, got {part.labels.min()} to {part.labels.max()}"
            raise ValueError(msg)
        if isinstance(part.inputs, np.ndarray):
            _check_inputs(part.inputs, data.train.inputs, name)


def _check_inputs(inputs: np.ndarray, training: object, name: str) -> None:
    if (str(inputs.dtype), inputs.ndim) not in (("uint8", 4), ("float32", 2)):
        msg = (
            f"{name}.inputs must be uint8 images (N, H, W, C) or float32 vectors (N, F), got {inputs.dtype} of shape "
            f"{inputs.shape}"
        )
        raise ValueError(msg)
    if not isinstance(training, np.ndarray) or inputs.shape[1:] != training.shape[1:]:
        wanted = f"of shape {training.shape[1:]}, as train has" if isinstance(training, np.ndarray) else "as train has"
        msg = f"{name}.inputs must have samples {wanted}, got {inputs.shape[1:]}"
        raise ValueError(msg)
    if inputs.dtype == np.float32 and not np.isfinite(inputs).all():
        msg = f"{name}.inputs must be finite"
        raise ValueError(msg)


def _make_part(inputs: np.ndarray, labels: np.ndarray, name: str) -> Part:
    inputs, labels = np.asarray(inputs), np.asarray(labels)
    if inputs.dtype != np.uint8:
        inputs = inputs.astype(np.float32)
    if not np.issubdtype(labels.dtype, np.integer):
        msg = f"{name}.labels must be integers, got {labels.dtype}"
        raise TypeError(msg)
    return Part(np.ascontiguousarray(inputs), labels.astype(np.int64), np.arange(len(labels)))
