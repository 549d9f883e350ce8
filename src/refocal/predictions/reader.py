"""Read a prediction file block by block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from refocal._check import Input
from refocal.predictions import checks, formats
from refocal.predictions.predictions import Predictions
from refocal.predictions.protocol import FileSize, OpenFile


class PredictionsReader:
    """Reads a prediction file as blocks of `Predictions`; only one block (parquet: one row group) is in memory.

    Iterate over it once, inside its `with` block. Before the first block these attributes are known: `input`,
    `class_names`, `rows` (None for csv) and `size`, the numbers of rows and columns of the unpacked scores. Blocks are
    checked when they are read, with the same errors as `Predictions.read`. Scores with one column per class have the
    same layout in memory as in the file, one class after another.

    Args:
        path: File to read: .npz, .parquet or .csv.

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

    input: Input
    class_names: tuple[str, ...] | None
    rows: int | None
    size: FileSize

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._format = formats.find_format(self.path)
        self._stack = ExitStack()
        self._blocks: Iterator[Predictions] | None = None

    def __enter__(self) -> Self:
        opened = self._stack.enter_context(self._format.open_reader(self.path, whole=False))
        self.input, self.rows, self.class_names = opened.input, opened.rows, opened.class_names
        self.size = opened.size
        self._blocks = check_blocks(opened)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._blocks = None
        self._stack.close()

    def __iter__(self) -> Iterator[Predictions]:
        if self._blocks is None:
            msg = "a PredictionsReader can be iterated only inside its `with` block"
            raise ValueError(msg)
        return self._blocks


def read_whole(path: Path) -> Predictions:
    """Read a whole file."""
    with formats.find_format(path).open_reader(path, whole=True) as opened:
        return Predictions._join(list(check_blocks(opened)))


def check_blocks(opened: OpenFile) -> Iterator[Predictions]:
    """Check the blocks of an open file; all must have the same number of classes."""
    place = opened.place
    assert place.path is not None
    class_names, form = opened.class_names, None
    for columns in opened.blocks:
        checked = checks.check_columns(columns, opened.input, place)
        classes = checked.scores.shape[1:]
        if form is None and class_names is not None:
            class_names = checks.check_class_names(class_names, checks.count_classes(checked.scores.shape), place)
        if form is not None and classes != form:
            message = f"must have {form[0]} values per row like the rows before, got {classes[0]}"
            raise place.error(message, column=place.name_scores(opened.input), row=0)
        form = classes
        yield Predictions._from_checked(checked, opened.input, class_names, place.path)
        place = replace(place, first_row=place.first_row + len(checked.scores))
    if form is None:
        raise place.no_rows()
    if opened.rows not in (None, place.first_row):
        message = f"contains {place.first_row} rows, but its header says {opened.rows}: the file is damaged"
        raise place.error(message)
