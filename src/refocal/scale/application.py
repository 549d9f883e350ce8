"""Calibrating files: each output appears whole, and what is there already is not made again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refocal._files import write_text
from refocal.calibrators import Calibrator
from refocal.calibrators.files import digest
from refocal.predictions import Predictions, PredictionsReader, PredictionsWriter
from refocal.predictions.errors import NoRowsError
from refocal.scale.engines import Progress, opened
from refocal.scale.parts import Form, check_finite, matching

_RECORD = "refocal-apply.json"


class Applied(NamedTuple):
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
) -> Applied:
    """Calibrate files of predictions, one output for each input, of the same name, in a folder.

    An output is written under another name and renamed when it is complete. A job that was killed and starts again
    does only what is missing. `refocal-apply.json` in the folder says which calibrator its files are from; outputs of
    another one, and files of another origin, are refused.

    Args:
        calibrator: A fitted calibrator.
        paths: Names or patterns of files, with or without labels.
        folder: Where the outputs go; it is made where it does not exist.
        overwrite: Write all outputs, also those that are there.
        engine: "local" or "ray", as for `evaluate`.
        address: Of the cluster.
        progress: Is told how far it has come.

    Example:
        >>> import tempfile, pathlib
        >>> import numpy as np
        >>> from refocal import scale
        >>> from refocal.calibrators import FocalPosterior
        >>> from refocal.predictions import Predictions
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> Predictions(np.zeros((4, 3)), kind="logits").write(folder / "1.npz")
        >>> scale.apply(FocalPosterior(gamma=3.0), folder / "*.npz", folder / "probs")
        Applied(rows=4, written=1, kept=0)
        >>> scale.apply(FocalPosterior(gamma=3.0), folder / "*.npz", folder / "probs")
        Applied(rows=0, written=0, kept=1)

    Reference: 001, section 5.
    """
    files = matching(paths)
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
    out.mkdir(parents=True, exist_ok=True)
    _claim(out, [out / name for name in by_name], calibrator=mine, overwrite=overwrite)
    missing = [path for path in files if overwrite or not (out / path.name).exists()]
    run = partial(_apply_file, calibrator=calibrator, folder=out)
    rows = 0
    if missing:
        with opened(engine, address, progress) as running:
            rows = running.each(run, missing, what="calibrating")
    return Applied(rows, len(missing), len(files) - len(missing))


def calibrate_file(
    calibrator: Calibrator,
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    overwrite: bool,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Calibrate one file, block by block; returns its number of rows. `progress` is told how many are done."""
    rows = 0
    with PredictionsReader(path) as blocks, PredictionsWriter(out, overwrite=overwrite) as writer:
        for block in blocks:
            Form.of(block, Path(path)).check_input(calibrator)
            check_finite(block, path, first_row=rows)
            writer.write(writable(block, calibrator.predict_proba(block.scores), out))
            rows += len(block)
            progress(rows)
    return rows


def writable(block: Predictions, probs: np.ndarray, out: str | os.PathLike[str]) -> Predictions:
    """Probabilities in place of the scores, in what the format of the file has room for."""
    names = None if Path(out).suffix == ".csv" else block.class_names
    return replace(block, scores=probs, kind="probs", class_names=names, source=None)


def _apply_file(path: Path, *, calibrator: Calibrator, folder: Path) -> int:
    try:
        # Ray may start a task again that had already renamed its file
        return calibrate_file(calibrator, path, folder / path.name, overwrite=True)
    except NoRowsError:
        return 0


def _claim(folder: Path, outputs: Sequence[Path], *, calibrator: str, overwrite: bool) -> None:
    """Refuse a folder with outputs of another origin than this calibrator, and say whose these will be."""
    record, mine = folder / _RECORD, json.dumps({"calibrator": calibrator})
    theirs = record.read_bytes() if record.exists() else None
    if theirs == mine.encode():
        return
    there = [path for path in outputs if path.exists()]
    advice = "choose another folder, or replace what is there by overwrite=True (--force)"
    if overwrite:
        for path in there:
            path.unlink()  # or a run that goes on after this one was killed would take it for an output of its own
    elif theirs is not None:
        msg = f"{folder} holds outputs of another calibrator: {advice}"
        raise ValueError(msg)
    elif there:
        msg = f"{there[0]} exists, and not by this calibrator: {advice}"
        raise FileExistsError(msg)
    write_text(record, mine, overwrite=True)
