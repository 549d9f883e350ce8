"""csv files, read and written with pyarrow.

Each row is one line, so that errors can give its number. Only text of columns that are not used may have several lines.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from refocal.predictions import arrow, checks, header
from refocal.predictions.checks import Columns
from refocal.predictions.classes import settle_classes, settle_multilabel
from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.errors import Place, PredictionsError
from refocal.predictions.header import name_outputs
from refocal.predictions.labels import LabelCoding, LabelKind, RawLabels
from refocal.predictions.names import name_option
from refocal.predictions.predictions import Predictions
from refocal.predictions.protocol import FileSize, OpenFile, Request

_LONGEST_LINE = 1 << 25  # bytes: a million columns
_BLOCK_BYTES = 1 << 20  # pyarrow reads up to 32 blocks ahead
_VALUE = re.compile(r'(?:^|,)(?:"((?:[^"]|"")*)"|([^,]*))')
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


@contextmanager
def open_reader(path: Path, request: Request) -> Iterator[OpenFile]:
    """Open a csv file; it is always read block by block."""
    with _open(path, request.choice) as (file, text):
        columns, place = text.columns, text.place
        scores = len(columns.columns) if columns.per_class else 1 + text.sample(columns.columns[0]).count(",")
        about = os.fstat(file.fileno()).st_size // max(1, text.row_bytes)
        several = bool(columns.answers) or text.has_label_lists
        kind = None if several or columns.label is None else text.find_label_kind(columns.label)
        given = request.choice.classes
        classes = settle_multilabel(columns, scores, request.choice, several=several) or settle_classes(
            columns, max(2, scores), kind, request.scan, place, given=given
        )
        blocks = _blocks(file, text, classes.coding, carry=request.carry)
        yield OpenFile(columns.input, classes, None, FileSize(about, scores), place, blocks, columns.guesses)


def read_labels(path: Path, choice: ColumnChoice) -> Iterator[RawLabels]:
    """Read only the labels; nothing if there are none."""
    with _open(path, choice) as (file, text):
        label = text.columns.label
        if label is not None and not text.has_label_lists:
            for batch, place in _batches(file, text, [label], text.column_types()):
                yield arrow.read_labels(batch.column(0), label, place)


@dataclass(frozen=True)
class _Text:
    """The header of a csv file and its first row."""

    names: list[str]
    columns: header.Header
    place: Place
    first: dict[str, str]
    row_bytes: int
    block_size: int

    def sample(self, column: str) -> str:
        """Return the value of a column in the first row."""
        return self.first.get(column, "")

    @property
    def has_label_lists(self) -> bool:
        """Whether labels are lists with a value for each class."""
        return self.columns.label is not None and self.sample(self.columns.label).lstrip().startswith("[")

    def find_label_kind(self, column: str) -> LabelKind:
        """Say what a column of labels holds, by its first value."""
        label = self.sample(column).strip()
        if label.lower() in ("false", "true"):
            return "booleans"
        return "numbers" if not label or _NUMBER.fullmatch(label) else "text"

    def column_types(self) -> dict[str, Any]:
        """Return the type of each column: other columns are text."""
        import pyarrow as pa

        numbers = {*(self.columns.columns if self.columns.per_class else ()), self.columns.weight}
        labels = (self.columns.label, *self.columns.answers)
        numbers |= {name for name in labels if name is not None and self.find_label_kind(name) == "numbers"}
        return {name: pa.float64() if name in numbers else pa.string() for name in self.names}


@contextmanager
def _open(path: Path, choice: ColumnChoice) -> Iterator[tuple[BinaryIO, _Text]]:
    arrow.require_arrow()
    place = Place(path, labels="label", sample_weight="weight", has_lines=True)
    place.check_regular()
    with open(path, "rb") as file:
        first = file.readline(_LONGEST_LINE)
        names = _fields(first, place)
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
        sample = dict(zip(names, _split(second), strict=False))
        # a block must hold a row: numbers are not much longer than their names, and lists have about the same length
        block_size = max(_BLOCK_BYTES, 4 * len(first), 4 * len(second))
        file.seek(0)
        yield file, _Text(names, columns, place, sample, len(second), block_size)


def _fields(line: bytes, place: Place) -> list[str]:
    with place.parsing("the header"):
        text = re.split(rb"[\r\n]", line.removeprefix(b"\xef\xbb\xbf"), maxsplit=1)[0].decode()
        return next(csv.reader([text], strict=True), [])


def _split(line: bytes) -> list[str]:
    """Split a row of any length, which need not be valid; the module csv limits the length of a value."""
    text = line.decode(errors="replace")
    text = text.rstrip("\r\n") if '"' in text else re.split(r"[\r\n]", text, maxsplit=1)[0]
    return [(found[1] or found[2] or "").replace('""', '"') for found in _VALUE.finditer(text)]


def _blocks(file: BinaryIO, text: _Text, coding: LabelCoding | None, *, carry: bool) -> Iterator[Columns]:
    import pyarrow as pa

    columns = text.columns
    used = columns.used
    wanted = {*used, *(columns.others if carry else ())}
    types = text.column_types()
    # carried columns keep their text, so their numbers are parsed here
    parsed = [name for name in used[len(columns.columns) :] if carry and types[name] == pa.float64()]
    types |= dict.fromkeys(parsed, pa.string())
    lists: bool | None = None
    for read, place in _batches(file, text, [name for name in text.names if name in wanted], types):
        batch = read
        if not columns.per_class:
            name = columns.columns[0]
            if lists is None:
                lists = batch.column(name)[0].as_py().lstrip().startswith("[")
            batch = _set(batch, name, _parse(batch.column(name), name, place, lists=lists))
        if text.has_label_lists:
            name = str(columns.label)
            batch = _set(batch, name, _parse(batch.column(name), name, place, lists=True))
        for name in parsed:
            batch = _set(batch, name, _parse(batch.column(name), name, place, lists=False))
        found = arrow.from_arrow(batch, columns, coding, place)
        yield found._replace(carried=arrow.carry(read, columns)) if carry else found


def _set(batch: Any, name: str, column: Any) -> Any:
    return batch.set_column(batch.schema.get_field_index(name), name, column)


def _batches(file: BinaryIO, text: _Text, wanted: list[str], types: dict[str, Any]) -> Iterator[tuple[Any, Place]]:
    """Read batches of some columns, each with its place."""
    from pyarrow import csv as arrow_csv

    place = text.place
    # one thread: only then does pyarrow count rows and report them in its messages
    reading = arrow_csv.ReadOptions(use_threads=False, block_size=text.block_size, skip_rows=1, column_names=text.names)
    parsing = arrow_csv.ParseOptions(ignore_empty_lines=False, newlines_in_values=bool(text.columns.others))
    converting = arrow_csv.ConvertOptions(
        column_types=types, null_values=[], strings_can_be_null=False, include_columns=wanted
    )
    batches: Iterator[Any] | None = None
    while True:
        try:
            with place.parsing("the text"):
                if batches is None:
                    batches = arrow_csv.open_csv(file, reading, parsing, converting)
                batch = next(batches, None)
        except PredictionsError as error:
            raise _with_line(error, text.names, place) from error.__cause__
        if batch is None:
            return
        if batch.num_rows:
            yield batch, place
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


def _parse(texts: Any, column: str, place: Place, *, lists: bool) -> Any:
    """Parse texts such as "[0.5, 0.25, 0.25]" to numbers or lists of numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not lists:
        return _floats(texts, np.arange(len(texts) + 1), column, place)
    form = pc.match_substring_regex(texts, r"^\s*\[[^\[\]]*\]\s*$").to_numpy(zero_copy_only=False)
    if not form.all():
        row = int(np.argmin(form))
        message = f"must be a list [a, b, ...], got {texts[row].as_py()[:50]!r}"
        raise place.error(message, column=column, row=row)
    parts = pc.split_pattern(pc.utf8_trim(texts, " \t[]"), ",")
    return pa.ListArray.from_arrays(parts.offsets, _floats(parts.flatten(), parts.offsets.to_numpy(), column, place))


