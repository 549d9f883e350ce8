"""csv files, read and written with pyarrow; each row is one line, so that errors can give its number."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from refocal._check import Input
from refocal.predictions import arrow, checks, header
from refocal.predictions.checks import Columns
from refocal.predictions.errors import Place, PredictionsError
from refocal.predictions.predictions import Predictions
from refocal.predictions.protocol import FileSize, OpenFile

_LONGEST_LINE = 1 << 25  # bytes: a million columns
_BLOCK_BYTES = 1 << 20  # pyarrow reads up to 32 blocks ahead


@contextmanager
def open_reader(path: Path, *, whole: bool) -> Iterator[OpenFile]:  # noqa: ARG001 (always reads block by block)
    """Open a csv file."""
    arrow.require_arrow()
    place = Place(path, labels="label", sample_weight="weight", has_lines=True)
    place.check_regular()
    with open(path, "rb") as file:
        first = file.readline(_LONGEST_LINE)
        names = _names(first, place)
        columns = header.parse_column_names(names, place)
        place = replace(place, numbered=columns.numbered)
        # a block must hold a row: numbers are not much longer than their names, and lists have about the same length
        second = file.readline(_LONGEST_LINE)
        block_size = max(_BLOCK_BYTES, 4 * len(first), 4 * len(second))
        about = os.fstat(file.fileno()).st_size // max(1, len(second))
        size = FileSize(about, len(columns.columns) if columns.numbered else 1 + second.count(b","))
        file.seek(0)
        yield OpenFile(
            columns.input, None, None, size, place, _blocks(file, names, columns, place, block_size=block_size)
        )


def _names(line: bytes, place: Place) -> list[str]:
    with place.parsing("the header"):
        text = re.split(rb"[\r\n]", line.removeprefix(b"\xef\xbb\xbf"), maxsplit=1)[0].decode()
        names = next(csv.reader([text], strict=True), [])
    if not names:
        message = "the file is empty: line 1 must be a header with the names of the columns"
        raise place.error(message)
    return names


def _blocks(
    file: BinaryIO, names: list[str], columns: header.Header, place: Place, *, block_size: int
) -> Iterator[Columns]:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    # one column of scores may hold numbers or lists, depending on its first value
    texts = {"split", columns.input}
    types = {name: pa.string() if name in texts else pa.float64() for name in names}
    # one thread: only then does pyarrow count rows and report them in its messages
    reading = arrow_csv.ReadOptions(use_threads=False, block_size=block_size, skip_rows=1, column_names=names)
    parsing = arrow_csv.ParseOptions(ignore_empty_lines=False)
    converting = arrow_csv.ConvertOptions(column_types=types, null_values=[], strings_can_be_null=False)
    batches: Iterator[Any] | None = None
    lists: bool | None = None
    while True:
        try:
            with place.parsing("the text"):
                if batches is None:
                    batches = arrow_csv.open_csv(file, reading, parsing, converting)
                batch = next(batches, None)
        except PredictionsError as error:
            raise _with_line(error, names, place) from error.__cause__
        if batch is None:
            return
        if not batch.num_rows:
            continue
        if not columns.numbered:
            if lists is None:
                lists = batch.column(columns.input)[0].as_py().lstrip().startswith("[")
            index = batch.schema.get_field_index(columns.input)
            batch = batch.set_column(
                index, columns.input, _parse(batch.column(index), columns.input, place, lists=lists)
            )
        yield arrow.from_arrow(batch, columns, place)
        place = replace(place, first_row=place.first_row + batch.num_rows)


_ARROW_MESSAGE = re.compile(r"(?:In CSV column #(\d+): |CSV parse error: )Row #(\d+): (.*)", re.DOTALL)


def _with_line(error: PredictionsError, names: list[str], place: Place) -> PredictionsError:
    """Add the place to an error if the message of pyarrow gives the line and column."""
    found = _ARROW_MESSAGE.search(str(error.__cause__))
    if found is None:
        return error
    column, line, reason = found.groups()
    reason = reason[:200].replace("CSV conversion error to double: invalid value", "must be a number, got")
    reason = reason.replace("CSV conversion error to string: invalid UTF8 data", "must be UTF-8 text")
    at = replace(place, first_row=int(line) - 2)
    return at.error(reason, column=names[int(column)] if column else None, row=0)


def _parse(texts: Any, input: Input, place: Place, *, lists: bool) -> Any:
    """Parse texts such as "[0.5, 0.25, 0.25]" to numbers or lists of numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not lists:
        return _floats(texts, np.arange(len(texts) + 1), input, place)
    form = pc.match_substring_regex(texts, r"^\s*\[[^\[\]]*\]\s*$").to_numpy(zero_copy_only=False)
    if not form.all():
        row = int(np.argmin(form))
        message = f"must be a list [a, b, ...], got {texts[row].as_py()[:50]!r}"
        raise place.error(message, column=input, row=row)
    parts = pc.split_pattern(pc.utf8_trim(texts, " \t[]"), ",")
    return pa.ListArray.from_arrays(parts.offsets, _floats(parts.flatten(), parts.offsets.to_numpy(), input, place))


def _floats(words: Any, offsets: np.ndarray, input: Input, place: Place) -> Any:
    """Convert words to float64; row r has the words from offsets[r] to offsets[r + 1]."""
    import pyarrow as pa
    import pyarrow.compute as pc

    words = pc.utf8_trim_whitespace(words)
    try:
        return words.cast(pa.float64())
    except pa.ArrowInvalid:
        first, end = 0, len(words)
    while end - first > 1:  # the first word that is not a number is in words[first:end]
        middle = (first + end) // 2
        try:
            words[first:middle].cast(pa.float64())
            first = middle
        except pa.ArrowInvalid:
            end = middle
    row = int(np.searchsorted(offsets, first, side="right")) - 1
    message = f"must be a number, got {words[first].as_py()[:50]!r}"
    raise place.error(message, column=input, row=row)


@contextmanager
def open_writer(file: BinaryIO, path: Path, first: Predictions) -> Iterator[Callable[[Predictions], None]]:
    """Write a csv file with one column per class; numbers are the shortest that give the same float."""
    arrow.require_arrow()
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    place = Place(path, labels="label", sample_weight="weight", numbered=first.scores.ndim == 2, has_lines=True)
    if first.class_names is not None:
        message = "a csv file cannot store class names: leave them out, or write npz or parquet"
        raise place.error(message)
    names = list(_table(pa, first, place).schema.names)
    file.write((",".join(names) + "\n").encode())
    options = arrow_csv.WriteOptions(include_header=False, quoting_style="needed")
    with arrow_csv.CSVWriter(file, _table(pa, first, place).schema, write_options=options) as writer:

        def write(block: Predictions) -> None:
            nonlocal place
            writer.write_table(_table(pa, block, place))
            place = replace(place, first_row=place.first_row + len(block))

        yield write


def _table(pa: Any, block: Predictions, place: Place) -> Any:
    scores = block.scores
    if scores.dtype == np.float16:
        # text has no dtype: the reader, which uses float64, must accept the written file
        try:
            scores = checks.check_columns(Columns(scores.astype(np.float64)), block.input, place).scores
        except PredictionsError as error:
            message = f"{error}; csv files are read as float64: normalize in float64, or write npz or parquet"
            raise PredictionsError(message) from None
    columns = arrow.optional_columns(block)
    if scores.ndim == 1:
        return pa.table({block.input: pa.array(scores), **columns})
    classes = {place.name_scores(block.input, k): pa.array(scores[:, k]) for k in range(scores.shape[1])}
    return pa.table({**classes, **columns})
