"""Measuring a data set of many files in one pass."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from refocal import _check
from refocal._check import Input
from refocal.calibrators.conversion import scores_to_probs
from refocal.metrics import CalibrationAccumulator, CalibrationSummary
from refocal.predictions import ColumnChoice
from refocal.report.record import Report
from refocal.report.sums import report_sample, report_sums
from refocal.scale.engines import Engine, EngineName, Progress, open_engine
from refocal.scale.parts import (
    Block,
    FileSource,
    Form,
    Paths,
    RowReader,
    check_calibrator,
    describe_no_rows,
    find_files,
    require_form,
    unchanged,
)
from refocal.scale.sampling import draw_sample

if TYPE_CHECKING:
    from refocal.calibrators import Calibrator
    from refocal.report.selection import Candidate

_SMALL = 1e-6  # of larger probabilities p, 1 - p has at least ten digits


class BlockSums(NamedTuple):
    """The number of rows, and accumulators of the scores as given and of the probabilities of each calibrator."""

    rows: int
    accumulators: tuple[CalibrationAccumulator, ...]

    def merge(self, other: BlockSums) -> BlockSums:
        """Add up the sums of both."""
        pairs = zip(self.accumulators, other.accumulators, strict=True)
        return BlockSums(self.rows + other.rows, tuple(one.merge(two) for one, two in pairs))

    def compute(self) -> list[CalibrationSummary]:
        """Compute the measures of each accumulator."""
        return [accumulator.compute() for accumulator in self.accumulators]


def evaluate(
    paths: Paths,
    *,
    calibrator: Calibrator | None = None,
    split: str | None = None,
    columns: ColumnChoice | None = None,
    source: str | None = None,
    sample: int | None = None,
    seed: int = 0,
    by_class: bool = True,
    engine: EngineName = "local",
    address: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Measure a data set of many files, which may be larger than memory.

    The measures come from sums over all rows, in one pass. Confidence limits, p-values, diagrams and the verdict need
    rows in memory. With `sample`, a second pass takes them from rows chosen at random, and the report says so. A file
    that changes meanwhile is an error.

    Args:
        paths: Names or patterns of .parquet, .npz or .csv files with labels. Files without rows are skipped. For "ray",
            every machine of the cluster must be able to open them.
        calibrator: A fitted calibrator to measure beside the scores as given: `report.chosen`. None to measure only the
            scores as given.
        split: Measure only the rows of this split.
        columns: The columns of labels and scores, if their names are not clear.
        source: Name of the data in the report; the paths if None.
        sample: About how many rows to hold in memory for a verdict, confidence limits, p-values and diagrams; they keep
            their weights. If there are no more rows than this, the report is the same as that of `refocal.evaluate`.
            None for sums only.
        seed: Seed that chooses the rows; both engines choose the same.
        by_class: Whether to measure each class of the sample, too.
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
    size = None if sample is None else _check.count(sample, "sample")
    files = find_files(paths)
    if source is None:
        names = [paths] if isinstance(paths, str | os.PathLike) else paths
        source = " ".join(os.fspath(name) for name in names)
    with unchanged(files):
        rows = RowReader(require_form(files, columns), split=split, finite=calibrator is not None)
        with open_engine(engine, address, progress) as running:
            sums = sum_up(running, files, rows, [] if calibrator is None else [calibrator])
            if size is None:
                return _report_sums(sums, calibrator, rows.form, source)
            drawn = draw_sample(running, files, rows, size=size, of=sums.rows, seed=seed)
    from refocal.report.selection import Selection

    return report_sample(
        Selection.of(calibrator, input=rows.form.input),
        drawn,
        sums.compute(),
        samples=sums.rows,
        seed=seed,
        class_names=rows.form.class_names,
        by_class=by_class,
        source=source,
    )


def sum_up(engine: Engine, files: Sequence[Path], rows: RowReader, calibrators: Sequence[Calibrator]) -> BlockSums:
    """Measure the scores as given and the probabilities of each calibrator, in one pass."""
    for calibrator in calibrators:
        rows.form.check_input(calibrator)
    run = partial(sum_block, input=rows.form.input, calibrators=calibrators)
    found = engine.fold(FileSource.of(files, rows.read), run, BlockSums.merge, what="measuring")
    if found is None:
        raise ValueError(describe_no_rows(files, rows))
    return found


def sum_block(block: Block, *, input: Input, calibrators: Sequence[Calibrator]) -> BlockSums:
    """Sum up a block: its scores as given, and the probabilities of each calibrator."""
    return BlockSums(len(block.labels), tuple(_accumulate(block, input, each) for each in (None, *calibrators)))


def _report_sums(sums: BlockSums, calibrator: Calibrator | None, form: Form, source: str) -> Report:
    given, *others = sums.compute()
    return report_sums(
        given,
        None if calibrator is None else (_name(calibrator), others[0]),
        samples=sums.rows,
        classes=form.classes,
        class_names=form.class_names,
        source=source,
    )


def _name(calibrator: Calibrator) -> Candidate:
    from refocal.report.selection import Candidate

    return Candidate.of(calibrator)


def _accumulate(block: Block, input: Input, calibrator: Calibrator | None) -> CalibrationAccumulator:
    scores, labels, sample_weight = block
    if scores.ndim == 1 or scores.shape[1] <= 2:  # a binary task, which is about P(y = 1)
        accumulator = CalibrationAccumulator(task="binary")
        probs = scores_to_probs(scores, input=input) if calibrator is None else calibrator.predict_proba(scores)
        _add_pairs(accumulator, probs, labels, sample_weight)
        return accumulator
    accumulator = CalibrationAccumulator()
    if calibrator is None:
        accumulator.update(scores, labels, input=input, sample_weight=sample_weight)
    else:
        accumulator.update(calibrator.predict_proba(scores), labels, sample_weight=sample_weight)
    return accumulator


def _add_pairs(
    accumulator: CalibrationAccumulator, probs: np.ndarray, labels: np.ndarray, sample_weight: np.ndarray | None
) -> None:
    """Add probabilities of two classes (n, 2): small ones as log-odds, because 1 - p has fewer digits than p."""
    small = probs.min(axis=1) < _SMALL
    with np.errstate(divide="ignore"):
        log_odds = np.diff(np.log(probs[small])).ravel()
    kinds: tuple[Input, Input] = ("probs", "logits")
    for rows, claims, kind in zip((~small, small), (probs[~small, 1], log_odds), kinds, strict=True):
        if len(claims):
            weights = None if sample_weight is None else sample_weight[rows]
            accumulator.update(claims, labels[rows], input=kind, sample_weight=weights)
