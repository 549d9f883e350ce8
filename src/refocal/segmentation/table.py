"""A segmentation network's calibration in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from refocal.metrics.measure_record import Interval
from refocal.report import words
from refocal.report.terminal import Sentence, write_text
from refocal.segmentation.comparison import SegmentationComparison
from refocal.segmentation.summary import SegmentationSummary

_MEASURES = {
    "ece": "ECE",
    "overconfidence": "overconfidence",
    "nll": "NLL",
    "brier": "Brier score",
    "accuracy": "accuracy",
}


def build_tables(
    summary: SegmentationSummary, *, source: str = "", class_names: Sequence[str] | None = None
) -> RenderableType:
    """Build a table of the regions and, if classes were measured, one of the classes.

    Args:
        summary: The measures.
        source: The name of the images, for the title.
        class_names: One name per class; None for numbers.
    """
    level = _describe_limits(summary)
    named = {name: getattr(summary, name) for name in ("overall", "boundary", "interior")}
    found = {name: region for name, region in named.items() if region is not None}
    title = f"{source}: {level}" if source else f"Calibration of pixels, {level}"
    regions = Table("pixels", title=write_text(title))
    for name, region in found.items():
        regions.add_column(f"{name}\n{region.pixels:,}", justify="right")
    for measure, title in _MEASURES.items():
        regions.add_row(title, *(_write(getattr(region, measure)) for region in found.values()))
    if summary.classes is None or summary.classwise_ece is None:
        return regions
    classes = Table("class", title=f"Each class against the rest, {level}")
    for title in ("frequency", "mean probability", "ECE"):
        classes.add_column(title, justify="right")
    for number, each in enumerate(summary.classes):
        name = str(number) if class_names is None else class_names[number]
        classes.add_row(write_text(name), f"{each.frequency:.4f}", f"{each.probability:.4f}", _write(each.ece))
    classes.add_row("mean", "", "", _write(summary.classwise_ece))
    return Group(regions, classes)


def build_comparison(comparison: SegmentationComparison) -> RenderableType:
    """Build a table of calibrators that were measured on the same images."""
    first = comparison.given.summary
    about = f"{first.overall.pixels:,} pixels, {_describe_limits(first)}"
    table = Table("method", title=write_text(f"{comparison.source}: {about}"))
    for title in ("ECE", "ECE near\nboundaries", "over-\nconfidence", "NLL"):
        table.add_column(title, justify="right")
    for method in comparison.methods:
        overall, boundary = method.summary.overall, method.summary.boundary
        assert boundary is not None  # a comparison measures it
        shown = [overall.ece, boundary.ece, overall.overconfidence, overall.nll]
        mark = "\u00a0←" if method.chosen else ""
        name = write_text(method.title + mark, words.format_parameters(method.parameters))
        table.add_row(name, *map(_write, shown), style="bold" if method.chosen else None)
    notes = [comparison.protocol, f"← recommended: {comparison.chosen.title}", comparison.rule or ""]
    return Group(table, *map(Sentence, filter(None, notes)))


def _describe_limits(summary: SegmentationSummary) -> str:
    return f"{100 * summary.level:g}% limits over {summary.images:,} image{'' if summary.images == 1 else 's'}"


def _write(interval: Interval) -> str:
    if math.isnan(interval.value):  # of no pixels
        return "–"
    return f"{interval.value:.4f}\n{interval.low:.4f} to {interval.high:.4f}"
