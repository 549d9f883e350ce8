"""Calibrating files. Outputs appear only when complete, and a second run writes only missing ones."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refocal.calibrators import Calibrator, MultilabelCalibrator
from refocal.calibrators.files import digest
from refocal.predictions import ColumnChoice, Predictions, PredictionsReader, PredictionsWriter
from refocal.predictions.errors import LabelsError, NoRowsError, PredictionsWarning
from refocal.predictions.names import describe_names, name_option
from refocal.scale.engines import EngineName, Progress, open_engine
from refocal.scale.outputs import Origin, Outputs
from refocal.scale.parts import Form, Paths, Stamp, check_calibrator, check_finite, find_files, find_form


class ApplySummary(NamedTuple):
    """The result of `apply`.

    Attributes:
        rows: Number of rows calibrated by this run.
        written: Number of input files that this run processed. A file without rows has no output.
        kept: Number of files that an earlier run had completed.
    """

    rows: int
    written: int
    kept: int


def apply(
    calibrator: Calibrator,
    paths: Paths,
    folder: str | os.PathLike[str],
    *,
    columns: ColumnChoice | None = None,
    overwrite: bool = False,
    engine: EngineName = "local",
    address: str | None = None,
    progress: Progress | None = None,
) -> ApplySummary:
    """Calibrate many files of predictions. Each input gets an output of the same name in a folder.

    Outputs are written under a temporary name and renamed when complete. If a run is killed, the next one writes only
    the missing outputs. The folder keeps a note of how each output was made. Outputs of another calibrator, of another
    input or of unknown origin are rejected. Only one command at a time can write to a folder.

    Args:
        calibrator: A fitted calibrator.
        paths: Names or patterns of files. Labels are not needed and may be invalid.
        folder: The folder for the outputs. It is created if it does not exist.
        columns: The columns of the scores, as for `evaluate`. All other columns of parquet and csv files are written
            again, before the probabilities.
        overwrite: Write all outputs, including existing ones. The first rows of every file are checked before the first
            output is replaced. Each is replaced when the new one is complete.
        engine: "local" or "ray", as for `evaluate`.
        address: Address of the cluster, as for `evaluate`.
        progress: Called with a `ProgressUpdate` after each file or task.

    Returns:
        How many rows and files were calibrated, and how many files were complete already.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from refocal import scale
        >>> from refocal.calibrators import FocalPosterior
        >>> from refocal.predictions import Predictions
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Predictions(np.zeros((4, 3)), input="logits").write(f"{folder}/1.npz")
        ...     for _ in range(2):
        ...         scale.apply(FocalPosterior(gamma=3.0), f"{folder}/*.npz", f"{folder}/probs")
        ApplySummary(rows=4, written=1, kept=0)
        ApplySummary(rows=0, written=0, kept=1)

    Reference: Charoenphakdee et al. (2021), Sec. 5.
    """
    check_calibrator(calibrator)
    files = find_files(paths)
    out = Path(folder).absolute()
    mine = digest(calibrator)
    by_name = {path.name: path for path in files}
    for path in files:
        if by_name[path.name] != path:
            msg = f"{by_name[path.name]} and {path} would have the same output: input files must have different names"
            raise ValueError(msg)
        if out.resolve() in (path.parent.resolve(), path.resolve().parent):
            msg = f"the outputs must go to a different folder than the input {path}, got {str(out)!r}"
            raise ValueError(msg)
    labels = any(_needs_labels(path, path) for path in files)
    choice = choose_task(calibrator, columns)
    try:
        form = find_form(files, choice, carry=True, labels=labels)
    except LabelsError:  # said for each file
        form = find_form(files, choice, carry=True, labels=False)
    if form is not None:
        form.check_input(calibrator)
    outputs = Outputs(out)
    with outputs.lock():
        if not overwrite:
            outputs.check(files, calibrator=mine)
        missing = [path for path in files if overwrite or not os.path.lexists(out / path.name)]
        columns = columns if form is None else form.choice
        check = partial(_check_file, calibrator=calibrator, columns=columns)
        run = partial(_apply_file, calibrator=calibrator, made_by=mine, outputs=outputs, columns=columns)
        rows = 0
        if missing:
            with open_engine(engine, address, progress) as running:
                if any(os.path.lexists(out / path.name) for path in missing):  # replace none unless all files fit
                    running.each(check, missing, what="checking")
                rows = running.each(run, missing, what="calibrating")
    return ApplySummary(rows, len(missing), len(files) - len(missing))


def calibrate_file(
    calibrator: Calibrator,
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    columns: ColumnChoice | None = None,
    overwrite: bool,
    warn: bool = True,
    progress: Callable[[int], None] = lambda _: None,
    complete: Callable[[Path], None] = lambda _: None,
) -> int:
    """Calibrate one file, block by block, and return its number of rows.

    Columns beside the scores are written again, before the probabilities. Labels may be missing or invalid: parquet and
    csv files keep them as they are, and npz files, which hold class indices, leave them out. `progress` is called with
    the number of rows done so far, `complete` as by `PredictionsWriter`.
    """
    run = partial(
        _calibrate_rows,
        calibrator,
        Path(path),
        Path(out),
        columns=columns,
        overwrite=overwrite,
        warn=warn,
        progress=progress,
        complete=complete,
    )
    try:
        return run(labels=_needs_labels(Path(path), Path(out)))
    except LabelsError as error:
        warnings.warn(f"labels are not written: {error}", PredictionsWarning, stacklevel=1)
        return run(labels=False)


def _needs_labels(path: Path, out: Path) -> bool:
    """Whether labels must be understood to be written; a table is written with its labels as they are."""
    return ".npz" in (path.suffix, out.suffix)


def _calibrate_rows(
    calibrator: Calibrator,
    path: Path,
    out: Path,
    *,
    columns: ColumnChoice | None,
    labels: bool,
    overwrite: bool,
    warn: bool,
    progress: Callable[[int], None],
    complete: Callable[[Path], None],
) -> int:
    rows = 0
    with (
        PredictionsReader(
            path, columns=choose_task(calibrator, columns), carry=True, labels=labels, warn=warn
        ) as blocks,
        PredictionsWriter(out, overwrite=overwrite, complete=complete) as writer,
    ):
        for block in blocks:
            Form.of(block, path).check_input(calibrator)
            check_finite(block, path, first_row=rows)
            writer.write(_predict(calibrator, block, path))
            rows += len(block)
            progress(rows)
    return rows


def choose_task(calibrator: Calibrator, columns: ColumnChoice | None) -> ColumnChoice:
    """Let the calibrator say whether scores are multi-label: files without labels do not show it."""
    choice = columns or ColumnChoice()
    multilabel = isinstance(calibrator, MultilabelCalibrator)
    if multilabel == (choice.task == "multiclass") and choice.task is not None:
        is_for = "multi-label scores" if multilabel else "one class per row"
        msg = f"the calibrator is for {is_for}, got --task {choice.task}: leave --task out, or use another calibrator"
        raise ValueError(msg)
    if multilabel and choice.classes is not None:
        msg = "the calibrator is for multi-label scores, whose columns name the classes: leave --classes out"
        raise ValueError(msg)
    return replace(choice, task="multilabel") if multilabel else choice


def _predict(calibrator: Calibrator, block: Predictions, path: str | os.PathLike[str]) -> Predictions:
    """Calibrate a block. If the file and the calibrator name their classes, columns are matched by these names.

    If only the calibrator names them, so does the result.
    """
    names, fitted = block.class_names, _list_names(calibrator)
    if names is None and fitted is not None and (block.carried is None or block.carried.positive is None):
        block = replace(block, class_names=fitted)
    if names is None or fitted is None or names == fitted:
        return with_probs(block, calibrator.predict_proba(block.scores))
    if set(names) != set(fitted):
        if not isinstance(calibrator, MultilabelCalibrator):  # other names for the same classes
            return with_probs(block, calibrator.predict_proba(block.scores))
        msg = (
            f"{path} has scores of {describe_names(names)}, but the calibrator was fitted to {describe_names(fitted)}: "
            f"name the columns alike, and leave out others with {name_option('ignore')}"
        )
        raise ValueError(msg)
    if block.scores.ndim == 1 or block.scores.shape[1] < len(names):
        msg = f"{path} has scores of {names[-1]}, but the calibrator takes those of {fitted[-1]}"
        raise ValueError(msg)
    probs = calibrator.predict_proba(block.scores[:, [names.index(name) for name in fitted]])
    return with_probs(block, probs[:, [fitted.index(name) for name in names]])


def _list_names(calibrator: Calibrator) -> tuple[str, ...] | None:
    """List the names of the classes that a calibrator was fitted to; None if they are only numbered."""
    classes = getattr(calibrator, "classes_", np.zeros(0, dtype=np.intp))
    names = tuple(map(str, classes.tolist()))
    return names if classes.dtype.kind in "iuU" and names != tuple(map(str, range(len(names)))) else None


def with_probs(block: Predictions, probs: np.ndarray) -> Predictions:
    """Replace the scores of a block by probabilities; one column stays one column."""
    is_one = block.task != "multilabel" and (block.scores.ndim == 1 or block.scores.shape[1] == 1)
    scores = probs[:, 1].reshape(block.scores.shape) if is_one else probs
    return replace(block, scores=scores, input="probs", source=None)


def _check_file(path: Path, *, calibrator: Calibrator, columns: ColumnChoice | None) -> int:
    """Calibrate the first rows of a file, without writing them. They show whether the calibrator fits."""
    choice = choose_task(calibrator, columns)
    try:
        with PredictionsReader(path, columns=choice, carry=True, labels=False, warn=False) as blocks:
            first = next(iter(blocks))
    except NoRowsError:
        return 0
    Form.of(first, path).check_input(calibrator)
    check_finite(first, path)
    _predict(calibrator, first, path)
    return len(first)


def _apply_file(
    path: Path, *, calibrator: Calibrator, made_by: str, outputs: Outputs, columns: ColumnChoice | None
) -> int:
    note = partial(outputs.write_note, name=path.name, origin=Origin(made_by, Stamp.of(path)))
    try:
        # overwrite: Ray may restart a task that had already renamed its file
        return calibrate_file(
            calibrator, path, outputs.folder / path.name, columns=columns, overwrite=True, warn=False, complete=note
        )
    except NoRowsError:
        outputs.remove(path.name)
        return 0
