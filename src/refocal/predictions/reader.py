"""Read a prediction file block by block."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from refocal._check import Input
from refocal._probability_look import find_probability_look
from refocal._rounding import normalize_rounded
from refocal.predictions import checks, formats
from refocal.predictions.checks import Columns, Task
from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.errors import PredictionsError, PredictionsWarning
from refocal.predictions.labels import RawLabels
from refocal.predictions.names import name_option
from refocal.predictions.predictions import Predictions
from refocal.predictions.protocol import FileSize, OpenFile, Request


class PredictionsReader:
    """Reads a prediction file as blocks of `Predictions`; only one block (parquet: one row group) is in memory.

    Iterate over it once, inside its `with` block. Before the first block these attributes are known: `input`, `task`,
    `class_names`, `rows` (None for csv), `size`, the numbers of rows and columns of the unpacked scores, and `columns`,
    the choice that reads other files of the same data set in the same way. Blocks are checked when they are read, with
    the same errors as `Predictions.read`. Scores with one column per class have the same layout in memory as in the
    file, one class after another.

    Args:
        path: File to read: .npz, .parquet or .csv.
        columns: The columns of labels and scores, if their names are not clear.
        carry: Whether to keep all columns of a parquet or csv file beside its scores, for `PredictionsWriter`; or which
            of them to keep.
        labels: Whether to read the labels. If not, they may be anything; carried labels are kept as they are.
        data_set: Other files with the same classes, see `Predictions.read`.
        warn: Whether to warn about guesses, see `Predictions.read`.
        name: What warnings call the file. By default its path.

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
    task: Task
    class_names: tuple[str, ...] | None
    rows: int | None
    size: FileSize

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        columns: ColumnChoice | None = None,
        carry: bool | Collection[str] = False,
        labels: bool = True,
        data_set: Sequence[Path] = (),
        warn: bool = True,
        name: str | None = None,
    ) -> None:
        self.path = Path(path)
        self._choice = columns or ColumnChoice()
        self._format = formats.find_format(self.path)
        self._request = _make_request(self.path, self._choice, data_set, carry=carry)._replace(labels=labels)
        self._warn, self._name = warn, name
        self._stack = ExitStack()
        self._blocks: Iterator[Predictions] | None = None

    def __enter__(self) -> Self:
        opened = self._stack.enter_context(self._format.open_reader(self.path, self._request))
        self.input, self.rows, self.class_names = opened.input, opened.rows, opened.classes.names
        self.size = opened.size
        self._coding = opened.classes.coding
        self.task = checks.name_task(tuple(self.size), multilabel=opened.classes.is_multilabel)
        self._blocks = check_blocks(opened, self._choice, warn=self._warn, name=self._name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._blocks = None
        self._stack.close()

    @property
    def columns(self) -> ColumnChoice:
        """The choice that reads other files of the same data set in the same way."""
        if self._coding is None:
            return replace(self._choice, task="multilabel")
        return replace(self._choice, classes=self._coding.values)

    def __iter__(self) -> Iterator[Predictions]:
        if self._blocks is None:
            msg = "a PredictionsReader can be iterated only inside its `with` block"
            raise ValueError(msg)
        return self._blocks


def read_whole(
    path: Path, columns: ColumnChoice | None, *, carry: bool | Collection[str], data_set: Sequence[Path]
) -> Predictions:
    """Read a whole file."""
    choice = columns or ColumnChoice()
    request = _make_request(path, choice, data_set, carry=carry)._replace(whole=True)
    with formats.find_format(path).open_reader(path, request) as opened:
        return Predictions._join(list(check_blocks(opened, choice)))


def _make_request(
    path: Path, choice: ColumnChoice, data_set: Sequence[Path], *, carry: bool | Collection[str]
) -> Request:
    paths = [path, *(other for other in data_set if other != path)]
    return Request(choice, partial(_scan, paths, choice), carry=carry)


def _scan(paths: Sequence[Path], choice: ColumnChoice) -> Iterator[RawLabels]:
    """Read the labels of files, and nothing else, as far as they can be read."""
    for path in paths:
        try:
            yield from formats.find_format(path).read_labels(path, choice)
        except PredictionsError:  # reported, with all columns in order, when the rows are read
            return


def check_blocks(
    opened: OpenFile, choice: ColumnChoice, *, warn: bool = True, name: str | None = None
) -> Iterator[Predictions]:
    """Check the blocks of an open file; all must have the same number of classes.

    Logits that look like probabilities are rejected, unless the choice of columns says that they are logits.
    """
    place = opened.place
    assert place.path is not None
    guesses = [*opened.guesses, *opened.classes.guesses]
    multilabel = opened.classes.is_multilabel
    class_names, form = opened.classes.names, None
    rounded = False
    for columns in opened.blocks:
        scores, labels, normalized = columns.scores, columns.labels, False
        if not multilabel:
            if opened.input == "probs":
                scores, normalized = normalize_rounded(scores)
            if labels is not None and labels.ndim == 2:
                labels = checks.collapse_answers(labels, scores.shape, place)
        rows = columns._replace(scores=scores, labels=labels)
        checked = checks.check_columns(rows, opened.input, place, multilabel=multilabel)
        if opened.input == "logits" and choice.logit is None and (look := _find_look(checked, multilabel=multilabel)):
            raise place.error(checks.describe_look(look), column=place.name_scores("logits"))
        classes = checked.scores.shape[1:]
        if form is None and class_names is not None:
            expected = checks.count_classes(checked.scores.shape, multilabel=multilabel)
            class_names = checks.check_class_names(class_names, expected, place)
        if form is not None and classes != form:
            message = f"must have {form[0]} values per row like the rows before, got {classes[0]}"
            raise place.error(message, column=place.name_scores(opened.input), row=0)
        if form is None and multilabel and choice.task is None and checks.looks_exclusive(checked, opened.input):
            guesses.append(_EXCLUSIVE)
        if warn and form is None and guesses:
            _say(name or str(place.path), "; ".join(guesses))
        if warn and normalized and not rounded:
            _say(name or str(place.path), "probabilities sum to 1 only within rounding; rows are normalized")
        rounded = rounded or normalized
        form = classes
        task = checks.name_task(checked.scores.shape, multilabel=multilabel)
        yield Predictions._from_checked(checked, opened.input, class_names, place.path, task)
        place = replace(place, first_row=place.first_row + len(checked.scores))
    if form is None:
        raise place.no_rows()
    if opened.rows not in (None, place.first_row):
        message = f"contains {place.first_row} rows, but its header says {opened.rows}: the file is damaged"
        raise place.error(message)


_EXCLUSIVE = (
    "but each row has one label, as if only one class could be true: if that is so, choose with "
    f"{name_option('task multiclass')}"
)


def _find_look(checked: Columns, *, multilabel: bool) -> str | None:
    """Return what makes logits look like probabilities: rows that sum to 1, or multi-label values in [0, 1]."""
    return find_probability_look(checked.scores.reshape(-1) if multilabel else checked.scores)


def _say(name: str, guess: str) -> None:
    # always from this line: Python then shows the same text once, however often the file is read
    warnings.warn(f"{name}: {guess}", PredictionsWarning, stacklevel=1)
