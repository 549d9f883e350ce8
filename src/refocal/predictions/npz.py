"""npz files: arrays in a zip archive, read as streams, never as pickles.

A header alone never causes an allocation: its sizes must match those of the archive, and these must be possible for
the size of the file.
"""

from __future__ import annotations

import math
import os
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from refocal._check import Input
from refocal.predictions import checks, header
from refocal.predictions.checks import NAME_LENGTH, SPLIT_LENGTH, Columns
from refocal.predictions.classes import settle_classes, settle_multilabel
from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.errors import Place, PredictionsWarning
from refocal.predictions.labels import CodedText, LabelCoding, LabelKind, RawLabels, decode_labels
from refocal.predictions.names import describe_names
from refocal.predictions.predictions import Predictions
from refocal.predictions.protocol import FileSize, OpenFile, Request, block_rows

_PIECE = 1 << 20
_FORTRAN_BYTES = 1 << 30  # limit for scores that must be read whole although blocks were requested
_FIELDS = {"labels": "labels", "split": "split", "weights": "sample_weight"}  # of `Predictions`, by the array's name
_LABEL_KINDS: dict[str, LabelKind] = {"b": "booleans", "U": "text"}
_DEFLATE_RATIO = 1032  # the largest expansion of deflate: 258 bytes from 2 bits


class _Member(NamedTuple):
    """An array of the archive; its stream is at the first value."""

    name: str
    stream: IO[bytes]
    dtype: np.dtype
    shape: tuple[int, ...]
    fortran: bool


@contextmanager
def open_reader(path: Path, request: Request) -> Iterator[OpenFile]:
    """Open an npz file."""
    with _open(path, request.choice) as opened:
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
        class_names = None
        if names is not None:
            texts = checks.check_text(_take(names, names.shape[0], place), names.name, place, longest=NAME_LENGTH)
            class_names = tuple(str(name) for name in texts)
        width = math.prod(scores.shape[1:])
        classes = settle_multilabel(
            columns, width, request.choice, stored_names=class_names, several=several
        ) or settle_classes(
            columns,
            checks.count_classes(scores.shape),
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
            columns.input, classes, rows, FileSize(rows, width), place, blocks, columns.describe(request.choice)
        )


def read_labels(path: Path, choice: ColumnChoice) -> Iterator[RawLabels]:
    """Read only the labels; nothing if there are none."""
    with _open(path, choice) as opened:
        label = opened.columns.label
        if label is None:
            return
        labels = opened.member(label)
        if len(labels.shape) == 1:
            place = opened.place
            step = block_rows(1)
            for start in range(0, labels.shape[0], step):
                yield _raw_labels(_take(labels, min(step, labels.shape[0] - start), place), place)
                place = replace(place, first_row=place.first_row + step)


class _Archive(NamedTuple):
    """An open archive, the use of its arrays, and where it is."""

    columns: header.Header
    place: Place
    infos: dict[str, zipfile.ZipInfo]
    archive: zipfile.ZipFile
    stack: ExitStack
    size: int

    def member(self, name: str) -> _Member:
        """Open an array; those that are not used are never opened."""
        info = self.infos[name]
        _check_size(info, name, self.size, self.place)
        with self.place.parsing(name):
            stream = self.stack.enter_context(self.archive.open(info))
        return _member(name, stream, info.file_size, self.place)


@contextmanager
def _open(path: Path, choice: ColumnChoice) -> Iterator[_Archive]:
    place = Place(path, sample_weight="weights")
    place.check_regular()
    with ExitStack() as stack:
        file = stack.enter_context(open(path, "rb"))
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            message = "the file is empty"
            raise place.error(message)
        with place.parsing("the zip archive"):
            archive = stack.enter_context(zipfile.ZipFile(file))
        infos = [(info.filename.removesuffix(".npy"), info) for info in archive.infolist()]
        columns = header.parse_array_names([name for name, _ in infos], choice, place)
        place = replace(place, labels=columns.label or "labels", scores=columns.columns[0])
        yield _Archive(columns, place, dict(infos), archive, stack, size)


def _check_size(info: zipfile.ZipInfo, name: str, size: int, place: Place) -> None:
    if info.flag_bits & 1:
        message = "is encrypted"
        raise place.error(message, column=name)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        message = f"must be stored or deflated, got compression method {info.compress_type}"
        raise place.error(message, column=name)
    most = size * (1 if info.compress_type == zipfile.ZIP_STORED else _DEFLATE_RATIO)
    if info.file_size > most or info.compress_size > size:
        message = f"claims {info.file_size} bytes, more than the file can contain"
        raise place.error(message, column=name)


