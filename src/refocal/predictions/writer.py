"""Write a prediction file block by block, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from refocal._files import replacing
from refocal.predictions import formats
from refocal.predictions.errors import Place, PredictionsError
from refocal.predictions.predictions import Predictions

_HALF = "a block was not written completely"


class PredictionsWriter:
    """Writes predictions block by block; only one block is in memory.

    The file appears under its name when the `with` block ends without an exception; otherwise nothing remains. All
    blocks must match the first one: the same task, input, dtype, number of classes and class names, and labels, split
    and sample_weight either present or absent.

    Args:
        path: File to write: .npz, .parquet or .csv.
        overwrite: Whether to replace an existing file.
        complete: Function that is called with the path of the complete file, just before the file is renamed.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from refocal.predictions import Predictions, PredictionsWriter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with PredictionsWriter(f"{folder}/val.npz") as writer:
        ...         for rows in (2, 3):
        ...             writer.write(Predictions(np.zeros((rows, 4)), input="logits"))
        ...     Predictions.read(f"{folder}/val.npz").scores.shape
        (5, 4)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        complete: Callable[[Path], None] = lambda _: None,
    ) -> None:
        self.path = Path(path)
        self._overwrite, self._complete = overwrite, complete
        self._format = formats.find_format(self.path)
        self._stack = ExitStack()
        self._file: BinaryIO | None = None
        self._form: dict[str, object] = {}
        self._trouble = "there are no rows: no block was written"

    def __enter__(self) -> Self:
        self._file = self._stack.enter_context(replacing(self.path, overwrite=self._overwrite, complete=self._complete))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file = None
        if error is None and self._trouble:
            refusal = Place(self.path).error(self._trouble)
            self._stack.__exit__(PredictionsError, refusal, None)
            raise refusal
        self._stack.__exit__(kind, error, traceback)

    def write(self, block: Predictions) -> None:
        """Append the rows of a block."""
        if self._file is None:
            msg = "a PredictionsWriter can write only inside its `with` block"
            raise ValueError(msg)
        if self._trouble == _HALF:
            raise Place(self.path).error(_HALF)
        form = _form(block)
        if not self._form:
            writing = self._format.open_writer(self._file, self.path, block)
            self._write: Callable[[Predictions], None] = self._stack.enter_context(writing)
            self._form = form
        for name, value in form.items():
            if value != self._form[name]:
                message = f"{name} must match the first block ({self._form[name]}), got {value}"
                raise Place(self.path).error(message)
        self._trouble = _HALF  # until the block is written; the caller may continue after an exception
        self._write(block)
        self._trouble = ""


def _form(block: Predictions) -> dict[str, object]:
    """Collect the properties that all blocks of a file share, by their names in error messages."""
    optional = {"labels": block.labels, "split": block.split, "sample_weight": block.sample_weight}
    return {
        "task": block.task,
        "input": block.input,
        "dtype of scores": block.scores.dtype,
        "shape of a row": block.scores.shape[1:],
        "class_names": block.class_names,
        "carried columns": None if block.carried is None else tuple(block.carried.table.column_names),
        **{f"presence of {name}": array is not None for name, array in optional.items()},
    }
