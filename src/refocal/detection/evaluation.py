"""Measuring detections: as given, and as calibrators make them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from refocal import _check
from refocal.detection.coco import Detections, Results, Truth
from refocal.detection.intervals import error_interval, mean_interval
from refocal.detection.matching import Matches, match
from refocal.detection.measures import LOCALIZATION_BINS, bin_by_category, bin_detections
from refocal.detection.record import CLASS_NAMES, DetectionReport
from refocal.metrics.defaults import BINS
from refocal.report import Estimate, Method, Report
from refocal.report import evaluate as evaluate_events
from refocal.report.record import freeze

_SHOWN = 20  # categories that are measured separately
_OTHERS = "(other categories)"
_PROTOCOL = (
    "Each row is a box, and P(y = 1) the probability that it is right: it overlaps an object of its category with IoU "
    "{iou:g} or more, and no box with a higher score has taken that object. Limits of D-ECE and LaECE resample images; "
    "those of NLL, Brier score and error treat images as the sample. Tests and the limits of single categories treat "
    "boxes as independent."
)


def evaluate(
    results: Results,
    annotations: Truth,
    *,
    iou: float = 0.5,
    min_score: float = 0.0,
    source: str | None = None,
) -> DetectionReport:
    """Measure whether the scores of a detector can be trusted as they are. Nothing is fitted.

    Args:
        results: A COCO results file, the list that it holds, or `Detections`.
        annotations: A COCO annotation file, the object that it holds, or `Annotations`.
        iou: The least IoU of a right box, as for `match`.
        min_score: Leave out detections with a lower score. Detectors write hundreds of boxes with scores near 0, which
            dominate every mean.
        source: Name of the data in the report; None for the name of the file.

    Returns:
        A report with D-ECE, LaECE and LaECE_0 and their limits, and the standard report on the binary task "this box
        is right".

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> box = {"category_id": 1, "bbox": [0, 0, 10, 10]}
        >>> truth = {"images": [{"id": i} for i in range(400)], "categories": [{"id": 1, "name": "cat"}]}
        >>> truth["annotations"] = [box | {"image_id": i} for i in range(200)]
        >>> found = [box | {"image_id": i, "score": 0.3} for i in range(400)]
        >>> report = evaluate(found, truth)
        >>> report.precision, round(report.measures["d_ece"].value, 6)
        (0.5, 0.2)

    Reference: Küppers et al. (2020); Oksuz et al. (2023); Kuzucu et al. (2024).
    """
    matches = select_and_match(results, annotations, iou=iou, min_score=min_score)
    rows = matches.counted
    report = evaluate_events(
        matches.detections.scores[rows],
        matches.matched[rows].astype(np.intp),
        input="probs",
        class_names=CLASS_NAMES,
        slices=list_slices(matches),
        source=source or matches.detections.name,
    )
    return complete(report, matches, {report.given.name: matches.detections.scores}, min_score=min_score)


def select_and_match(
    results: Results,
    annotations: Truth,
    *,
    iou: float,
    min_score: float,
) -> Matches:
    """Match the detections with at least this score. At least two must count."""
    least = _check.finite(min_score, "min_score", least=0.0)
    if least > 1:
        msg = f"min_score must be from 0 to 1, got {min_score!r}"
        raise ValueError(msg)
    found = Detections.read(results)
    if least > 0:
        found = found.select(np.flatnonzero(found.scores >= least))
    matches = match(found, annotations, iou=iou)
    if len(matches.counted) < 2:
        from_score = f" with scores from {least:g}" if least > 0 else ""
        ignored = len(matches.matched) - len(matches.counted)
        also = f"; {ignored:,} are ignored" if ignored else ""
        msg = f"{found.name}: at least two detections{from_score} must count, got {len(matches.counted)}{also}"
        raise ValueError(msg)
    return matches


def list_slices(matches: Matches) -> dict[str, list[str]]:
    """The category of each counted detection, by name; rare ones together."""
    categories = matches.annotations.categories
    times = Counter(categories.values())
    names = [name if times[name] == 1 else f"{name} ({own_id})" for own_id, name in categories.items()]
    own = [names[number] for number in matches.number_categories()[matches.counted].tolist()]
    frequent = {name for name, _ in Counter(own).most_common(_SHOWN)}
    return {"category": [name if name in frequent else _OTHERS for name in own]}


def complete(
    report: Report, matches: Matches, scores: Mapping[str, np.ndarray], *, min_score: float
) -> DetectionReport:
    """Put the measures of detections into a report on the binary task "this box is right".

    Args:
        report: The report on the detections that count.
        matches: All detections.
        scores: The scores of all detections (N,) by each method, by its name.
        min_score: Detections with a lower score were left out.
    """
    loose = match(matches.detections, matches.annotations, iou=0.0)
    methods = tuple(_measure(method, scores[method.name], matches, loose) for method in report.methods)
    protocol = " ".join(filter(None, (report.protocol, _PROTOCOL.format(iou=matches.threshold))))
    settings = freeze({**report.settings, "iou": matches.threshold, "min_score": min_score})
    counted = matches.counted
    return DetectionReport(
        iou=matches.threshold,
        min_score=min_score,
        images=len(matches.annotations.image_ids),
        objects=matches.objects,
        detections=len(counted),
        right=int(np.count_nonzero(matches.matched)),
        ignored=len(matches.matched) - len(counted),
        report=replace(report, methods=methods, protocol=protocol, settings=settings),
    )


def _measure(method: Method, scores: np.ndarray, matches: Matches, loose: Matches) -> Method:
    """Replace the measures of a method, whose limits take rows for independent."""
    binned = {
        "d_ece": bin_detections(matches, scores=scores, bins=BINS),
        "la_ece": bin_by_category(matches, scores=scores, bins=LOCALIZATION_BINS),
    }
    if len(loose.counted):
        binned["la_ece_0"] = bin_by_category(loose, scores=scores, bins=LOCALIZATION_BINS)
    measures = {name: Estimate(*error_interval(each)) for name, each in binned.items()}
    claim, right = scores[matches.counted], matches.matched[matches.counted]
    with np.errstate(divide="ignore"):
        losses = -np.log(np.where(right, claim, 1 - claim))
    means = {
        "nll": mean_interval(losses, matches, most=np.inf),
        "brier": mean_interval((claim - right) ** 2, matches, most=1.0),
        "error": mean_interval(((claim > 0.5) != right).astype(np.float64), matches, most=1.0, is_rate=True),
    }
    debiased = replace(measures["d_ece"], value=method.measures["debiased_ece"].value)
    ordered = {**measures, "debiased_ece": debiased} | {name: Estimate(*each) for name, each in means.items()}
    return replace(method, measures=freeze(ordered))