def _member(name: str, stream: IO[bytes], size: int, place: Place) -> _Member:
    with place.parsing(f"the header of {name}"), warnings.catch_warnings():
        warnings.simplefilter("error")  # NumPy warns about headers that it has to repair: NumPy did not write them
        version = npy.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = npy.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, fortran, dtype = npy.read_array_header_2_0(stream)
        else:
            message = f"must have npy format 1.0 or 2.0, got {version}"
            raise place.error(message, column=name)
        left = size - stream.tell()
    if dtype.hasobject:
        message = "is an array of Python objects, stored as a pickle: pickles are never loaded"
        raise place.error(message, column=name)
    if dtype.names is not None or dtype.subdtype is not None or dtype.itemsize == 0:
        message = f"must have a plain dtype, got {dtype}"
        raise place.error(message, column=name)
    if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize != left:
        message = f"shape {shape} and dtype {dtype} do not match the {left} bytes of data: the file is damaged"
        raise place.error(message, column=name)
    return _Member(name, stream, dtype, shape, fortran and len(shape) == 2)


def _check_forms(
    scores: _Member,
    members: dict[str, _Member],
    names: _Member | None,
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
    scores: _Member, members: dict[str, _Member], coding: LabelCoding | None, step: int, place: Place
) -> Iterator[Columns]:
    rows = scores.shape[0]
    for start in range(0, rows, step):
        count = min(step, rows - start)
        taken = {use: _take(member, count, place) for use, member in members.items()}
        labels = taken.get("labels")
        if labels is not None and labels.ndim == 1:
            labels = decode_labels(_raw_labels(labels, place), coding, place.labels, place)
        yield Columns(_take(scores, count, place), labels, taken.get("split"), taken.get("weights"))
        place = replace(place, first_row=place.first_row + count)


def _raw_labels(labels: np.ndarray, place: Place) -> RawLabels:
    if labels.dtype.kind != "U":
        return labels
    texts = checks.check_text(labels, place.labels, place, longest=NAME_LENGTH)
    values, codes = np.unique(texts, return_inverse=True)
    return CodedText([str(value) for value in values], codes)


def _take(member: _Member, rows: int, place: Place) -> np.ndarray:
    """Read the next rows of a stream; at its end, the checksum (CRC-32) of the whole stream is verified."""
    shape = (rows, *member.shape[1:])
    size = math.prod(shape) * member.dtype.itemsize
    buffer = bytearray()  # grows with the data: a deflated array may claim a thousand times the size of the file
    while len(buffer) < size:
        with place.parsing(member.name):
            piece = member.stream.read(min(_PIECE, size - len(buffer)))
        if not piece:
            message = "ends too early: the file is truncated"
            raise place.error(message, column=member.name)
        buffer += piece
    array = np.frombuffer(buffer, dtype=member.dtype)
    return np.ascontiguousarray(array.reshape(shape, order="F" if member.fortran else "C"))


class _Spool:
    """Values of one array on disk; its header needs the number of rows, which is known only at the end."""

    def __init__(self, file: IO[bytes], row: tuple[int, ...]) -> None:
        self._file, self._row = file, row
        # rows and dtype of each block: text is as wide as its longest value
        self._written: list[tuple[int, np.dtype]] = []

    def add(self, array: np.ndarray) -> None:
        self._file.write(_bytes(array))
        self._written.append((len(array), array.dtype))

    def copy_to(self, target: IO[bytes]) -> None:
        dtype = max((dtype for _, dtype in self._written), key=lambda dtype: dtype.itemsize)
        shape = (sum(rows for rows, _ in self._written), *self._row)
        description = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(target, description)
        self._file.seek(0)
        for rows, narrow in self._written:
            left = rows * math.prod(self._row)
            while left:
                count = min(left, max(1, _PIECE // narrow.itemsize))
                piece = np.frombuffer(self._file.read(count * narrow.itemsize), dtype=narrow)
                target.write(_bytes(piece.astype(dtype, copy=False)))
                left -= count


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


@contextmanager
def open_writer(file: BinaryIO, path: Path, first: Predictions) -> Iterator[Callable[[Predictions], None]]:
    """Write an npz file: arrays grow in unnamed files in the same folder and are archived at the end."""
    if first.carried is not None and first.carried.others:
        message = f"{path}: npz cannot hold other columns; not written: {describe_names(first.carried.others)}"
        warnings.warn(message, PredictionsWarning, stacklevel=1)
    rows: dict[str, tuple[int, ...]] = {first.input: first.scores.shape[1:]}
    arrays = {name: getattr(first, field) for name, field in _FIELDS.items()}
    rows.update({name: array.shape[1:] for name, array in arrays.items() if array is not None})
    with ExitStack() as stack:
        spools = {
            name: _Spool(stack.enter_context(tempfile.TemporaryFile(dir=path.parent)), row)
            for name, row in rows.items()
        }

        def write(block: Predictions) -> None:
            for name, spool in spools.items():
                spool.add(block.scores if name == block.input else getattr(block, _FIELDS[name]))

        yield write
        with zipfile.ZipFile(file, "w") as archive:
            for name, spool in spools.items():
                with _entry(archive, name) as entry:
                    spool.copy_to(entry)
            if first.class_names is not None:
                with _entry(archive, "class_names") as entry:
                    npy.write_array(entry, np.array(first.class_names), allow_pickle=False)


def _entry(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    # a fixed date (1980, the first in zip), so that the same predictions give the same bytes
    return archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True)
