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
from refocal.predictions.errors import Place
from refocal.predictions.predictions import Predictions
from refocal.predictions.protocol import FileSize, OpenFile, block_rows

_MAGIC = b"PAR1"
_CLASS_NAMES = b"refocal.class_names"  # key of the file's metadata, a JSON list of strings


@contextmanager
def open_reader(path: Path, *, whole: bool) -> Iterator[OpenFile]:  # noqa: ARG001 (always reads row group by row group)
    """Open a parquet file."""
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
            schema = table.schema_arrow
            rows = table.metadata.num_rows
        columns = header.parse_column_names(schema.names, place)
        place = replace(place, numbered=columns.numbered)
        class_names = _class_names(schema.metadata or {}, place)
        size = FileSize(rows, _classes(table, columns, place))
        yield OpenFile(
            columns.input, class_names, rows, size, place, _blocks(table, columns, block_rows(size.columns), place)
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


def _blocks(table: Any, columns: header.Header, step: int, place: Place) -> Iterator[Columns]:
    with place.parsing("the footer"):
        batches = table.iter_batches(batch_size=step, use_threads=False)
    while True:
        with place.parsing(f"the rows starting at {place.first_row}"):
            batch = next(batches, None)
        if batch is None:
            return
        if batch.num_rows:
            yield arrow.from_arrow(batch, columns, place)
            place = replace(place, first_row=place.first_row + batch.num_rows)


def _classes(table: Any, columns: header.Header, place: Place) -> int:
    """Return the number of scores per row, from the schema or, if it has lists of any length, from the first row.

    Do not read the metadata of row groups: pyarrow aborts the process if they are damaged in certain ways.
    """
    import pyarrow as pa

    if columns.numbered:
        return len(columns.columns)
    scores = table.schema_arrow.field(columns.input).type
    if pa.types.is_fixed_size_list(scores):
        return int(scores.list_size)
    if not (pa.types.is_list(scores) or pa.types.is_large_list(scores)):
        return 1
    with place.parsing("the first row"):
        batches = table.iter_batches(batch_size=1, columns=[columns.input], use_threads=False)
        first = next((batch.column(0) for batch in batches if batch.num_rows), None)
        return 1 if first is None else len(first.flatten())


@contextmanager
def open_writer(file: BinaryIO, path: Path, first: Predictions) -> Iterator[Callable[[Predictions], None]]:  # noqa: ARG001
    """Write a parquet file with the scores as one column of lists and row groups of at most one block."""
    arrow.require_arrow()
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = first.class_names
    metadata = None if names is None else {_CLASS_NAMES: json.dumps(names).encode()}
    schema = _table(pa, first).schema.with_metadata(metadata)
    rows = block_rows(int(np.prod(first.scores.shape[1:])))
    # scores hardly repeat: a dictionary would only cost time
    with pq.ParquetWriter(file, schema, use_dictionary=["split"], write_page_checksum=True) as writer:

        def write(block: Predictions) -> None:
            writer.write_table(_table(pa, block).replace_schema_metadata(metadata), row_group_size=rows)

        yield write


def _table(pa: Any, block: Predictions) -> Any:
    flat = pa.array(np.ascontiguousarray(block.scores).reshape(-1))
    scores = flat if block.scores.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, block.scores.shape[1])
    return pa.table({block.input: scores, **arrow.optional_columns(block)})
