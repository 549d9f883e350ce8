"""Measuring the scores of a multi-label task: each class is a binary task, and all of them are judged together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from refocal._check import Input
from refocal.calibrators import MultilabelCalibrator
from refocal.report.evaluation import Step, compare, read_versions
from refocal.report.measure import TestData
from refocal.report.multilabel_events import Events
from refocal.report.multilabel_record import MultilabelReport
from refocal.report.multilabel_verdict import judge_together, write_multilabel_verdict
from refocal.report.record import Report, freeze
from refocal.report.selection import Candidate, Selection


def evaluate_multilabel(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    input: Input | None = None,
    sample_weight: ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    source: str = "test data",
    progress: Step = lambda _: None,
) -> MultilabelReport:
    """Measure whether the scores of a multi-label classifier can be trusted as they are. Nothing is fitted.

    Each class is a binary task of its own. The verdict is about all classes: its tests are corrected for their number.

    Args:
        scores: Scores (N, K), one sigmoid score per class: logits, or probabilities that need not sum to 1. A list, an
            array of any library, a tensor, or a frame of pandas, polars or Arrow.
        labels: Labels (N, K), 0 or 1, or booleans, in any of these containers.
        input: "logits" or "probs". None for logits; scores that look like probabilities are then rejected.
        sample_weight: One weight per row, or None.
        class_names: One name per class. If None, the names of a frame's columns, or else numbers.
        source: Name of the data in the report.
        progress: Called with a description of each step.

    Returns:
        A report with one binary report per class. It prints as a table, and its `save` writes a page or JSON.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.standard_normal((3000, 4))
        >>> labels = rng.random((3000, 4)) < 1 / (1 + np.exp(-logits))
        >>> evaluate_multilabel(logits * [1, 1, 3, 1], labels).verdict.sentences[0]
        'The probabilities of 1 of 4 classes cannot be trusted: class 2.'

    Reference: Mukhoti et al. (2020), Sec. 2; Holm's method for the number of classes.
    """
    data = Events.of(scores, labels, sample_weight, names=class_names, input=input)
    given = Selection.of(None, input=data.input)
    return measure_together((given,) * len(data.names), data, source=source, progress=progress)


def measure_together(
    selections: Sequence[Selection],
    data: Events,
    *,
    calibrator: MultilabelCalibrator | None = None,
    unfitted: Sequence[int] = (),
    settings: Mapping[str, Any] | None = None,
    source: str,
    progress: Step,
) -> MultilabelReport:
    """Measure each class by itself, and judge all of them together.

    Args:
        selections: One per class, each of a binary task.
        data: The test data.
        calibrator: The chosen calibrators of all classes as one; None if nothing was tried.
        unfitted: Indices of classes that had too few positives or negatives to fit to.
        settings: What made the selections, for the report.
        source: Name of the data in the report.
        progress: Called with a description of each step.
    """
    reports, changed = [], []
    for index, own in enumerate(selections):
        progress(f"measuring {data.describe_class(index)}")
        report, share = _measure_class(keep_chosen(own), data.select(index), len(data.names), source=source)
        reports.append(report)
        changed.append(share)
    tried = [calibrator is not None and index not in unfitted for index in range(len(reports))]
    judged = judge_together(reports, changed, tried=tried)
    return MultilabelReport(
        source=source,
        samples=judged[0].samples,
        total_weight=judged[0].total_weight,
        class_names=data.names,
        reports=judged,
        verdict=write_multilabel_verdict(judged, data.names, tried=any(tried), unfitted=unfitted),
        unfitted=tuple(unfitted),
        versions=read_versions(),
        settings=freeze({**judged[0].settings, **(settings or {}), "columns": len(data.names)}),
        calibrator=calibrator,
    )


def _measure_class(selection: Selection, data: TestData, among: int, *, source: str) -> tuple[Report, float]:
    """Measure one class; return its report, and the fraction of its decisions that the chosen method changes."""
    maps = selection.list_maps()
    given, chosen = next(iter(maps.values())), maps[selection.chosen.name]
    report = compare(
        list(maps.values()),
        chosen,
        data,
        input=selection.input,
        class_names=data.class_names,
        source=source,
        rule=selection.rule,
        among=among,
    )
    decisions = [np.argmax(each.predict(data.scores), axis=1) for each in (given, chosen)]
    changed = float(np.average(decisions[0] != decisions[1], weights=data.sample_weight))
    return replace(report, calibrator=selection.chosen.calibrator), changed


def keep_chosen(selection: Selection) -> Selection:
    """Leave out the candidates that were not chosen: the report of a class shows before and after only."""
    given = selection.candidates[0]
    kept: tuple[Candidate, ...] = (given,) if selection.chosen.name == given.name else (given, selection.chosen)
    return replace(selection, candidates=kept)
