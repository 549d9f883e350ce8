"""`Predictions`: the scores of a classifier on some samples, with what is known about them."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np

from refocal import _check
from refocal.predictions import checks
from refocal.predictions.checks import Columns
from refocal.predictions.errors import Place


@dataclass(frozen=True, eq=False)
class Predictions:
    """Scores of a classifier, checked when they are made; the arrays are not copied where they fit.

    `Predictions(scores, input="logits", labels=labels)`; nothing is guessed from checks. Scores of one column, shape
    (N,) or (N, 1), are about class 1 of two: its log-odds (logits) or its probability (probs). They keep their shape.

    Args:
        scores: float16, float32 or float64 of shape (N, K). Logits are finite or -inf (masked), one of them finite in
            each row; probabilities are non-negative and sum to 1 in each row, to the precision of their dtype.
        input: "logits" or "probs". In files, the name of the scores says which.
        labels: the true classes, (N,), whole numbers in 0 ... K - 1, kept as int64; None where they are not known.
        split: for each row the name of the part it belongs to, such as "val" or "test"; or None.
        sample_weight: (N,), non-negative and finite, kept as float64; or None. In files it is called `weights` (npz)
            or `weight` (parquet, csv).
        class_names: a different name for each class; or None.
        source: the file that the predictions came from; or None.

    Raises:
        PredictionsError: the first rule that is broken, with its row.

    Example:
        >>> import numpy as np
        >>> from refocal.predictions import Predictions
        >>> predictions = Predictions(np.array([[2.0, -1.0], [0.5, 0.0]]), input="logits", labels=[0, 1])
        >>> len(predictions), predictions.classes
        (2, 2)
    """

    scores: np.ndarray
    _: KW_ONLY
    input: Literal["logits", "probs"]
    labels: np.ndarray | None = None
    split: np.ndarray | None = None
    sample_weight: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    source: Path | None = None

    def __post_init__(self) -> None:
        place = Place()
        if self.input not in checks.INPUTS:
            message = f"input must be 'logits' or 'probs', got {self.input!r}"
            raise place.error(message)
        for name, column in self._columns()._asdict().items():
            _check.unmasked(column, name)
        self._store(checks.check(self._columns().map(np.asarray), self.input, place))
        if self.class_names is not None:
            names = checks.class_names(self.class_names, self.classes, place)
            object.__setattr__(self, "class_names", names)

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Predictions:
        """The whole of a file, .npz, .parquet or .csv by its suffix; `PredictionsReader` reads it block by block.

        Raises:
            PredictionsError: for everything that is wrong inside the file.
            OSError: where the file cannot be opened.
            ImportError: where parquet or csv is read without pyarrow.
        """
        from refocal.predictions import reader

        return reader.read(Path(path))

    def write(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write a file, .npz, .parquet or .csv by its suffix, under a temporary name that is then renamed.

        Raises:
            FileExistsError: where the file exists and `overwrite` was not asked for.
            PredictionsError: for what the format has no place for: class names in a csv file.
        """
        from refocal.predictions.writer import PredictionsWriter

        with PredictionsWriter(path, overwrite=overwrite) as writer:
            writer.write(self)

    def select(self, split: str) -> Predictions:
        """The rows of one split.

        Example:
            >>> import numpy as np
            >>> from refocal.predictions import Predictions
            >>> both = Predictions(np.zeros((3, 2)), input="logits", split=["val", "test", "val"])
            >>> len(both.select("val"))
            2
        """
        place = Place(self.source)
        if self.split is None:
            message = f"there is no split, {split!r} was asked for"
            raise place.error(message, column="split")
        rows = self.split == split
        if not rows.any():
            found = ", ".join(repr(str(name)) for name in np.unique(self.split)[:10])
            message = f"there are no rows of {split!r}, only of {found}"
            raise place.error(message, column="split")
        chosen = self._columns().map(lambda column: column[rows])
        return self._trusted(chosen, self.input, self.class_names, self.source)

    @property
    def classes(self) -> int:
        """The number of classes; scores of one column are about two."""
        return checks.number_of_classes(self.scores.shape)

    def __len__(self) -> int:
        return len(self.scores)

    def _columns(self) -> Columns:
        return Columns(self.scores, self.labels, self.split, self.sample_weight)

    def _store(self, columns: Columns) -> None:
        for name, array in columns._asdict().items():
            object.__setattr__(self, name, array)

    @classmethod
    def _trusted(cls, columns: Columns, input: str, class_names: tuple[str, ...] | None, source: Path | None) -> Self:
        """Predictions of columns that were checked before, without looking at the values again."""
        made = object.__new__(cls)
        made._store(columns)
        for name, value in (("input", input), ("class_names", class_names), ("source", source)):
            object.__setattr__(made, name, value)
        return made

    @classmethod
    def _joined(cls, blocks: list[Predictions]) -> Predictions:
        """The rows of all blocks of one file, the scores one row after another."""
        first = blocks[0]
        if len(blocks) == 1 and first.scores.flags.c_contiguous:
            return first

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(block, name) for block in blocks])

        rows = sum(len(block) for block in blocks)
        scores = np.empty((rows, *first.scores.shape[1:]), dtype=first.scores.dtype)
        np.concatenate([block.scores for block in blocks], out=scores)
        names = ("labels", "split", "sample_weight")
        optional = (None if getattr(first, name) is None else joined(name) for name in names)
        return cls._trusted(Columns(scores, *optional), first.input, first.class_names, first.source)
