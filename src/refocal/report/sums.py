"""Reports on data sets that were measured from sums over rows: in blocks, in many files or on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from refocal.metrics import CalibrationSummary
from refocal.report.evaluation import Step, name_classes, name_task, read_versions
from refocal.report.measure import TestData
from refocal.report.record import Estimate, Method, Report, freeze
from refocal.report.words import GIVEN, GIVEN_TITLE, describe_measure

if TYPE_CHECKING:
    from refocal.report.selection import Candidate, Selection

# the order of a report on rows, then the measures that only sums come with
_MEASURES = (
    *("nll", "brier", "ece", "adaptive_ece", "classwise_ece", "error"),
    *("rms", "mce", "confidence", "confidence_share", "share_accuracy"),
)
_BINARY_MEASURES = ("nll", "brier", "ece", "adaptive_ece", "error", "rms", "mce")  # those that mean P(y = 1)


def report_sums(
    given: CalibrationSummary,
    calibrated: tuple[Candidate, CalibrationSummary] | None = None,
    *,
    samples: int,
    classes: int,
    class_names: Sequence[str] | None,
    source: str,
) -> Report:
    """Build a report from sums over rows: measures without confidence limits, no verdict and no diagrams.

    Args:
        given: Measures of the scores as given.
        calibrated: A calibrator and the measures of its probabilities, or None.
        samples: Number of rows.
        classes: Number of classes.
        class_names: One name per class; numbers if None.
        source: Name of the data in the report.
    """
    names = _list_measures(classes)
    methods = [_method(None, given, names, chosen=calibrated is None)]
    if calibrated is not None:
        methods.append(_method(*calibrated, names, chosen=True))
    return Report(
        source=source,
        samples=samples,
        total_weight=given.samples,
        task=name_task(classes),
        classes=classes,
        class_names=name_classes(class_names, classes),
        shown_classes=(),
        verdict=None,
        rule=None,
        methods=tuple(methods),
        changes=(),
        slider=None,
        versions=read_versions(),
        calibrator=None if calibrated is None else calibrated[0].calibrator,
    )


def report_sample(
    selection: Selection,
    data: TestData,
    sums: Sequence[CalibrationSummary],
    *,
    samples: int,
    seed: int,
    class_names: Sequence[str] | None,
    by_class: bool,
    source: str,
    progress: Step = lambda _: None,
) -> Report:
    """Build a report from sums over all rows, and from a sample of rows where sums do not suffice.

    Args:
        selection: The calibrators.
        data: A random sample of the rows, or all of them: then the sums are not needed.
        sums: Measures of all rows by each candidate of the selection.
        samples: Number of all rows.
        seed: The seed of the sample, which the report states.
        class_names: One name per class; numbers if None.
        by_class: Whether to measure each class, too.
        source: Name of the data in the report.
        progress: Called with a description of each step.
    """
    drawn, classes = len(data.labels), max([2, *data.scores.shape[1:]])
    by_name = dict(zip((candidate.name for candidate in selection.candidates), sums, strict=True))
    report = selection.report(
        data.scores,
        data.labels,
        sample_weight=data.sample_weight,
        class_names=class_names,
        by_class=by_class,
        source=source,
        progress=progress,
        adjust=lambda method: method if drawn == samples else _put_sums_in(method, by_name[method.name], classes),
    )
    if drawn == samples:
        return report
    *others, last = (describe_measure(name).label for name in _list_measures(classes))
    protocol = (
        f"{', '.join(others)} and {last} are from sums over all {samples:,} rows. Everything else, such as tests, "
        f"intervals, debiased ECE and diagrams, is from {drawn:,} of them, chosen at random (seed {seed})."
    )
    # The rows of a sample have numbers that mean nothing to readers.
    return replace(report, samples=samples, total_weight=by_name[GIVEN].samples, protocol=protocol, changes=())


def _put_sums_in(method: Method, summary: CalibrationSummary, classes: int) -> Method:
    """Replace the measures of a sample by those of all rows.

    An interval that was measured on the sample is widened, if need be, to contain the value of all rows: it covers the
    true value no less often then.
    """
    measures = dict(method.measures)
    for name in _list_measures(classes):
        value = getattr(summary, name)
        old = measures.get(name, Estimate(value))
        limits = [] if old.low is None or old.high is None else [min(old.low, value), max(old.high, value)]
        measures[name] = Estimate(value, *limits)
    return replace(method, measures=freeze(measures))


def _list_measures(classes: int) -> tuple[str, ...]:
    return _BINARY_MEASURES if name_task(classes) == "binary" else _MEASURES


def _method(candidate: Candidate | None, summary: CalibrationSummary, names: Sequence[str], *, chosen: bool) -> Method:
    return Method(
        name=GIVEN if candidate is None else candidate.name,
        title=GIVEN_TITLE if candidate is None else candidate.title,
        parameters=freeze({} if candidate is None else candidate.parameters),
        chosen=chosen,
        given=candidate is None,
        measures=freeze({name: Estimate(getattr(summary, name)) for name in names}),
        p_value=None,
        diagnosis=None,
        fit_seconds=None if candidate is None else candidate.seconds,
        diagram=None,
        histogram=None,
        class_diagrams=(),
    )
