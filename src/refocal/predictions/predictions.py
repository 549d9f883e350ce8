"""`Predictions`: the scores of a classifier, with labels, splits and sample weights."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Self

import numpy as np

from refocal import _check
from refocal._check import Input
from refocal._rounding import normalize_and_warn
from refocal.predictions import checks
from refocal.predictions.carried import Carried
from refocal.predictions.checks import Columns, Task
from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.errors import Place


@dataclass(frozen=True, eq=False)
class Predictions:
    """The scores of a classifier on some samples, with labels, splits and sample weights, checked on creation.

    Nothing is guessed from the values: `input` says whether scores are logits or probabilities. Scores of one column,
    shape (N,) or (N, 1), describe class 1 of two, by its log-odds (logits) or its probability (probs). They keep their
    shape. Arrays are copied only if their dtype must change or rows are normalized.

    Multi-label predictions have labels of shape (N, K), 0 or 1 for each class. Each class is a yes-or-no question of
    its own: logits are its log-odds, and rows of probabilities need not sum to 1.

    Args:
        scores: float16, float32 or float64, shape (N, K). Logits are finite or -inf (masked), with at least one finite
            value per row. Probabilities are non-negative, and each row sums to 1 to the precision of the dtype. Rows
            that are rounded to 2 to 5 decimals, and whose sums are off by no more than that explains, are normalized.
        input: "logits" or "probs". In a file, the name of the scores says which.
        labels: True classes, shape (N,), whole numbers from 0 to K - 1, stored as int64; multi-label: shape (N, K), 0
            or 1 or booleans, stored as int8. None if unknown.
        split: Name of the split of each row, such as "val" or "test", shape (N,). Optional.
        sample_weight: Weights, shape (N,), non-negative and finite, stored as float64. Optional. Files call them
            `weights` (npz) or `weight` (parquet, csv).
        class_names: A different name for each class. Optional.
        task: "multilabel" for multi-label scores without labels or of one class. By default it is "multilabel" if
            labels have several columns, "binary" for two classes, and "multiclass" for more.
        source: The file that the predictions come from. Optional.
        carried: All columns of a parquet or csv file beside its scores, as `read(..., carry=True)` keeps them. `write`
            writes them again, in the place of labels, split and sample_weight. Optional.

    Warns:
        UserWarning: If rounded probabilities were normalized.

    Raises:
        PredictionsError: If the predictions break a rule. The message gives the rule and the row.

    Example:
        >>> import numpy as np
        >>> from refocal.predictions import Predictions
        >>> predictions = Predictions(np.array([[2.0, -1.0], [0.5, 0.0]]), input="logits", labels=[0, 1])
        >>> len(predictions), predictions.classes
        (2, 2)
    """

    scores: np.ndarray
    _: KW_ONLY
    input: Input
    labels: np.ndarray | None = None
    split: np.ndarray | None = None
    sample_weight: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    source: Path | None = None
    carried: Carried | None = None
    task: Task | None = None

    def __post_init__(self) -> None:
        place = Place()
        if self.input not in _check.INPUTS:
            message = f"input must be 'logits' or 'probs', got {self.input!r}"
            raise place.error(message)
        for name in ("scores", "labels", "split", "sample_weight"):
            column = getattr(self, name)
            _check.unmasked(column, name)
            try:
                object.__setattr__(self, name, None if column is None else np.asarray(column))
            except ValueError as error:
                message = "must be an array, got rows of different lengths"
                raise place.error(message, column=name) from error
        is_multilabel = self.task == "multilabel" or (
            self.task is None and self.labels is not None and checks.has_answers(self.labels.shape)
        )
        columns = self._columns()
        if self.input == "probs" and not is_multilabel:
            columns = columns._replace(scores=normalize_and_warn(columns.scores, "scores"))
        self._store(checks.check_columns(columns, self.input, place, multilabel=is_multilabel))
        task = checks.name_task(self.scores.shape, multilabel=is_multilabel)
        if self.task not in (None, task):
            message = f"task must be 'multilabel' or {task!r} for {self.classes} classes, got {self.task!r}"
            raise place.error(message)
        object.__setattr__(self, "task", task)
        if self.class_names is not None:
            names = checks.check_class_names(self.class_names, self.classes, place)
            object.__setattr__(self, "class_names", names)

    @staticmethod
    def read(
        path: str | os.PathLike[str],
        *,
        columns: ColumnChoice | None = None,
        carry: bool | Collection[str] = False,
        data_set: Sequence[Path] = (),
    ) -> Predictions:
        """Read a whole file. The suffix gives the format: .npz, .parquet or .csv.

        Use `PredictionsReader` to read a file block by block.

        Args:
            path: File to read.
            columns: The columns of labels and scores, if their names are not clear.
            carry: Whether to keep all columns of a parquet or csv file beside its scores, for `write`; or which of
                them to keep.
            data_set: Other files with the same classes. If the labels of this file do not show all classes, theirs are
                read, too.

        Warns:
            PredictionsWarning: If the use of columns or the meaning of labels was guessed, or if rounded probabilities
                were normalized.

        Raises:
            PredictionsError: If the content of the file is invalid.
            OSError: If the file cannot be opened.
            ImportError: If the file is parquet or csv and pyarrow is not installed.
        """
        from refocal.predictions import reader

        return reader.read_whole(Path(path), columns, carry=carry, data_set=data_set)

    def write(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write a file. The suffix gives the format: .npz, .parquet or .csv.

        The file is written under a temporary name and then renamed.

        Raises:
            FileExistsError: If the file exists and `overwrite` is False.
            PredictionsError: If the format cannot store the predictions: csv rounds no float16 probabilities.
        """
        from refocal.predictions.writer import PredictionsWriter

        with PredictionsWriter(path, overwrite=overwrite) as writer:
            writer.write(self)

    def select(self, split: str) -> Predictions:
        """Select the rows of one split.

        Example:
            >>> import numpy as np
            >>> from refocal.predictions import Predictions
            >>> both = Predictions(np.zeros((3, 2)), input="logits", split=["val", "test", "val"])
            >>> len(both.select("val"))
            2
        """
        place = Place(self.source)
        if self.split is None:
            message = f"cannot select {split!r}: the predictions have no split"
            raise place.error(message, column="split")
        rows = self.split == split
        if not rows.any():
            found = ", ".join(repr(str(name)) for name in np.unique(self.split)[:10])
            message = f"there are no rows of {split!r}; the splits are {found}"
            raise place.error(message, column="split")
        return self.take(rows)

    def take(self, rows: np.ndarray) -> Predictions:
        """Take some rows, by their indices or by a mask.

        Example:
            >>> import numpy as np
            >>> from refocal.predictions import Predictions
            >>> Predictions(np.eye(3), input="probs", labels=[0, 1, 2]).take(np.array([2, 0])).labels.tolist()
            [2, 0]
        """
        taken = self._columns().map(lambda column: column[rows])
        return self._from_checked(taken, self.input, self.class_names, self.source, self.task)

    @property
    def classes(self) -> int:
        """Number of classes; it is 2 for scores of one column, except if they are multi-label."""
        return checks.count_classes(self.scores.shape, multilabel=self.task == "multilabel")

    def __len__(self) -> int:
        return len(self.scores)

    def _columns(self) -> Columns:
        return Columns(self.scores, self.labels, self.split, self.sample_weight, self.carried)

    def _store(self, columns: Columns) -> None:
        for name, array in columns._asdict().items():
            object.__setattr__(self, name, array)

    @classmethod
    def _from_checked(
        cls,
        columns: Columns,
        input: Input,
        class_names: tuple[str, ...] | None,
        source: Path | None,
        task: Task | None,
    ) -> Self:
        """Make predictions of columns that are already checked, without checking them again."""
        made = object.__new__(cls)
        made._store(columns)
        properties = {"input": input, "class_names": class_names, "source": source, "task": task}
        for name, value in properties.items():
            object.__setattr__(made, name, value)
        return made

    @classmethod
    def _join(cls, blocks: list[Predictions]) -> Predictions:
        """Join all blocks of a file; scores become contiguous in C order."""
        first = blocks[0]
        if len(blocks) == 1 and first.scores.flags.c_contiguous:
            return first

        def join(name: str) -> np.ndarray:
            return np.concatenate([getattr(block, name) for block in blocks])

        rows = sum(len(block) for block in blocks)
        scores = np.empty((rows, *first.scores.shape[1:]), dtype=first.scores.dtype)
        np.concatenate([block.scores for block in blocks], out=scores)
        names = ("labels", "split", "sample_weight")
        labels, split, weights = (None if getattr(first, name) is None else join(name) for name in names)
        carried = [block.carried for block in blocks if block.carried is not None]
        joined = Columns(scores, labels, split, weights, Carried.join(carried) if carried else None)
        return cls._from_checked(joined, first.input, first.class_names, first.source, first.task)
