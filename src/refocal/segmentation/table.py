"""A segmentation network's calibration in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from refocal.metrics.measure_record import Interval
from refocal.segmentation.summary import SegmentationSummary

_MEASURES = {
    "ece": "ECE",
    "overconfidence": "overconfidence",
    "nll": "NLL",
    "brier": "Brier score",
    "accuracy": "accuracy",
}


def build_tables(summary: SegmentationSummary) -> RenderableType:
    """Build a table of the regions and, if classes were measured, one of the classes."""
    level = f"{100 * summary.level:g}% limits over {summary.images:,} images"
    named = {name: getattr(summary, name) for name in ("overall", "boundary", "interior")}
    found = {name: region for name, region in named.items() if region is not None}
    regions = Table("pixels", title=f"Calibration of pixels, {level}")
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
        classes.add_row(str(number), f"{each.frequency:.4f}", f"{each.probability:.4f}", _write(each.ece))
    classes.add_row("mean", "", "", _write(summary.classwise_ece))
    return Group(regions, classes)


def _write(interval: Interval) -> str:
    return f"{interval.value:.4f}\n{interval.low:.4f} to {interval.high:.4f}"
