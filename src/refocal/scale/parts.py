"""The files of a data set: finding them, checking that they fit together, and reading them in blocks."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from refocal._check import Input
from refocal.predictions import ColumnChoice, Predictions, PredictionsReader
from refocal.predictions.checks import Task
from refocal.predictions.errors import NoRowsError, Place
from refocal.scale.file_names import name_file

if TYPE_CHECKING:
    from refocal.calibrators import Calibrator
    from refocal.scale.sampling import Share

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Stamp(NamedTuple):
    """Size and time of a file. They differ between two files, and after a change, and need no reading."""

    size: int
    time: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """Take the current stamp of a file."""
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns)


class Block(NamedTuple):
    """Some rows of one file, already checked.

    Attributes:
        scores: (n, K), or (n,) or (n, 1) for two classes.
        labels: Class indices (n,).
        sample_weight: (n,), or None.
    """

    scores: np.ndarray
    labels: np.ndarray
    sample_weight: np.ndarray | None


class Form(NamedTuple):
    """The properties that all files of a data set share, taken from the first file with rows, `file`.

    `choice` names the columns, and the label of each class: all files are read alike.
    """

    file: Path
    input: Input
    columns: int
    dtype: np.dtype
    weighted: bool
    split: bool
    class_names: tuple[str, ...] | None
    task: Task | None
    choice: ColumnChoice | None = None

    @classmethod
    def of(cls, block: Predictions, file: Path) -> Form:
        """Take the form of a file from one of its blocks."""
        columns = 1 if block.scores.ndim == 1 else block.scores.shape[1]
        weighted, split = block.sample_weight is not None, block.split is not None
        return cls(file, block.input, columns, block.scores.dtype, weighted, split, block.class_names, block.task)

    @property
    def classes(self) -> int:
        """The number of classes; scores in one column stand for two."""
        return max(2, self.columns)

    def check(self, other: Form) -> None:
        """Reject a different form. Class names are compared if both files have them."""
        if self._describe() != other._describe():
            msg = f"{other.file} must hold the same as {self.file}, {self._describe()}, got {other._describe()}"
            raise ValueError(msg)
        names = zip(self.class_names or (), other.class_names or (), strict=False)
        for number, (ours, theirs) in enumerate(names):
            if ours != theirs:
                msg = f"{other.file} must have the class names of {self.file}: {ours!r} for {number}, got {theirs!r}"
                raise ValueError(msg)

    def check_input(self, calibrator: Calibrator) -> None:
        """Reject a calibrator for scores of another kind or number of columns."""
        check_match(calibrator, self.file, input=self.input, columns=self.columns)

    def _describe(self) -> str:
        weights = " with weights" if self.weighted else " without weights"
        task = "multi-label " if self.task == "multilabel" else ""
        return f"{task}{self.input} of {self.columns} columns in {self.dtype}{weights}"


@dataclass(frozen=True)
class RowReader:
    """Which rows of a data set to read, and how to check them.

    Attributes:
        form: The form of all files.
        split: The name of the split to read; None for all rows.
        optional: Whether to read all rows of a file without splits.
        finite: Whether to reject masked logits, -inf, which calibrators do not accept.
        share: A random part to read; None for all rows.
    """

    form: Form
    split: str | None = None
    optional: bool = False
    finite: bool = False
    share: Share | None = None

    def __post_init__(self) -> None:
        if self.form.task == "multilabel":
            msg = (
                f"{self.form.file} is multi-label, which is not read block by block: use evaluate_multilabel or "
                "calibrate_multilabel; in commands, leave out --engine"
            )
            raise ValueError(msg)

    def read(self, path: Path) -> Iterator[Block]:
        """Read a file block by block, without rows of other splits, rows of weight 0 and rows of other parts."""
        first_row = 0
        choose = None if self.share is None else self.share.start(path)
        try:
            with PredictionsReader(path, columns=self.form.choice, warn=False) as blocks:
                for whole in blocks:
                    self.form.check(Form.of(whole, path))
                    wanted = self._wanted(whole)
                    if choose is not None:
                        wanted = wanted & choose(len(whole))
                    if self.finite:
                        check_finite(whole, path, first_row=first_row, wanted=wanted)
                    if whole.labels is None:
                        msg = f"{path} has no labels, which measuring and fitting need: name their column with --label"
                        raise ValueError(msg)
                    yield from _select(Block(whole.scores, whole.labels, whole.sample_weight), wanted)
                    first_row += len(whole)
        except NoRowsError:
            return

    def read_splits(self, path: Path) -> Iterator[Block]:
        """Read the names of the splits of a file in the place of labels, and nothing else."""
        try:
            with PredictionsReader(path, columns=self.form.choice, warn=False) as blocks:
                for whole in blocks:
                    names = np.full(len(whole), "") if whole.split is None else whole.split
                    yield Block(np.empty((len(whole), 0)), names, None)
        except NoRowsError:
            return

    def _wanted(self, whole: Predictions) -> np.ndarray:
        wanted = np.ones(len(whole), dtype=bool) if whole.sample_weight is None else whole.sample_weight > 0
        if self.split is not None and whole.split is not None:
            wanted &= whole.split == self.split
        elif self.split is not None and not self.optional:
            whole.select(self.split)  # raises: there is no split
        return wanted


def _select(block: Block, wanted: np.ndarray) -> Iterator[Block]:
    if wanted.all():
        yield block
    elif wanted.any():
        weights = None if block.sample_weight is None else block.sample_weight[wanted]
        yield Block(block.scores[wanted], block.labels[wanted], weights)


class File(NamedTuple):
    """A file of a source, and the stamp that it must keep. The stamp is None if the file may change."""

    path: Path
    stamp: Stamp | None

    def blocks(self, read: Callable[[Path], Iterator[Block]]) -> Iterator[Block]:
        """Read the blocks of the file. Raises if the file has changed since its stamp was taken."""
        self.check()
        yield from read(self.path)
        self.check()

    def check(self) -> None:
        """Raise if the file has changed since its stamp was taken."""
        if self.stamp not in (None, Stamp.of(self.path)):
            msg = f"{self.path} changed during this run: try again when it is complete"
            raise RuntimeError(msg)


@contextmanager
def unchanged(paths: Iterable[Path]) -> Iterator[None]:
    """Raise at the end of the `with` block if a file has changed since its start.

    What takes several passes would otherwise mix the rows of two versions of a file.
    """
    files = [File(path, Stamp.of(path)) for path in paths]
    yield
    for file in files:
        file.check()


@dataclass(frozen=True)
class FileSource:
    """Files, and the function that reads blocks from one of them."""

    files: tuple[File, ...]
    read: Callable[[Path], Iterator[Block]]

    @classmethod
    def of(cls, paths: Sequence[Path], read: Callable[[Path], Iterator[Block]], *, steady: bool = False) -> FileSource:
        """Make a source of files. It is `steady` if many passes must see the same rows: then a change is an error."""
        return cls(tuple(File(path, Stamp.of(path) if steady else None) for path in paths), read)


def find_files(patterns: Paths) -> tuple[Path, ...]:
    """Find the files that match names and patterns such as `preds/*.parquet`, each once, in the order given."""
    try:
        given = [os.fspath(name) for name in ([patterns] if isinstance(patterns, str | os.PathLike) else patterns)]
    except TypeError as error:
        msg = f"paths must be a name, a pattern or a sequence of these, got {patterns!r}"
        raise TypeError(msg) from error
    if not given:
        msg = "paths must name at least one file, got none"
        raise ValueError(msg)
    found: dict[str, Path] = {}
    for pattern in given:
        files = [pattern] if os.path.lexists(pattern) else _glob(pattern)
        if not files:
            msg = f"no file matches {pattern}"
            raise FileNotFoundError(msg)
        for file in files:
            # absolute, because the workers of a cluster have other working folders
            found.setdefault(os.path.realpath(file), Path(file).absolute())
    return tuple(found.values())


def _glob(pattern: str) -> list[str]:
    """Find files in sorted order. Brackets in the name of an existing folder are taken literally."""
    folder, name = os.path.split(pattern)
    return sorted(glob.glob(pattern, recursive=True) or glob.glob(os.path.join(glob.escape(folder), name)))


def require_form(
    paths: Sequence[Path],
    columns: ColumnChoice | None = None,
    *,
    data_set: Sequence[Path] = (),
    carry: bool | Collection[str] = False,
) -> Form:
    """Read the form of the first file that has rows; raises if no file has any. For the arguments see `find_form`."""
    form = find_form(paths, columns, data_set=data_set, carry=carry)
    if form is None:
        msg = f"{count_files(paths)} no rows"
        raise ValueError(msg)
    return form


def count_files(paths: Sequence[Path]) -> str:
    """Begin a sentence about files: "a.npz has", or "3 files, the first of which is a.npz, have"."""
    return f"{paths[0]} has" if len(paths) == 1 else f"{len(paths)} files, the first of which is {paths[0]}, have"


def describe_no_rows(paths: Sequence[Path], rows: RowReader) -> str:
    """Say that files have no rows to read."""
    of_split = "" if rows.split is None else f" of split {rows.split!r}"
    return f"{count_files(paths)} no rows{of_split} with a positive weight"


def find_form(
    paths: Sequence[Path],
    columns: ColumnChoice | None = None,
    *,
    data_set: Sequence[Path] = (),
    carry: bool | Collection[str] = False,
    labels: bool = True,
) -> Form | None:
    """Read the form of the first file that has rows; None if no file has any.

    If the labels of that file do not show all classes, those of the other files and of `data_set` are read, too. For
    `carry` and `labels` see `PredictionsReader`.
    """
    every = [*paths, *data_set]
    for path in paths:
        try:
            with PredictionsReader(
                path, columns=columns, data_set=every, carry=carry, labels=labels, name=name_file(path, every)
            ) as blocks:
                first = next(iter(blocks))
        except NoRowsError:
            continue
        return Form.of(first, path)._replace(choice=blocks.columns)
    return None


def check_calibrator(calibrator: object) -> None:
    """Reject anything but a calibrator."""
    from refocal.calibrators import Calibrator

    if not isinstance(calibrator, Calibrator):
        msg = f"calibrator must be a fitted calibrator of refocal.calibrators, got {calibrator!r}"
        raise TypeError(msg)


def check_match(
    calibrator: Calibrator, file: str | os.PathLike[str], *, input: Input, columns: int, what: str = "columns"
) -> None:
    """Reject a calibrator for scores of another kind or number of columns than those of a file."""
    if calibrator.input_ != input:
        msg = f"the calibrator takes {calibrator.input_}, but {file} holds {input}"
        raise ValueError(msg)
    expected = getattr(calibrator, "n_features_in_", columns)
    if expected != columns:
        msg = f"{file} has {columns} {what} of scores, but the calibrator was fitted to {expected}"
        raise ValueError(msg)


def check_finite(
    block: Predictions, path: str | os.PathLike[str], *, first_row: int = 0, wanted: np.ndarray | bool = True
) -> None:
    """Reject masked logits in the wanted rows. The error names file and row."""
    finite = np.isfinite(block.scores.reshape(len(block), -1)).all(axis=1) | ~np.asarray(wanted)
    if not finite.all():
        message = "must be finite for a calibrator, got -inf"
        raise Place(Path(path), first_row=first_row).error(message, column=block.input, row=int(np.argmin(finite)))
