"""The arrays of an npz file: streams of values in a zip archive, never pickles.

A header alone never causes an allocation: its sizes must match those of the archive, and these must be possible for
the size of the file.
"""

from __future__ import annotations

import math
import os
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from refocal.predictions import checks, header
from refocal.predictions.checks import NAME_LENGTH
from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.errors import Place

_PIECE = 1 << 20
_DEFLATE_RATIO = 1032  # the largest expansion of deflate: 258 bytes from 2 bits


class Member(NamedTuple):
    """An array of the archive; its stream is at the first value."""

    name: str
    stream: IO[bytes]
    dtype: np.dtype
    shape: tuple[int, ...]
    fortran: bool


class Archive(NamedTuple):
    """An open archive, the use of its arrays, and where it is."""

    columns: header.Header
    place: Place
    infos: dict[str, zipfile.ZipInfo]
    archive: zipfile.ZipFile
    stack: ExitStack
    size: int

    def member(self, name: str) -> Member:
        """Open an array; those that are not used are never opened."""
        info = self.infos[name]
        _check_size(info, name, self.size, self.place)
        with self.place.parsing(name):
            stream = self.stack.enter_context(self.archive.open(info))
        return _member(name, stream, info.file_size, self.place)


@contextmanager
def open_archive(path: Path, choice: ColumnChoice) -> Iterator[Archive]:
    """Open an npz file; the names of its arrays say what they are used for."""
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
        yield Archive(columns, place, dict(infos), archive, stack, size)


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


def _member(name: str, stream: IO[bytes], size: int, place: Place) -> Member:
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
        message = "is an array of Python objects, stored as a pickle: pickles are never loaded; save numbers or text"
        raise place.error(message, column=name)
    if dtype.names is not None or dtype.subdtype is not None or dtype.itemsize == 0:
        message = f"must have a plain dtype, got {dtype}"
        raise place.error(message, column=name)
    if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize != left:
        message = f"shape {shape} and dtype {dtype} do not match the {left} bytes of data: the file is damaged"
        raise place.error(message, column=name)
    return Member(name, stream, dtype, shape, fortran and len(shape) > 1)


def take(member: Member, rows: int, place: Place) -> np.ndarray:
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


def read_names(member: Member, place: Place) -> tuple[str, ...]:
    """Read the names of the classes."""
    texts = checks.check_text(take(member, member.shape[0], place), member.name, place, longest=NAME_LENGTH)
    return tuple(str(name) for name in texts)


class Spool:
    """Values of one array on disk; its header needs the number of rows, which is known only at the end."""

    def __init__(self, file: IO[bytes], row: tuple[int, ...]) -> None:
        self._file, self._row = file, row
        # rows and dtype of each block: text is as wide as its longest value, and files may have other kinds of labels
        self._written: list[tuple[int, np.dtype]] = []

    def add(self, array: np.ndarray) -> None:
        """Append rows."""
        self._file.write(_bytes(array))
        self._written.append((len(array), array.dtype))

    def copy_to(self, target: IO[bytes]) -> None:
        """Write header and values to an entry of an archive."""
        dtype = np.result_type(*(dtype for _, dtype in self._written))
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
def archive_arrays(
    file: BinaryIO, folder: Path, rows: Mapping[str, tuple[int, ...]], *, class_names: Sequence[str] | None
) -> Iterator[dict[str, Spool]]:
    """Write an npz file whose arrays grow: in unnamed files in the same folder, which are archived at the end.

    Args:
        file: The npz file.
        folder: Its folder.
        rows: The shape of one row of each array, by the array's name.
        class_names: The names of the classes, or None.
    """
    with ExitStack() as stack:
        spools = {
            name: Spool(stack.enter_context(tempfile.TemporaryFile(dir=folder)), row) for name, row in rows.items()
        }
        yield spools
        with zipfile.ZipFile(file, "w") as archive:
            for name, spool in spools.items():
                with _entry(archive, name) as entry:
                    spool.copy_to(entry)
            if class_names is not None:
                with _entry(archive, "class_names") as entry:
                    npy.write_array(entry, np.array(class_names), allow_pickle=False)


def _entry(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    # a fixed date (1980, the first in zip), so that the same predictions give the same bytes
    return archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True)
