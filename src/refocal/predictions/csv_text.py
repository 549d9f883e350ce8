"""A csv file as text: its separator, its header, its first row, and where its rows end."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from refocal.predictions import arrow, header
from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.errors import Place

DECIMALS = re.compile(r"[-+]?[0-9]*([.,])[0-9]+(?:[eE][-+]?[0-9]+)?")
_ROWS_TO_FIND_POINT = 100
_LONGEST_LINE = 1 << 25  # bytes: a million columns
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_BREAKS = b"\r\n"
_TAIL = 1 << 12
BLOCK_BYTES = 1 << 20  # pyarrow reads up to 32 blocks ahead


@dataclass(frozen=True)
class CsvText:
    """An open csv file: its header, and its first row.

    Attributes:
        file: What to read it from, without empty lines at the end.
        separator: What separates columns.
        point: The decimal point of numbers, which may be a comma unless it separates columns.
        names: All columns.
        columns: Their use.
        place: The file, for errors.
        first: The values of the first row, by column.
        row_bytes: The length of the first row.
        block_size: How many bytes to read at once.
    """

    file: BinaryIO
    separator: str
    point: str
    names: list[str]
    columns: header.Header
    place: Place
    first: dict[str, str]
    row_bytes: int
    block_size: int

    @property
    def guesses(self) -> tuple[str, ...]:
        """What was guessed about the separator and the decimal point."""
        if self.separator == ",":
            return ()
        commas = ("numbers have decimal commas",) if self.point == "," else ()
        return (f"columns are separated by {_SEPARATORS[self.separator]}", *commas)

    @property
    def has_label_lists(self) -> bool:
        """Whether labels are lists with a value for each class."""
        return self.columns.label is not None and self.first.get(self.columns.label, "").lstrip().startswith("[")

    def column_types(self) -> dict[str, Any]:
        """Return the type of each column: other columns are text, and so are labels, which may be words."""
        import pyarrow as pa

        numbers = {*(self.columns.columns if self.columns.per_class else ()), self.columns.weight}
        return {name: pa.float64() if name in numbers else pa.string() for name in self.names}


@contextmanager
def open_text(path: Path, choice: ColumnChoice) -> Iterator[CsvText]:
    """Open a csv file and read its header and its first row."""
    arrow.require_arrow()
    place = Place(path, labels="label", sample_weight="weight", has_lines=True)
    place.check_regular()
    with open(path, "rb") as file:
        first = file.readline(_LONGEST_LINE)
        head = re.split(rb"[\r\n]", first, maxsplit=1)[0]
        line = _decode(head.removeprefix(codecs.BOM_UTF8), place)
        with place.parsing("the header"):
            separator, names = _parse_header(line)
        if not names:
            message = "the file is empty: line 1 must be a header with the names of the columns"
            raise place.error(message)
        columns = header.parse_column_names(names, choice, place)
        per_class = columns.columns if columns.per_class else ()
        place = replace(
            place,
            labels=columns.label or "label",
            columns=per_class,
            answers=columns.answers,
            scores=columns.columns[0],
            has_lines=not columns.others,  # they may hold text of several lines
        )
        second = file.readline(_LONGEST_LINE)
        while columns.others and second.count(b'"') % 2 and len(second) < _LONGEST_LINE:
            more = file.readline(_LONGEST_LINE)
            second += more
            if not more:
                break
        sample = dict(zip(names, _split(second, separator), strict=False))
        # a block must hold a row: numbers are not much longer than their names, and lists have about the same length
        block_size = max(BLOCK_BYTES, 4 * len(first), 4 * len(second))
        point = "." if separator == "," else _find_point(second, file, separator, names, columns)
        yield CsvText(_trim(file, head), separator, point, names, columns, place, sample, len(second), block_size)


def _decode(line: bytes, place: Place) -> str:
    """Decode a header; spreadsheets may write other encodings than UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        is_wide = line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        found = "UTF-16" if is_wide else f"byte {line[error.start]:#04x}"
        message = f"the header must be UTF-8 text, got {found}: save the file as csv in UTF-8"
        raise place.error(message) from error


def _parse_header(line: str) -> tuple[str, list[str]]:
    """Find the first separator that divides a header, and its names."""
    for separator in _SEPARATORS:
        try:
            names = next(csv.reader([line], delimiter=separator, strict=True), [])
        except csv.Error:  # quotes beside another separator
            continue
        if len(names) > 1:
            return separator, names
    return ",", next(csv.reader([line], strict=True), [])


def _split(line: bytes, separator: str) -> list[str]:
    """Split a row of any length, which need not be valid; the module csv limits the length of a value."""
    text = line.decode(errors="replace")
    text = text.rstrip("\r\n") if '"' in text else re.split(r"[\r\n]", text, maxsplit=1)[0]
    values = re.finditer(rf'(?:^|[{separator}])(?:"((?:[^"]|"")*)"|([^{separator}]*))', text)
    return [(found[1] or found[2] or "").replace('""', '"') for found in values]


def _find_point(line: bytes, file: BinaryIO, separator: str, names: list[str], columns: header.Header) -> str:
    """Find the decimal point: that of the first score or weight with decimals, in the first rows."""
    numbers = [name for name in (*columns.columns, columns.weight) if name is not None]
    for _ in range(_ROWS_TO_FIND_POINT):
        values = dict(zip(names, _split(line, separator), strict=False))
        for name in numbers:
            if found := DECIMALS.fullmatch(values.get(name, "").strip()):
                return found[1]
        line = file.readline(BLOCK_BYTES)
    return "."


def _trim(file: BinaryIO, head: bytes) -> BinaryIO:
    """Return a file at its beginning, without empty lines at the end. A header alone is a line, as pyarrow needs it."""
    size = end = file.seek(0, io.SEEK_END)
    left = b""
    while end and not left:
        start = max(0, end - _TAIL)
        file.seek(start)
        left = file.read(end - start).rstrip(_BREAKS)
        end = start + len(left)
    if end <= len(head):
        return io.BytesIO(head + b"\n")
    file.seek(end)
    is_plain = size - end <= len(_BREAKS) and file.read() in (b"", b"\r", b"\n", _BREAKS)
    file.seek(0)
    return file if is_plain else io.BufferedReader(_Part(file, end))


class _Part(io.RawIOBase):
    """The first bytes of a file."""

    def __init__(self, file: BinaryIO, end: int) -> None:
        self._file, self._left = file, end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._file.read(min(len(buffer), self._left))
        buffer[: len(piece)] = piece
        self._left -= len(piece)
        return len(piece)
