"""csv files, read and written with pyarrow.

Each row is one line, so that errors can give its number. Only text of columns that are not used may have several lines.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from refocal.predictions import arrow, checks
from refocal.predictions.checks import Columns
from refocal.predictions.classes import settle_classes, settle_multilabel
from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.csv_text import DECIMALS, CsvText, open_text
from refocal.predictions.errors import Place, PredictionsError
from refocal.predictions.header import name_outputs
from refocal.predictions.labels import LabelCoding, LabelKind, RawLabels
from refocal.predictions.names import name_option
from refocal.predictions.predictions import Predictions
from refocal.predictions.protocol import FileSize, OpenFile, Request


@contextmanager
def open_reader(path: Path, request: Request) -> Iterator[OpenFile]:
    """Open a csv file; it is always read block by block."""
    with open_text(path, request.choice) as text:
        columns, place = text.columns, text.place
        lists = text.first.get(columns.columns[0], "")
        scores = len(columns.columns) if columns.per_class else 1 + (lists.count(",") if "[" in lists else 0)
        about = path.stat().st_size // max(1, text.row_bytes)
        several = bool(columns.answers) or text.has_label_lists
        kind: LabelKind | None = None if several or columns.label is None or not request.labels else "text"
        given = request.choice.classes
        classes = settle_multilabel(columns, scores, request.choice, several=several) or settle_classes(
            columns, scores, kind, request.scan, place, given=given
        )
        blocks = _blocks(text, classes.coding, request)
        guesses = (*text.guesses, *columns.describe(request.choice, request.carry, width=scores))
        yield OpenFile(columns.input, classes, None, FileSize(about, scores), place, blocks, guesses)


def read_labels(path: Path, choice: ColumnChoice) -> Iterator[RawLabels]:
    """Read only the labels; nothing if there are none."""
    with open_text(path, choice) as text:
        label = text.columns.label
        if label is not None and not text.has_label_lists:
            for batch, place in _batches(text, [label], text.column_types()):
                yield arrow.read_labels(batch.column(0), label, place)


def _blocks(text: CsvText, coding: LabelCoding | None, request: Request) -> Iterator[Columns]:
    import pyarrow as pa

    columns = text.columns
    wanted = {*columns.used, *columns.find_carried(request.carry)}
    types = text.column_types()
    # carried columns keep their text, so their numbers are parsed here
    parsed = [columns.weight] if request.carry and columns.weight is not None else []
    types |= dict.fromkeys(parsed, pa.string())
    lists: bool | None = None
    for read, place in _batches(text, [name for name in text.names if name in wanted], types):
        batch = kept = read
        if not columns.per_class:
            name = columns.columns[0]
            if lists is None:
                lists = batch.column(name)[0].as_py().lstrip().startswith("[")
            batch = _set(batch, name, _parse(batch.column(name), name, place, text.point, lists=lists))
        if text.has_label_lists and request.labels:
            name = str(columns.label)
            batch = _set(batch, name, _parse(batch.column(name), name, place, text.point, lists=True))
        for name in parsed:
            batch = _set(batch, name, _parse(batch.column(name), name, place, text.point, lists=False))
            if text.point == ",":  # what is written must be a weight again
                kept = _set(kept, name, _replace_commas(kept.column(name)))
        found = arrow.from_arrow(batch, columns, coding, place, labels=request.labels)
        yield found._replace(carried=arrow.carry(kept, columns)) if request.carry else found


def _set(batch: Any, name: str, column: Any) -> Any:
    return batch.set_column(batch.schema.get_field_index(name), name, column)


def _batches(text: CsvText, wanted: list[str], types: dict[str, Any]) -> Iterator[tuple[Any, Place]]:
    """Read batches of some columns, each with its place."""
    import pyarrow.compute as pc
    from pyarrow import csv as arrow_csv

    place = text.place
    # one thread: only then does pyarrow count rows and report them in its messages
    reading = arrow_csv.ReadOptions(use_threads=False, block_size=text.block_size, skip_rows=1, column_names=text.names)
    parsing = arrow_csv.ParseOptions(
        delimiter=text.separator, ignore_empty_lines=False, newlines_in_values=bool(text.columns.others)
    )
    converting = arrow_csv.ConvertOptions(
        column_types=types,
        null_values=[],
        strings_can_be_null=False,
        include_columns=wanted,
        decimal_point=text.point,
    )
    batches: Iterator[Any] | None = None
    while True:
        try:
            with place.parsing("the text"):
                if batches is None:
                    batches = arrow_csv.open_csv(text.file, reading, parsing, converting)
                batch = next(batches, None)
        except PredictionsError as error:
            raise _with_line(error, text, place) from error.__cause__
        if batch is None:
            return
        if batch.num_rows:
            for label in (text.columns.label, *text.columns.answers):
                if text.point == "," and label in wanted:
                    words = pc.replace_substring_regex(batch.column(label), _WHOLE_WITH_COMMA, r"\1.\2")
                    batch = _set(batch, label, words)
            yield batch, place
            place = replace(place, first_row=place.first_row + batch.num_rows)


_WHOLE_WITH_COMMA = r"^(\s*[-+]?[0-9]+),(0+\s*)$"  # a label such as 2,0
_NOT_A_NUMBER = re.compile(r"CSV conversion error to double: invalid value '(.*)'", re.DOTALL)
_ARROW_MESSAGE = re.compile(r"(?:In CSV column #(\d+): |CSV parse error: )Row #(\d+): (.*)", re.DOTALL)


def _with_line(error: PredictionsError, text: CsvText, place: Place) -> PredictionsError:
    """Add the place to an error if the message of pyarrow gives the line and column."""
    found = _ARROW_MESSAGE.search(str(error.__cause__))
    if found is None:
        return error
    column, line, reason = found.groups()
    reason = reason[:200]
    if number := _NOT_A_NUMBER.fullmatch(reason):
        reason = _describe_number(number[1], text.point)
    reason = reason.replace("CSV conversion error to string: invalid UTF8 data", "must be UTF-8 text")
    at = replace(place, first_row=int(line) - 2)
    return at.error(reason, column=text.names[int(column)] if column else None, row=0)


def _parse(texts: Any, column: str, place: Place, point: str, *, lists: bool) -> Any:
    """Parse texts such as "[0.5, 0.25, 0.25]" to numbers, with this decimal point, or lists of numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not lists:
        return _floats(texts, np.arange(len(texts) + 1), column, place, point)
    form = pc.match_substring_regex(texts, r"^\s*\[[^\[\]]*\]\s*$").to_numpy(zero_copy_only=False)
    if not form.all():
        row = int(np.argmin(form))
        message = f"must be a list [a, b, ...], got {texts[row].as_py()[:50]!r}"
        raise place.error(message, column=column, row=row)
    parts = pc.split_pattern(pc.utf8_trim(texts, " \t[]"), ",")
    return pa.ListArray.from_arrays(
        parts.offsets, _floats(parts.flatten(), parts.offsets.to_numpy(), column, place, ".")
    )


