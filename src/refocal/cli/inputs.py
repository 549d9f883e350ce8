"""Reading the predictions that a command is given."""

from __future__ import annotations

import csv
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from refocal.predictions import ColumnChoice, Predictions
from refocal.scale.parts import check_finite


def choose_columns(options: Namespace) -> ColumnChoice:
    """Take the columns that the options name."""
    return ColumnChoice(
        label=options.label,
        prob=options.prob,
        logit=options.logit,
        ignore=options.ignore or (),
        classes=None if options.classes is None else next(csv.reader([options.classes]), []),
    )


def read_labeled(
    file: str, split: str | None, columns: ColumnChoice | None = None, data_set: Sequence[str] = ()
) -> Predictions:
    """Read predictions that have labels, or those of one split; files of one `data_set` have the same classes."""
    predictions = Predictions.read(file, columns=columns, data_set=[Path(other) for other in data_set])
    return _check_labels(predictions if split is None else predictions.select(split), file)


def read_val_and_test(
    val: str, test: str | None, columns: ColumnChoice | None = None, *, carry: bool = False
) -> tuple[Predictions, Predictions | None]:
    """Read the predictions to fit to and those to measure on.

    Args:
        val: The file to fit to.
        test: The file to measure on; None if `val` holds both, as splits, or is all there is.
        columns: The columns of both files, where their names do not tell.
        carry: Whether to keep all columns of the predictions to measure on, to write them again.

    Returns:
        Both. The second is None if there are no others to measure on: `val` stands alone and has no splits.
    """
    both = [Path(file) for file in (val, test) if file is not None]  # their labels mean the same
    first = Predictions.read(val, columns=columns, carry=carry and test is None, data_set=both)
    splits = [] if first.split is None else np.unique(first.split).tolist()
    if test is None and len(splits) < 2:
        check_finite(_check_labels(first, val), val)
        return first, None
    if test is None and not {"val", "test"} <= set(splits):
        found = ", ".join(map(repr, splits[:10]))
        msg = f"{val} must have rows of the splits val and test, or one split, or --test beside it, got {found}"
        raise ValueError(msg)
    second = first if test is None else Predictions.read(test, columns=columns, carry=carry, data_set=both)
    if first.split is None and test is not None and Path(val).samefile(test):
        msg = f"{val} cannot be both fitted to and measured on: give other test predictions"
        raise ValueError(msg)
    first = first if first.split is None else first.select("val")
    second = second if second.split is None else second.select("test")
    names = (first.class_names, second.class_names)
    if None not in names and names[0] != names[1]:
        msg = f"{val} and {test} must have the same class names in the same order"
        raise ValueError(msg)
    if second.input != first.input or second.scores.shape[1:] != first.scores.shape[1:]:
        msg = (
            f"{val} and {test} must hold the same kind of scores, got {first.input} of shape "
            f"{first.scores.shape} and {second.input} of shape {second.scores.shape}"
        )
        raise ValueError(msg)
    for predictions, file in ((first, val), (second, test or val)):
        _check_labels(predictions, file)
        check_finite(predictions, file)
    return first, second


def _check_labels(predictions: Predictions, file: str) -> Predictions:
    if predictions.labels is None:
        msg = f"{file} has no labels, which measuring and fitting need: name their column with --label"
        raise ValueError(msg)
    return predictions
