"""The record of a report on detections."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from refocal.report import Estimate, Report
from refocal.report.saving import save_report, write_json

CLASS_NAMES = ("a wrong box", "a right box")


@dataclass(frozen=True, repr=False)
class DetectionReport:
    """Whether the score of a box is the probability that it is right, and what helps if it is not.

    Attributes:
        iou: The least IoU of a right box.
        min_score: Detections with a lower score were left out.
        images: Number of images in the annotations.
        objects: Number of objects that should be found; crowds and ignored objects do not count.
        detections: Number of detections that count.
        right: Number of them that are right, which is also the number of objects found.
        ignored: Number of detections that are matched to crowds or to ignored objects; they do not count.
        report: The report on the binary task "this box is right". The measures of its methods are `d_ece`, `la_ece`,
            `la_ece_0`, `nll`, `brier`, `debiased_ece` and `error`, with limits that resample images. Its slices are the
            most frequent categories.
        task: "detection".
    """

    iou: float
    min_score: float
    images: int
    objects: int
    detections: int
    right: int
    ignored: int
    report: Report
    task: str = "detection"

    @property
    def precision(self) -> float:
        """The share of detections that are right."""
        return self.right / self.detections

    @property
    def measures(self) -> Mapping[str, Estimate]:
        """The measures of the scores as given: estimates with confidence limits, by name."""
        return self.report.given.measures

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the page (.html) or the record (.json). An interrupted write leaves no file."""

        def render() -> str:
            from refocal.report.page import render_page

            return render_page(self.report)

        save_report(path, render=render, serialize=self.to_json, overwrite=overwrite)

    def to_json(self) -> str:
        """Serialize the report in ASCII, with its schema version. NaN and infinite numbers become null."""
        return write_json(self)

    def describe(self) -> str:
        """Say what was measured, in one line."""
        left_out = f", scores from {self.min_score:g}" if self.min_score > 0 else ""
        ignored = f", {self.ignored:,} ignored" if self.ignored else ""
        objects = "1 object" if self.objects == 1 else f"{self.objects:,} objects"
        return (
            f"{self.report.source}: {self.detections:,} boxes in {self.images:,} images{left_out}, {self.right:,} "
            f"right at IoU {self.iou:g}{ignored}; {objects}"
        )

    def __str__(self) -> str:
        """The answer and a short table of the methods, as plain text."""
        from refocal.detection.table import format_detection_table

        return format_detection_table(self)

    def __repr__(self) -> str:
        """One line; the whole record would fill the screen."""
        return f"<DetectionReport on {self.describe()}, recommended: {self.report.chosen.title!r}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, a short table and the reliability diagram."""
        return self.report._repr_html_()
