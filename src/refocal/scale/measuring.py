"""Measuring a data set of many files in one pass."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from refocal._check import Input
from refocal.calibrators.conversion import scores_to_probs
from refocal.metrics import CalibrationAccumulator
from refocal.predictions import ColumnChoice
from refocal.report.record import Report
from refocal.report.sums import report_sums
from refocal.scale.engines import Engine, EngineName, Progress, open_engine
from refocal.scale.parts import (
    Block,
    FileSource,
    Paths,
    RowReader,
    check_calibrator,
    count_files,
    find_files,
    require_form,
)

if TYPE_CHECKING:
    from refocal.calibrators import Calibrator
    from refocal.report.selection import Candidate


class BlockSums(NamedTuple):
    """The number of rows, and accumulators of the scores as given and, if there is a calibrator, its probabilities."""

    rows: int
    accumulators: tuple[CalibrationAccumulator, ...]

    def merge(self, other: BlockSums) -> BlockSums:
        """Add up the sums of both."""
        pairs = zip(self.accumulators, other.accumulators, strict=True)
        return BlockSums(self.rows + other.rows, tuple(one.merge(two) for one, two in pairs))


def evaluate(
    paths: Paths,
    *,
    calibrator: Calibrator | None = None,
    split: str | None = None,
    columns: ColumnChoice | None = None,
    source: str | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Measure a data set of many files, which may be larger than memory, in one pass.

    The measures come from sums over rows. So the report has no confidence limits, p-values, diagrams or verdict: they
    need all rows in memory (`refocal.evaluate`).

    Args:
        paths: Names or patterns of .parquet, .npz or .csv files with labels. Files without rows are skipped. For "ray",
            every machine of the cluster must be able to open them.
        calibrator: A fitted calibrator to measure beside the scores as given: `report.chosen`. None to measure only the
            scores as given.
        split: Measure only the rows of this split.
        columns: The columns of labels and scores, where their names do not tell.
        source: Name of the data in the report; the paths if None.
        engine: "local": this process, with one row group in memory; "ray": a Ray cluster.
        address: Address of the cluster. If None, a cluster on this machine is used, and started if there is none.
        progress: Called with a `ProgressUpdate` after each block or task.

    Returns:
        A report on all rows.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from refocal import scale
        >>> from refocal.predictions import Predictions
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for part in (1, 2):
        ...         Predictions(np.array([[0.6, 0.4]]), input="probs", labels=[0]).write(f"{folder}/{part}.npz")
        ...     scale.evaluate(f"{folder}/*.npz").samples
        2

    Reference: Mukhoti et al. (2020), Sec. 2.
    """
    if calibrator is not None:
        check_calibrator(calibrator)
    files = find_files(paths)
    rows = RowReader(require_form(files, columns), split=split, finite=calibrator is not None)
    if source is None:
        names = [paths] if isinstance(paths, str | os.PathLike) else paths
        source = " ".join(os.fspath(name) for name in names)
    with open_engine(engine, address, progress) as running:
        return measure(running, files, rows, calibrator=calibrator, source=source)


def measure(
    engine: Engine, files: Sequence[Path], rows: RowReader, *, calibrator: Calibrator | None, source: str
) -> Report:
    """Measure the scores as given and, if there is a calibrator, its probabilities, in one pass."""
    if calibrator is not None:
        rows.form.check_input(calibrator)
    run = partial(measure_block, input=rows.form.input, calibrator=calibrator)
    found = engine.fold(FileSource.of(files, rows.read), run, BlockSums.merge, what="measuring")
    if found is None:
        of_split = "" if rows.split is None else f" of split {rows.split!r}"
        msg = f"{count_files(files)} no rows{of_split} with a positive weight"
        raise ValueError(msg)
    given, *calibrated = (accumulator.compute() for accumulator in found.accumulators)
    form = rows.form
    return report_sums(
        given,
        None if calibrator is None else (_name(calibrator), calibrated[0]),
        samples=found.rows,
        classes=form.classes,
        class_names=form.class_names,
        source=source,
    )


def measure_block(block: Block, *, input: Input, calibrator: Calibrator | None) -> BlockSums:
    """Sum up a block: its scores as given and, if there is a calibrator, its probabilities."""
    calibrators = (None,) if calibrator is None else (None, calibrator)
    return BlockSums(len(block.labels), tuple(_accumulate(block, input, each) for each in calibrators))


def _name(calibrator: Calibrator) -> Candidate:
    from refocal.report.selection import Candidate

    return Candidate.of(calibrator)


def _accumulate(block: Block, input: Input, calibrator: Calibrator | None) -> CalibrationAccumulator:
    accumulator = CalibrationAccumulator()
    scores, labels, sample_weight = block
    if calibrator is not None:
        accumulator.update(calibrator.predict_proba(scores), labels, sample_weight=sample_weight)
    elif input == "logits" and scores.ndim == 2 and scores.shape[1] > 1:
        accumulator.update(scores, labels, input="logits", sample_weight=sample_weight)
    else:
        accumulator.update(scores_to_probs(scores, input=input), labels, sample_weight=sample_weight)
    return accumulator
