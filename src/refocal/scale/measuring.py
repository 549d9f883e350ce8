"""Measuring a data set of many files in one pass."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from refocal.calibrators.conversion import scores_to_probs
from refocal.metrics import CalibrationAccumulator, CalibrationSummary
from refocal.scale.engines import Engine, Progress, open_engine
from refocal.scale.parts import Block, FileSource, Rows, find_files, require_form

if TYPE_CHECKING:
    from refocal.calibrators import Calibrator

Accumulators = tuple[CalibrationAccumulator, ...]


def evaluate(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    calibrator: Calibrator | None = None,
    split: str | None = None,
    engine: str = "local",
    address: str | None = None,
    progress: Progress | None = None,
) -> CalibrationSummary:
    """Measure files of predictions, together one data set, in one pass.

    Args:
        paths: Names or patterns of .parquet, .npz or .csv files with labels; a file without rows counts nothing. For
            "ray", names that every machine of the cluster can open.
        calibrator: A fitted calibrator to apply first; None to measure the scores as they are.
        split: Only the rows of this split.
        engine: "local": this process, one row group in memory; "ray": a Ray cluster.
        address: Of the cluster; None for one on this machine, which is started where there is none.
        progress: Is told how far it has come.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from refocal import scale
        >>> from refocal.predictions import Predictions
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for part in (1, 2):
        ...         Predictions(np.array([[0.6, 0.4]]), input="probs", labels=[0]).write(f"{folder}/{part}.npz")
        ...     scale.evaluate(f"{folder}/*.npz").samples
        2.0

    Reference: 002, section 2.
    """
    files = find_files(paths)
    rows = Rows(require_form(files), split=split, finite=calibrator is not None)
    with open_engine(engine, address, progress) as running:
        return measure(running, files, rows, (calibrator,))[0]


def measure(
    engine: Engine, files: Sequence[Path], rows: Rows, calibrators: Sequence[Calibrator | None]
) -> list[CalibrationSummary]:
    """Measure the scores as calibrators make them (None: as they are), all in one pass."""
    for calibrator in calibrators:
        if calibrator is not None:
            rows.form.check_input(calibrator)
    run = partial(measure_block, input=rows.form.input, calibrators=tuple(calibrators))
    found = engine.fold(FileSource.of(files, rows.read), run, _merge, what="measuring")
    if found is None:
        of_split = "" if rows.split is None else f" of split {rows.split!r}"
        msg = f"there are no rows{of_split} with a weight in {len(files)} files, the first of which is {files[0]}"
        raise ValueError(msg)
    return [accumulator.compute() for accumulator in found]


def measure_block(block: Block, *, input: str, calibrators: Sequence[Calibrator | None]) -> Accumulators:
    """An accumulator of a block for each calibrator."""
    return tuple(_accumulate(block, input, calibrator) for calibrator in calibrators)


def _accumulate(block: Block, input: str, calibrator: Calibrator | None) -> CalibrationAccumulator:
    accumulator = CalibrationAccumulator()
    scores, labels, sample_weight = block
    if calibrator is not None:
        accumulator.update(calibrator.predict_proba(scores), labels, sample_weight=sample_weight)
    elif input == "logits" and scores.ndim == 2 and scores.shape[1] > 1:
        accumulator.update(scores, labels, input="logits", sample_weight=sample_weight)
    else:
        accumulator.update(scores_to_probs(scores, input=input), labels, sample_weight=sample_weight)
    return accumulator


def _merge(one: Accumulators, other: Accumulators) -> Accumulators:
    return tuple(first.merge(second) for first, second in zip(one, other, strict=True))
