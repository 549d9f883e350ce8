"""The main job on data sets of many files: choose a calibrator, and report on all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from refocal.calibrators import FocalTemperatureScaling, TemperatureScaling
from refocal.report.record import Report
from refocal.report.selection import Candidate, Selection
from refocal.report.selection import calibrate as calibrate_rows
from refocal.report.sums import report_sample
from refocal.scale.engines import Engine
from refocal.scale.fitting import fit
from refocal.scale.measuring import sum_up
from refocal.scale.parts import Block, FileSource, RowReader
from refocal.scale.sampling import Share, choose_sample_size, count_rows, draw_sample


@dataclass(frozen=True)
class Rows:
    """Some rows of a data set: its files, and which of their rows to read."""

    files: tuple[Path, ...]
    reader: RowReader

    def cut(self, low: float, high: float, *, seed: int) -> Rows:
        """Take a random part, from one fraction of the rows to another."""
        share = self.reader.share or Share.of(self.files, seed=seed)
        return replace(self, reader=replace(self.reader, share=share.cut(low, high)))


def select_and_report(
    engine: Engine,
    val: Rows,
    test: Rows,
    settings: Mapping[str, Any],
    *,
    most_rows: int,
    seed: int,
    source: str,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Selection, Report]:
    """Fit calibrators to some rows, choose one, and measure all of them on other rows.

    Calibrators are fitted to a sample of `val` that fits in memory, and one is chosen there. If there are more rows,
    temperature and focal temperature scaling are then fitted to all of them, from sums. Measures are those of all rows
    of `test`; verdict, intervals and p-values come from a sample of them.

    Args:
        engine: The engine that reads the files.
        val: The rows to fit to.
        test: The rows to measure on.
        settings: As for `refocal.calibrate`.
        most_rows: The most rows of a sample.
        seed: Seed of the samples.
        source: Name of the data in the report.
        progress: Called with a description of each step in memory.
    """
    form = val.reader.form
    size = choose_sample_size(form.classes, most_rows=most_rows)
    count = count_rows(engine, val.files, val.reader)
    drawn = draw_sample(engine, val.files, val.reader, size=size, of=count, seed=seed)
    weights = drawn.sample_weight
    selection = calibrate_rows(
        drawn.scores,
        drawn.labels,
        input=form.input,
        sample_weight=weights,
        class_names=form.class_names,
        progress=progress,
        **settings,
    )
    fitted = ""
    if len(drawn.labels) < count:
        selection = _fit_to_all(engine, selection, val)
        fitted = f"Methods were chosen and fitted on {len(drawn.labels):,} of {count:,} rows, temperatures on all."
    calibrators = [candidate.calibrator for candidate in selection.candidates[1:]]
    sums = sum_up(engine, test.files, test.reader, calibrators)
    rows = draw_sample(engine, test.files, test.reader, size=size, of=sums.rows, seed=seed)
    report = report_sample(
        selection,
        rows,
        sums.compute(),
        samples=sums.rows,
        seed=seed,
        class_names=form.class_names or test.reader.form.class_names,
        by_class=True,
        source=source,
        progress=progress,
    )
    return selection, replace(report, protocol=" ".join(filter(None, (fitted, report.protocol))))


def find_splits(engine: Engine, files: Sequence[Path], reader: RowReader) -> tuple[str, ...]:
    """Find the names of the splits of a data set, sorted; a file without splits counts as a split without a name."""
    found = engine.fold(FileSource.of(files, reader.read_splits), _distinct, _unite, what="looking for splits")
    return tuple(sorted(found or ()))


def _distinct(block: Block) -> frozenset[str]:
    return frozenset(map(str, set(block.labels.tolist())))


def _unite(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    return one | other


def _fit_to_all(engine: Engine, selection: Selection, val: Rows) -> Selection:
    """Fit the calibrators that sums suffice for to all rows."""

    def refit(candidate: Candidate) -> Candidate:
        if not isinstance(candidate.calibrator, TemperatureScaling | FocalTemperatureScaling):
            return candidate
        return replace(candidate, calibrator=fit(engine, candidate.calibrator, val.files, val.reader), seconds=None)

    candidates = tuple(map(refit, selection.candidates))
    chosen = next(each for each in candidates if each.name == selection.chosen.name)
    return replace(selection, candidates=candidates, chosen=chosen)
