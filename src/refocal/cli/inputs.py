"""Reading the predictions that a command is given."""

from __future__ import annotations

import csv
import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from refocal.cli.data_sets import Source
from refocal.cli.multilabel import reject_classes
from refocal.cli.output import note
from refocal.predictions import ColumnChoice, Predictions, PredictionsReader
from refocal.predictions.errors import NoRowsError
from refocal.predictions.names import describe_names, name_option
from refocal.scale.parts import Form, check_finite, require_form

_MOST_SPLITS = 20
_CLEARLY = 0.025  # the upper 95% confidence limit of the AUC is then below one half


def choose_columns(options: Namespace) -> ColumnChoice:
    """Take the columns that the options name."""
    if options.task == "multilabel":
        reject_classes(options)
    return ColumnChoice(
        label=options.label,
        prob=options.prob,
        logit=options.logit,
        ignore=options.ignore or (),
        classes=None if options.classes is None else next(csv.reader([options.classes]), []),
        task=options.task,
    )


def read_source(
    source: Source,
    columns: ColumnChoice | None = None,
    *,
    split: str | None = None,
    carry: bool | Sequence[str] = False,
    data_set: Sequence[str] = (),
) -> Predictions:
    """Read all predictions of a data set, which have labels, or those of one split.

    Args:
        source: The files.
        columns: Their columns, if the names are not clear.
        split: The split to read; None for all rows.
        carry: Whether to keep all columns, to write them again; or which ones.
        data_set: Files whose labels mean the same.
    """
    others = [Path(file) for file in data_set]
    if len(source.files) == 1:
        whole = Predictions.read(source.files[0], columns=columns, carry=carry, data_set=others)
    else:
        whole = _join_files([Path(file) for file in source.files], columns, source.name, carry=carry, data_set=others)
    if whole.labels is None:
        msg = f"{source.name} has no labels, which measuring and fitting need: name their column with --label"
        raise ValueError(msg)
    _note_wrong_order(whole, source.name)
    return whole if split is None else whole.select(split)


def _note_wrong_order(predictions: Predictions, name: str) -> None:
    """Say so if scores of two classes rank them the wrong way round: the labels may be in the wrong order."""
    if predictions.task != "binary":
        return
    from refocal.stats.ranks import measure_ranks

    scores = predictions.scores.reshape(len(predictions), -1)
    second = scores[:, -1] - scores[:, 0] if scores.shape[1] == 2 else scores[:, 0]
    positive = np.asarray(predictions.labels) == 1
    if positive.all() or not positive.any() or second.min() == second.max():
        return
    auc, p_value = measure_ranks(second, positive)
    if p_value < _CLEARLY:
        note(
            f"{name}: the scores rank the classes the wrong way round (AUC {auc:.2f}): if they are about the other "
            "class, name the labels in the other order with --classes"
        )


def _join_files(
    files: Sequence[Path],
    columns: ColumnChoice | None,
    name: str,
    *,
    carry: bool | Sequence[str],
    data_set: Sequence[Path],
) -> Predictions:
    form = require_form(files, columns, data_set=data_set, carry=carry)
    parts: list[Predictions] = []
    for file in files:
        try:
            with PredictionsReader(file, columns=form.choice, carry=carry, warn=False) as blocks:
                for block in blocks:
                    form.check(Form.of(block, file))
                    parts.append(block)
        except NoRowsError:
            continue
    if len({(part.split is None, part.labels is None) for part in parts}) > 1:
        msg = f"{name}: either all files or none must have a column split, and all must have labels"
        raise ValueError(msg)
    return Predictions._join(parts)


def list_splits(predictions: Predictions, name: str) -> list[str]:
    """List the splits of predictions, sorted."""
    return check_splits([] if predictions.split is None else np.unique(predictions.split).tolist(), name)


def check_splits(splits: Sequence[str], name: str) -> list[str]:
    """Reject more splits than a table can show side by side."""
    if len(splits) > _MOST_SPLITS:
        msg = f"{name} has {len(splits)} splits, more than {_MOST_SPLITS}: choose one with --split"
        raise ValueError(msg)
    return list(splits)


def needs_division(splits: Sequence[str], name: str) -> bool:
    """Whether data that stand alone must be divided at random, having no splits."""
    if len(splits) > 1 and not {"val", "test"} <= set(splits):
        found = ", ".join(map(repr, splits[:10]))
        msg = f"{name} must have rows of the splits val and test, or one split, or --test beside it, got {found}"
        raise ValueError(msg)
    return len(splits) < 2


def read_val_and_test(
    source: Source, other: Source | None, columns: ColumnChoice | None = None, *, carry: bool | Sequence[str] = False
) -> tuple[Predictions, Predictions | None]:
    """Read the predictions to fit to and those to measure on.

    Args:
        source: The files to fit to.
        other: The files to measure on; None if `source` holds both, as splits, or is all there is.
        columns: The columns of all files, if their names are not clear.
        carry: Whether to keep all columns of the predictions to measure on, to write them again; or which ones.

    Returns:
        Both. The second is None if there are no others to measure on: `source` stands alone and has no splits.
    """
    val, test = source.name, None if other is None else other.name
    both = [*source.files, *([] if other is None else other.files)]  # their labels mean the same
    first = read_source(source, columns, carry=carry if other is None else False, data_set=both)
    splits = [] if first.split is None else np.unique(first.split).tolist()
    if other is None and needs_division(splits, val):
        check_finite(first, val)
        return first, None
    second = first if other is None else read_source(other, columns, carry=carry, data_set=both)
    if first.split is None and other is not None and _share_files(source, other):
        msg = f"{val} cannot be both fitted to and measured on: give other test predictions"
        raise ValueError(msg)
    first = first if first.split is None else first.select("val")
    second = second if second.split is None else second.select("test")
    second = _order_classes(second, first, f"{val} and {test or val}")
    names = (first.class_names, second.class_names)
    if None not in names and names[0] != names[1]:
        msg = f"{val} and {test} must have the same class names in the same order"
        raise ValueError(msg)
    if (second.input, second.task) != (first.input, first.task) or second.scores.shape[1:] != first.scores.shape[1:]:
        msg = (
            f"{val} and {test} must hold the same kind of scores, got {first.task} {first.input} of "
            f"shape {first.scores.shape} and {second.task} {second.input} of shape {second.scores.shape}"
        )
        raise ValueError(msg)
    for predictions, name in ((first, val), (second, test or val)):
        check_finite(predictions, name)
    return first, second


def _order_classes(second: Predictions, first: Predictions, both: str) -> Predictions:
    """Put the classes of multi-label predictions into the order of others, by their names."""
    names, wanted = second.class_names, first.class_names
    if second.task != "multilabel" or names is None or wanted is None or names == wanted:
        return second
    if set(names) != set(wanted):
        msg = (
            f"{both} must have the same classes, got {describe_names(wanted)} and {describe_names(names)}: name the "
            f"columns alike, or leave some out with {name_option('ignore')}"
        )
        raise ValueError(msg)
    order = [names.index(name) for name in wanted]
    return replace(
        second, scores=second.scores[:, order], labels=np.asarray(second.labels)[:, order], class_names=wanted
    )


def _share_files(one: Source, other: Source) -> bool:
    return bool({os.path.realpath(file) for file in one.files} & {os.path.realpath(file) for file in other.files})
