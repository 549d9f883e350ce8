"""Parquet files, read and written with pyarrow, one row group in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from refocal.predictions import arrow, header
from refocal.predictions.checks import Columns
from refocal.predictions.classes import settle_classes, settle_multilabel
from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.errors import Place
from refocal.predictions.labels import LabelCoding, RawLabels
from refocal.predictions.predictions import Predictions
from refocal.predictions.protocol import FileSize, OpenFile, Request, block_rows

_MAGIC = b"PAR1"
_CLASS_NAMES = b"refocal.class_names"  # key of the file's metadata, a JSON list of strings


@contextmanager
def open_reader(path: Path, request: Request) -> Iterator[OpenFile]:
    """Open a parquet file; it is always read row group by row group."""
    with _open(path) as (table, bare):
        schema = table.schema_arrow
        columns = header.parse_column_names(schema.names, request.choice, bare)
        class_names = _class_names(schema.metadata or {}, bare)
        columns = columns.order_answers(class_names, bare)
        place = _name_columns(bare, columns)
        rows = table.metadata.num_rows
        size = FileSize(rows, _classes(table, columns, place))
        label = None if columns.label is None else schema.field(columns.label).type
        several = bool(columns.answers) or (label is not None and arrow.is_list(label))
        kind = None if several or label is None or not request.labels else arrow.find_label_kind(label)
        classes = settle_multilabel(
            columns, size.columns, request.choice, stored_names=class_names, several=several
        ) or settle_classes(
            columns,
            size.columns,
            kind,
            request.scan,
            place,
            stored_names=class_names,
            given=request.choice.classes,
        )
        blocks = _blocks(table, columns, classes.coding, place, request, step=block_rows(size.columns))
        guesses = columns.describe(request.choice, request.carry, width=size.columns)
        yield OpenFile(columns.input, classes, rows, size, place, blocks, guesses)


def read_labels(path: Path, choice: ColumnChoice) -> Iterator[RawLabels]:
    """Read only the labels; nothing if there are none."""
    with _open(path) as (table, place):
        columns = header.parse_column_names(table.schema_arrow.names, choice, place)
        if columns.label is not None and not arrow.is_list(table.schema_arrow.field(columns.label).type):
            for batch, at in _batches(table, [columns.label], block_rows(1), place):
                yield arrow.read_labels(batch.column(0), columns.label, at)


@contextmanager
def _open(path: Path) -> Iterator[tuple[Any, Place]]:
    arrow.require_arrow()
    import pyarrow.parquet as pq

    place = Place(path, labels="label", sample_weight="weight")
    place.check_regular()
    with open(path, "rb") as file:
        start = file.read(len(_MAGIC))
        if start != _MAGIC:
            found = f"begins with {start!r}" if start else "is empty"
            message = f"is not a parquet file: it must begin with {_MAGIC!r}, but it {found}"
            raise place.error(message)
        with place.parsing("the footer"):
            # read pages only when needed: reading ahead would keep more than one row group in memory
            table = pq.ParquetFile(file, pre_buffer=False, page_checksum_verification=True)
            table.schema_arrow, table.metadata.num_rows  # noqa: B018 (raises here if they are damaged)
        yield table, place


def _name_columns(place: Place, columns: header.Header) -> Place:
    return replace(
        place,
        labels=columns.label or "label",
        columns=columns.columns if columns.per_class else (),
        answers=columns.answers,
        scores=columns.columns[0],
    )


def _class_names(metadata: dict[bytes, bytes], place: Place) -> tuple[str, ...] | None:
    if _CLASS_NAMES not in metadata:
        return None
    with place.parsing("class_names"):
        names = json.loads(metadata[_CLASS_NAMES])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        message = "must be a JSON list of strings"
        raise place.error(message, column="class_names")
    return tuple(names)


def _blocks(
    table: Any, columns: header.Header, coding: LabelCoding | None, place: Place, request: Request, *, step: int
) -> Iterator[Columns]:
    wanted = {*columns.used, *columns.find_carried(request.carry)}
    ordered = [name for name in table.schema_arrow.names if name in wanted]
    for batch, at in _batches(table, ordered, step, place):
        found = arrow.from_arrow(batch, columns, coding, at, labels=request.labels)
        yield found._replace(carried=arrow.carry(batch, columns)) if request.carry else found


def _batches(table: Any, names: list[str], step: int, place: Place) -> Iterator[tuple[Any, Place]]:
    """Read batches of some columns, each with its place."""
    with place.parsing("the footer"):
        batches = table.iter_batches(batch_size=step, columns=names, use_threads=False)
    while True:
        with place.parsing(f"the rows starting at {place.first_row}"):
            batch = next(batches, None)
        if batch is None:
            return
        if batch.num_rows:
            yield batch, place
            place = replace(place, first_row=place.first_row + batch.num_rows)


def _classes(table: Any, columns: header.Header, place: Place) -> int:
    """Return the number of scores per row, from the schema or, if it has lists of any length, from the first row.

    Do not read the metadata of row groups: pyarrow aborts the process if they are damaged in certain ways.
    """
    import pyarrow as pa

    if columns.per_class:
        return len(columns.columns)
    scores = table.schema_arrow.field(columns.columns[0]).type
    if pa.types.is_fixed_size_list(scores):
        return int(scores.list_size)
    if not (pa.types.is_list(scores) or pa.types.is_large_list(scores)):
        return 1
    with place.parsing("the first row"):
        batches = table.iter_batches(batch_size=1, columns=[columns.columns[0]], use_threads=False)
        first = next((batch.column(0) for batch in batches if batch.num_rows), None)
        return 1 if first is None else len(first.flatten())


@contextmanager
def open_writer(file: BinaryIO, path: Path, first: Predictions) -> Iterator[Callable[[Predictions], None]]:
    """Write a parquet file with the scores as one column of lists and row groups of at most one block."""
    arrow.require_arrow()
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = first.class_names
    metadata = None if names is None else {_CLASS_NAMES: json.dumps(names).encode()}
    place = Place(path)
    schema = _table(pa, first, place).schema.with_metadata(metadata)
    rows = block_rows(int(np.prod(first.scores.shape[1:])))
    # scores hardly repeat: a dictionary would only cost time
    texts = [field.name for field in schema if arrow.is_text(field.type)]
    with pq.ParquetWriter(file, schema, use_dictionary=texts, write_page_checksum=True) as writer:

        def write(block: Predictions) -> None:
            writer.write_table(_table(pa, block, place).replace_schema_metadata(metadata), row_group_size=rows)

        yield write


def _table(pa: Any, block: Predictions, place: Place) -> Any:
    carried = block.carried
    if carried is not None and (carried.per_class or block.scores.ndim == 1):
        return pa.table(arrow.add_scores(arrow.carried_columns(carried), block, block.scores, place))
    scores = arrow.to_arrow(block.scores)
    if carried is None:
        return pa.table({block.input: scores, **arrow.optional_columns(block)})
    return pa.table({**arrow.carried_columns(carried), block.input: scores})
