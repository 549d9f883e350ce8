"""Calibrating files: each output appears whole, and what is there already is not made again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refocal.calibrators import Calibrator
from refocal.calibrators.files import digest
from refocal.predictions import Predictions, PredictionsReader, PredictionsWriter
from refocal.predictions.errors import NoRowsError
from refocal.scale.engines import Progress, open_engine
from refocal.scale.outputs import Origin, Outputs
from refocal.scale.parts import Form, Stamp, check_finite, find_files, find_form


class ApplySummary(NamedTuple):
    """What `apply` did.

    Attributes:
        rows: Rows calibrated now.
        written: Files to be written now; one without rows gives none.
        kept: Files that an earlier run had completed.
    """

    rows: int
    written: int
    kept: int


def apply(
    calibrator: Calibrator,
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    engine: str = "local",
    address: str | None = None,
    progress: Progress | None = None,
) -> ApplySummary:
    """Calibrate files of predictions, one output for each input, of the same name, in a folder.

    An output is written under another name and renamed when it is complete. A job that was killed and starts again
    does only what is missing. The folder keeps a note of what made each output. Outputs of another calibrator, from
    another input or of unknown origin are refused. Only one command at a time writes to a folder.

    Args:
        calibrator: A fitted calibrator.
        paths: Names or patterns of files, with or without labels.
        folder: Where the outputs go; it is made where it does not exist.
        overwrite: Write all outputs, also those that are there. Each is replaced when the new one is complete.
        engine: "local" or "ray", as for `evaluate`.
        address: Of the cluster.
        progress: Is told how far it has come.

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

    Reference: 001, section 5.
    """
    files = find_files(paths)
    out = Path(folder).absolute()
    mine = digest(calibrator)
    by_name = {path.name: path for path in files}
    for path in files:
        if by_name[path.name] != path:
            msg = f"{by_name[path.name]} and {path} would have the same output: files must differ in their names"
            raise ValueError(msg)
        if out.resolve() in (path.parent.resolve(), path.resolve().parent):
            msg = f"the outputs must go to another folder than {path}, got {str(out)!r}"
            raise ValueError(msg)
    form = find_form(files)
    if form is not None:
        form.check_input(calibrator)
    outputs = Outputs(out)
    with outputs.lock():
        if not overwrite:
            outputs.check(files, calibrator=mine)
        missing = [path for path in files if overwrite or not os.path.lexists(out / path.name)]
        run = partial(_apply_file, calibrator=calibrator, made_by=mine, outputs=outputs)
        rows = 0
        if missing:
            with open_engine(engine, address, progress) as running:
                rows = running.each(run, missing, what="calibrating")
    return ApplySummary(rows, len(missing), len(files) - len(missing))


def calibrate_file(
    calibrator: Calibrator,
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    overwrite: bool,
    progress: Callable[[int], None] = lambda _: None,
    complete: Callable[[Path], None] = lambda _: None,
) -> int:
    """Calibrate one file, block by block; returns its number of rows.

    `progress` is told how many rows are done, `complete` is called as by `PredictionsWriter`.
    """
    rows = 0
    with PredictionsReader(path) as blocks, PredictionsWriter(out, overwrite=overwrite, complete=complete) as writer:
        for block in blocks:
            Form.of(block, Path(path)).check_input(calibrator)
            check_finite(block, path, first_row=rows)
            writer.write(with_probs(block, calibrator.predict_proba(block.scores), out))
            rows += len(block)
            progress(rows)
    return rows


def with_probs(block: Predictions, probs: np.ndarray, out: str | os.PathLike[str]) -> Predictions:
    """Probabilities in place of the scores, in what the format of the file has room for."""
    names = None if Path(out).suffix == ".csv" else block.class_names
    return replace(block, scores=probs, input="probs", class_names=names, source=None)


def _apply_file(path: Path, *, calibrator: Calibrator, made_by: str, outputs: Outputs) -> int:
    note = partial(outputs.write_note, name=path.name, origin=Origin(made_by, Stamp.of(path)))
    try:
        # Ray may start a task again that had already renamed its file
        return calibrate_file(calibrator, path, outputs.folder / path.name, overwrite=True, complete=note)
    except NoRowsError:
        outputs.remove(path.name)
        return 0
