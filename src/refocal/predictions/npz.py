"""npz files of predictions: one array each for scores, labels, splits, weights and names of classes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from refocal._check import Input
from refocal.predictions import checks
from refocal.predictions.checks import NAME_LENGTH, SPLIT_LENGTH, Columns
from refocal.predictions.classes import settle_classes, settle_multilabel
from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.errors import Place, PredictionsWarning
from refocal.predictions.labels import CodedText, LabelCoding, LabelKind, RawLabels, decode_labels
from refocal.predictions.names import describe_names
from refocal.predictions.npz_arrays import Member, archive_arrays, open_archive, read_names, take
from refocal.predictions.predictions import Predictions
from refocal.predictions.protocol import FileSize, OpenFile, Request, block_rows

_FORTRAN_BYTES = 1 << 30  # limit for scores that must be read whole although blocks were requested
_FIELDS = {"labels": "labels", "split": "split", "weights": "sample_weight"}  # of `Predictions`, by the array's name
_LABEL_KINDS: dict[str, LabelKind] = {"b": "booleans", "U": "text"}


@contextmanager
def open_reader(path: Path, request: Request) -> Iterator[OpenFile]:
    """Open an npz file."""
    with open_archive(path, request.choice) as opened:
        columns, place = opened.columns, opened.place
        scores = opened.member(columns.columns[0])
        used = {"labels": columns.label if request.labels else None, "split": columns.split, "weights": columns.weight}
        members = {use: opened.member(name) for use, name in used.items() if name is not None}
        names = opened.member("class_names") if "class_names" in opened.infos else None
        labels = members.get("labels")
        several = labels is not None and checks.has_answers(labels.shape)
        task = request.choice.task
        multilabel = task == "multilabel" or (several and task is None)
        _check_forms(scores, members, names, columns.input, place, several=several, multilabel=multilabel)
        rows = scores.shape[0]
        class_names = None if names is None else read_names(names, place)
        width = math.prod(scores.shape[1:])
        classes = settle_multilabel(
            columns, width, request.choice, stored_names=class_names, several=several
        ) or settle_classes(
            columns,
            width,
            None if labels is None or several else _LABEL_KINDS.get(labels.dtype.kind, "numbers"),
            request.scan,
            place,
            stored_names=class_names,
            given=request.choice.classes,
        )
        fortran = [member for member in (scores, *members.values()) if member.fortran]
        for member in fortran:
            held = math.prod(member.shape) * member.dtype.itemsize
            if not request.whole and held > _FORTRAN_BYTES:
                message = (
                    f"is in Fortran order, which cannot be read in blocks, and takes {held:,} bytes: save it in C order"
                )
                raise place.error(message, column=member.name)
        step = rows if request.whole or fortran else block_rows(width)
        blocks = _blocks(scores, members, classes.coding, step, place)
        yield OpenFile(
            columns.input,
            classes,
            rows,
            FileSize(rows, width),
            place,
            blocks,
            columns.describe(request.choice, width=width),
        )


def read_labels(path: Path, choice: ColumnChoice) -> Iterator[RawLabels]:
    """Read only the labels; nothing if there are none."""
    with open_archive(path, choice) as opened:
        label = opened.columns.label
        if label is None:
            return
        labels = opened.member(label)
        if len(labels.shape) == 1:
            place = opened.place
            step = block_rows(1)
            for start in range(0, labels.shape[0], step):
                yield _raw_labels(take(labels, min(step, labels.shape[0] - start), place), place)
                place = replace(place, first_row=place.first_row + step)


def _check_forms(
    scores: Member,
    members: dict[str, Member],
    names: Member | None,
    input: Input,
    place: Place,
    *,
    several: bool,
    multilabel: bool,
) -> None:
    """Check all shapes and dtypes before any array is read."""
    checks.check_scores_form(scores.dtype, scores.shape, input, place)
    for use, member in members.items():
        if use == "labels" and (several or multilabel):
            wanted = scores.shape[0], checks.count_classes(scores.shape, multilabel=multilabel)
            checks.check_answers_form(member.dtype, member.shape, wanted, place)
        else:
            checks.check_rows(member.shape, scores.shape[0], member.name, place)
    for use, member in members.items():
        if use == "weights" or (use == "labels" and member.dtype.kind not in _LABEL_KINDS):
            checks.check_numbers(member.dtype, member.name, place)
    texts = [(member, SPLIT_LENGTH) for use, member in members.items() if use == "split"]
    texts += [(member, NAME_LENGTH) for use, member in members.items() if use == "labels" and member.dtype.kind == "U"]
    texts += [] if names is None else [(names, NAME_LENGTH)]
    for member, longest in texts:
        checks.check_text(np.empty(0, dtype=member.dtype), member.name, place, longest=longest)
    if names is not None:
        checks.check_names_shape(names.shape, checks.count_classes(scores.shape, multilabel=multilabel), place)


def _blocks(
    scores: Member, members: dict[str, Member], coding: LabelCoding | None, step: int, place: Place
) -> Iterator[Columns]:
    rows = scores.shape[0]
    for start in range(0, rows, step):
        count = min(step, rows - start)
        taken = {use: take(member, count, place) for use, member in members.items()}
        labels = taken.get("labels")
        if labels is not None and labels.ndim == 1:
            labels = decode_labels(_raw_labels(labels, place), coding, place.labels, place)
        yield Columns(take(scores, count, place), labels, taken.get("split"), taken.get("weights"))
        place = replace(place, first_row=place.first_row + count)


def _raw_labels(labels: np.ndarray, place: Place) -> RawLabels:
    if labels.dtype.kind != "U":
        return labels
    texts = checks.check_text(labels, place.labels, place, longest=NAME_LENGTH)
    values, codes = np.unique(texts, return_inverse=True)
    return CodedText([str(value) for value in values], codes)


@contextmanager
def open_writer(file: BinaryIO, path: Path, first: Predictions) -> Iterator[Callable[[Predictions], None]]:
    """Write an npz file."""
    if first.carried is not None and first.carried.others:
        message = f"{path}: npz cannot hold other columns; not written: {describe_names(first.carried.others)}"
        warnings.warn(message, PredictionsWarning, stacklevel=1)
    rows: dict[str, tuple[int, ...]] = {first.input: first.scores.shape[1:]}
    arrays = {name: getattr(first, field) for name, field in _FIELDS.items()}
    rows.update({name: array.shape[1:] for name, array in arrays.items() if array is not None})
    with archive_arrays(file, path.parent, rows, class_names=first.class_names) as spools:

        def write(block: Predictions) -> None:
            for name, spool in spools.items():
                spool.add(block.scores if name == block.input else getattr(block, _FIELDS[name]))

        yield write
