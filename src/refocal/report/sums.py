"""Reports on data sets that were measured from sums over rows: in blocks, in many files or on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from refocal.metrics import CalibrationSummary
from refocal.report.evaluation import name_classes, read_versions
from refocal.report.record import Estimate, Method, Report, freeze
from refocal.report.words import GIVEN, GIVEN_TITLE

if TYPE_CHECKING:
    from refocal.report.selection import Candidate

# the order of a report on rows, then the measures that only sums come with
_MEASURES = (
    *("nll", "brier", "ece", "adaptive_ece", "classwise_ece", "error"),
    *("rms", "mce", "confidence", "confidence_share", "share_accuracy"),
)


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
    methods = [_method(None, given, chosen=calibrated is None)]
    if calibrated is not None:
        methods.append(_method(*calibrated, chosen=True))
    return Report(
        source=source,
        samples=samples,
        total_weight=given.samples,
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


def _method(candidate: Candidate | None, summary: CalibrationSummary, *, chosen: bool) -> Method:
    return Method(
        name=GIVEN if candidate is None else candidate.name,
        title=GIVEN_TITLE if candidate is None else candidate.title,
        parameters=freeze({} if candidate is None else candidate.parameters),
        chosen=chosen,
        given=candidate is None,
        measures=freeze({name: Estimate(getattr(summary, name)) for name in _MEASURES}),
        p_value=None,
        fit_seconds=None if candidate is None else candidate.seconds,
        diagram=None,
        histogram=None,
        class_diagrams=(),
    )
