"""Reading a file of predictions block by block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from refocal.predictions import checks, formats
from refocal.predictions.predictions import Predictions
from refocal.predictions.protocol import Size, Source


class PredictionsReader:
    """The blocks of a file of predictions, as `Predictions`, with the memory of one block (parquet: one row group).

    Inside `with`, iterate over it once. Before the first block these are known: `input`, `class_names`, `rows` (None
    for csv, which does not say), and `size`, the rows and columns of scores that the file unpacks to.
    The blocks are checked as they are read, with the errors of `Predictions.read`. Scores with one column per class
    lie in memory as in the file, one class after another.

    Args:
        path: .npz, .parquet or .csv.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from refocal.predictions import Predictions, PredictionsReader
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Predictions(np.zeros((5, 3)), input="logits").write(f"{folder}/val.npz")
        ...     with PredictionsReader(f"{folder}/val.npz") as blocks:
        ...         print(blocks.input, blocks.rows, sum(len(block) for block in blocks))
        logits 5 5
    """

    input: str
    class_names: tuple[str, ...] | None
    rows: int | None
    size: Size

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._format = formats.of(self.path)
        self._stack = ExitStack()
        self._blocks: Iterator[Predictions] | None = None

    def __enter__(self) -> Self:
        source = self._stack.enter_context(self._format.source(self.path, whole=False))
        self.input, self.rows, self.class_names = source.input, source.rows, source.class_names
        self.size = source.size
        self._blocks = checked_blocks(source)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._blocks = None
        self._stack.close()

    def __iter__(self) -> Iterator[Predictions]:
        if self._blocks is None:
            msg = "the blocks of a PredictionsReader can be read inside its `with` only"
            raise ValueError(msg)
        return self._blocks


def read(path: Path) -> Predictions:
    """The whole of a file."""
    with formats.of(path).source(path, whole=True) as source:
        return Predictions._joined(list(checked_blocks(source)))


def checked_blocks(source: Source) -> Iterator[Predictions]:
    """The blocks of a source, each checked, and all of one form."""
    place = source.place
    assert place.source is not None
    class_names, form = source.class_names, None
    for columns in source.blocks:
        checked = checks.check(columns, source.input, place)
        classes = checked.scores.shape[1:]
        if form is None and class_names is not None:
            class_names = checks.class_names(class_names, checks.number_of_classes(checked.scores.shape), place)
        if form is not None and classes != form:
            message = f"must have {form[0]} values a row as in the rows before, got {classes[0]}"
            raise place.error(message, column=place.scores(source.input), row=0)
        form = classes
        yield Predictions._trusted(checked, source.input, class_names, place.source)
        place = replace(place, first_row=place.first_row + len(checked.scores))
    if form is None:
        raise place.no_rows()
    if source.rows not in (None, place.first_row):
        message = f"holds {place.first_row} rows, its header says {source.rows}: the file is damaged"
        raise place.error(message)
