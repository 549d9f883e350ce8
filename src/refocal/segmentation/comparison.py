"""The record of several calibrators, measured on the same images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from refocal.segmentation.summary import SegmentationSummary

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class MeasuredMethod:
    """A calibrator and the measures of its probabilities.

    Attributes:
        name: Short and unique; "given" for the scores as given.
        title: The name for people.
        parameters: The few parameters that the method is known by.
        chosen: Whether this is the recommended one.
        summary: The measures.
    """

    name: str
    title: str
    parameters: Mapping[str, float]
    chosen: bool
    summary: SegmentationSummary


@dataclass(frozen=True)
class SegmentationComparison:
    """Calibrators measured on the same images, the scores as given first; `rich.print` shows them as a table.

    Attributes:
        source: The name of the images.
        methods: The calibrators.
        rule: Why one was chosen, in one sentence; None if the caller named it.
        protocol: Which images were measured, in a sentence; "" if they are those that were given.
        task: Always "segmentation".
    """

    source: str
    methods: tuple[MeasuredMethod, ...]
    rule: str | None
    protocol: str
    task: str = field(default="segmentation", init=False)

    @property
    def given(self) -> MeasuredMethod:
        """The scores as given."""
        return self.methods[0]

    @property
    def chosen(self) -> MeasuredMethod:
        """The recommended method."""
        return next(method for method in self.methods if method.chosen)

    def to_json(self) -> str:
        """Serialize the comparison in ASCII, with a schema version. NaN and infinite numbers become null."""
        from refocal.report.saving import write_json

        return write_json(self)

    def __rich__(self) -> RenderableType:
        """The table that `rich.print` shows."""
        from refocal.segmentation.table import build_comparison

        return build_comparison(self)