def _floats(words: Any, offsets: np.ndarray, column: str, place: Place, point: str) -> Any:
    """Convert words to float64; row r has the words from offsets[r] to offsets[r + 1]."""
    import pyarrow as pa
    import pyarrow.compute as pc

    words = pc.utf8_trim_whitespace(words)
    numbers = _replace_commas(words) if point == "," else words
    try:
        return numbers.cast(pa.float64())
    except pa.ArrowInvalid:
        first, end = 0, len(words)
    while end - first > 1:  # the first word that is not a number is in words[first:end]
        middle = (first + end) // 2
        try:
            numbers[first:middle].cast(pa.float64())
            first = middle
        except pa.ArrowInvalid:
            end = middle
    row = int(np.searchsorted(offsets, first, side="right")) - 1
    raise place.error(_describe_number(words[first].as_py(), point), column=column, row=row)


def _replace_commas(words: Any) -> Any:
    """Write decimal commas as points; what has a point is no number."""
    import pyarrow.compute as pc

    return pc.replace_substring(pc.replace_substring(words, ".", "no point"), ",", ".")


def _describe_number(text: str, point: str) -> str:
    """Say why text is not a number."""
    hint = ""
    if DECIMALS.fullmatch(text.strip()):
        hint = "; write a decimal point, not a comma" if point == "." else "; the numbers before it have decimal commas"
    return f"must be a number, got {text[:50]!r}{hint}"


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