def _floats(words: Any, offsets: np.ndarray, column: str, place: Place) -> Any:
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
    raise place.error(message, column=column, row=row)


@contextmanager
def open_writer(file: BinaryIO, path: Path, first: Predictions) -> Iterator[Callable[[Predictions], None]]:
    """Write a csv file with one column per class; numbers are the shortest that give the same float."""
    arrow.require_arrow()
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    multilabel = first.task == "multilabel"
    shape, names = first.scores.shape, first.class_names
    columns = name_outputs(shape[1], names, first.input, multilabel=multilabel) if len(shape) == 2 else ()
    place = Place(path, labels="label", sample_weight="weight", columns=tuple(columns), has_lines=True)
    schema = _table(pa, first, place).schema
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(schema.names)
    file.write(line.getvalue().encode())
    options = arrow_csv.WriteOptions(include_header=False, quoting_style="needed")
    with arrow_csv.CSVWriter(file, schema, write_options=options) as writer:

        def write(block: Predictions) -> None:
            nonlocal place
            writer.write_table(_table(pa, block, place))
            place = replace(place, first_row=place.first_row + len(block))

        yield write


def _table(pa: Any, block: Predictions, place: Place) -> Any:
    scores, multilabel = block.scores, block.task == "multilabel"
    if scores.dtype == np.float16:
        # text has no dtype: the reader, which uses float64, must accept the written file
        try:
            whole = Columns(scores.astype(np.float64))
            scores = checks.check_columns(whole, block.input, place, multilabel=multilabel).scores
        except PredictionsError as error:
            message = f"{error}; csv files are read as float64: normalize in float64, or write npz or parquet"
            raise PredictionsError(message) from None
    if block.carried is not None:
        carried = arrow.carried_columns(block.carried)
        if multilabel and block.carried.label and arrow.is_list(carried[block.carried.label].type):
            del carried[block.carried.label]
            carried |= {name: arrow.to_arrow(column) for name, column in arrow.split_answers(block).items()}
        columns = {name: _flatten(column, name, place) for name, column in carried.items()}
    else:
        columns = arrow.optional_columns(block, per_class=True)
    label = "label" if block.carried is None else block.carried.label
    names = None if multilabel or label is None else block.class_names
    # labels in words are labels of these classes in any file; numbers could be taken for names that are numbers
    if names is not None and block.labels is not None and (block.carried is None or all(map(str.isdecimal, names))):
        columns[str(label)] = pa.array(np.array(names)[block.labels])
    if block.carried is not None:
        return pa.table(arrow.add_scores(columns, block, scores, place))
    if scores.ndim == 1 and block.class_names is None:
        return pa.table({block.input: pa.array(scores), **columns})
    return pa.table({**arrow.add_scores({}, block, scores, place), **columns})


def _flatten(column: Any, name: str, place: Place) -> Any:
    """Prepare a carried column for text; lists and records have none."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    if pa.types.is_nested(column.type):
        message = f"column {name!r} holds {column.type}, which csv cannot: leave it out with {name_option('ignore')}"
        raise place.error(message)
    return column
