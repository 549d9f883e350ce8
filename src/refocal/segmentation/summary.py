"""The record of a segmentation network's calibration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from refocal.metrics.measure_record import Interval
from refocal.stats.binning import Bins

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class RegionCalibration:
    """Measures of the pixels of a region. Each has its value and its limits.

    Attributes:
        pixels: Number of pixels that count.
        images: Number of images with such pixels.
        ece: ECE of the top label.
        overconfidence: Mean confidence of the top label minus accuracy: positive for an overconfident network.
        nll: Mean negative log-likelihood.
        brier: Mean Brier score.
        accuracy: Share of pixels whose top label is right.
        bins: Sums over the bins of confidence, for a reliability diagram.
    """

    pixels: int
    images: int
    ece: Interval
    overconfidence: Interval
    nll: Interval
    brier: Interval
    accuracy: Interval
    bins: Bins = field(repr=False, compare=False)


class ClassCalibration(NamedTuple):
    """The probability of one class against its frequency, over all pixels.

    Attributes:
        ece: ECE of the probability of this class, one class against the rest.
        probability: Its mean predicted probability.
        frequency: The share of pixels with this label.
    """

    ece: Interval
    probability: float
    frequency: float


@dataclass(frozen=True)
class SegmentationSummary:
    """The measures of all images seen; `rich.print` shows them as a table.

    A measure of no pixels is NaN. If fewer than two images have pixels, the limits are the widest possible ones.

    Attributes:
        images: Number of images with pixels that count.
        level: Confidence level of all intervals.
        overall: All pixels.
        boundary: The pixels near a boundary between labels, see `boundary_band`; None if they were not measured.
        interior: All other pixels; None if they were not measured.
        classwise_ece: The mean of the classes' ECE; None if they were not measured.
        classes: One record per class; None if they were not measured.
    """

    images: int
    level: float
    overall: RegionCalibration
    boundary: RegionCalibration | None
    interior: RegionCalibration | None
    classwise_ece: Interval | None
    classes: tuple[ClassCalibration, ...] | None

    def to_json(self) -> str:
        """Serialize the measures in ASCII, with a schema version. NaN and infinite numbers become null."""
        from refocal.report.saving import write_json

        return write_json(self)

    def __rich__(self) -> RenderableType:
        """The tables that `rich.print` shows."""
        from refocal.segmentation.table import build_tables

        return build_tables(self)
