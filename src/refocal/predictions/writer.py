"""Writing a file of predictions block by block, whole or not at all."""

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

_HALF = "a block was not written whole"


class PredictionsWriter:
    """Takes blocks of predictions one after another, with the memory of one block.

    The file appears under its name when `with` is left without an exception; else nothing of it is left. All blocks
    have the form of the first: input, dtype, classes, class names, and the same of labels, split and sample_weight.

    Args:
        path: .npz, .parquet or .csv.
        overwrite: replace a file of that name.
        complete: called with the complete file, under its temporary name, just before it takes its own.

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
        self._format = formats.of(self.path)
        self._stack = ExitStack()
        self._file: BinaryIO | None = None
        self._form: dict[str, object] = {}
        self._trouble = "there are no rows, no block was written"

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
            msg = "a PredictionsWriter can be written to inside its `with` only"
            raise ValueError(msg)
        if self._trouble == _HALF:
            raise Place(self.path).error(_HALF)
        form = _form(block)
        if not self._form:
            sink = self._format.sink(self._file, self.path, block)
            self._write: Callable[[Predictions], None] = self._stack.enter_context(sink)
            self._form = form
        for name, value in form.items():
            if value != self._form[name]:
                message = f"{name} must be that of the first block, {self._form[name]}, got {value}"
                raise Place(self.path).error(message)
        self._trouble = _HALF  # until the block is written, also where the caller goes on after an exception
        self._write(block)
        self._trouble = ""


def _form(block: Predictions) -> dict[str, object]:
    """What all blocks of a file have in common, by the name that an error gives it."""
    optional = {"labels": block.labels, "split": block.split, "sample_weight": block.sample_weight}
    return {
        "input": block.input,
        "dtype of scores": block.scores.dtype,
        "shape of a row": block.scores.shape[1:],
        "class_names": block.class_names,
        **{f"presence of {name}": array is not None for name, array in optional.items()},
    }
