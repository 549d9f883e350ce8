"""The record of a multi-label report: one report per class, and a verdict about all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refocal.metrics.diagnosis import FALSE_ALARM
from refocal.report.record import Method, Report, Verdict
from refocal.report.saving import require_calibrator, save_report, write_json

if TYPE_CHECKING:
    from refocal.calibrators import MultilabelCalibrator


@dataclass(frozen=True, repr=False)
class MultilabelReport:
    """Whether the probabilities of independent classes can be trusted and, if not, what helps.

    Each class is a binary task with a report of its own. All p-values are corrected for the number of classes: if the
    probabilities of all classes are calibrated, the probability that any class fails is at most 5%.

    Attributes:
        source: Where the predictions came from, such as a file name.
        samples: Number of test samples; rows of weight 0 do not count.
        total_weight: Sum of the sample weights; the number of samples if they have no weights.
        class_names: One name per class.
        reports: One report per class, on P(y = 1). They have no rows for a live section.
        verdict: The result in words, about all classes.
        unfitted: Indices of classes that nothing was fitted to: they had too few positives or negatives.
        versions: Versions of the packages that computed the report.
        protocol: How rows were divided into those that calibrators were fitted to and those that were measured, or
            which rows were measured, in sentences; empty if the caller divided them.
        settings: What made the report: the kind of scores, the training loss, the method, and so on.
        task: "multilabel".
        calibrator: The calibrators of all classes as one, fitted; None if nothing was fitted. It is not part of the
            JSON.
    """

    source: str
    samples: int
    total_weight: float
    class_names: tuple[str, ...]
    reports: tuple[Report, ...]
    verdict: Verdict
    unfitted: tuple[int, ...]
    versions: Mapping[str, str]
    protocol: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    task: str = "multilabel"
    calibrator: MultilabelCalibrator | None = field(default=None, compare=False, metadata={"json": False})

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def ranking(self) -> tuple[int, ...]:
        """The classes, worst first: those that fail, then the others, each by decreasing debiased ECE."""
        return rank_classes(self.reports)

    @property
    def is_changed(self) -> bool:
        """Whether any class has a recommended method other than the scores as given."""
        return any(not report.chosen.given for report in self.reports)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the page (.html) or the record (.json). An interrupted write leaves no file."""

        def render() -> str:
            from refocal.report.multilabel_page import render_multilabel_page

            return render_multilabel_page(self)

        save_report(path, render=render, serialize=self.to_json, overwrite=overwrite)

    def log(self, run: Any, *, run_id: str | None = None, step: int | None = None) -> None:
        """Log the report to a run of MLflow or Weights & Biases, to compare it with other runs.

        Metrics have stable names: `refocal/given/ece_mean` for the mean over the classes of the scores as given,
        `refocal/given/ece_largest` for the worst class, `refocal/chosen/...` after calibration, `.../p_value`, and
        `refocal/samples`. The verdict is in tags.
        Files in the folder `refocal`: the page `report.html`, the record `report.json` and, if something was fitted,
        `calibrator.json`. In Weights & Biases they are an artifact, and the page is also among the charts.

        Args:
            run: The module `mlflow` or `wandb` for its active run, an MLflow run or client, or a `wandb.Run`.
            run_id: The MLflow run, if `run` is a client or the module.
            step: The step of training at which the report was made.
        """
        from refocal.report.tracking import log_report

        log_report(self, run, run_id=run_id, step=step)

    def to_torch(self) -> Any:
        """Export the calibrators as a PyTorch module that maps scores (..., K) to probabilities (..., K)."""
        return require_calibrator(self.calibrator, fit="calibrate_multilabel").to_torch()

    def to_onnx(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the calibrators as an ONNX graph that maps scores (batch, K) to "probabilities" (batch, K).

        Args:
            path: The file to write. Its folder must exist.
            overwrite: Whether to replace an existing file; if False, one raises FileExistsError.
        """
        require_calibrator(self.calibrator, fit="calibrate_multilabel").to_onnx(Path(path), overwrite=overwrite)

    def to_json(self) -> str:
        """Serialize the report in ASCII, with its schema version. NaN and infinite numbers become null."""
        return write_json(self)

    def __str__(self) -> str:
        """The answer and a short table of the worst classes, as plain text."""
        from refocal.report.multilabel_table import format_multilabel_table

        return format_multilabel_table(self)

    def __repr__(self) -> str:
        """One line; the whole record would fill the screen."""
        failing = sum(fails(report.given) for report in self.reports)
        return (
            f"<MultilabelReport on {self.source!r}: {self.samples:,} samples, {self.classes:,} classes, "
            f"{failing:,} of them not calibrated>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, a short table and the reliability diagram of the worst class."""
        from refocal.report.multilabel_page import render_multilabel_notebook

        return render_multilabel_notebook(self)


def fails(method: Method) -> bool:
    """Whether the probabilities of a class cannot be trusted."""
    return method.p_value is not None and method.p_value <= FALSE_ALARM


def rank_classes(reports: Sequence[Report]) -> tuple[int, ...]:
    """Order the classes, worst first: those that fail, then the others, each by decreasing debiased ECE."""

    def place(index: int) -> tuple[bool, float]:
        given = reports[index].given
        return not fails(given), -given.measures["debiased_ece"].value

    return tuple(sorted(range(len(reports)), key=place))
