"""The records that a report consists of. They are frozen and turn into JSON."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal import _check
from refocal.metrics.diagnosis import Diagnosis
from refocal.report.saving import require_calibrator, save_report, write_json

if TYPE_CHECKING:
    from refocal.calibrators import Calibrator, Refinement
    from refocal.report.answers import CostDecisions, SetPredictions, Subgroup, ThresholdDecisions

SLIDER_LOGITS = 400_000  # rows x classes; as text they take 2.2 MB of a page


@dataclass(frozen=True)
class Estimate:
    """A measure with its confidence limits, which are None if it was measured from sums."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Diagram:
    """A reliability diagram: the bins that hold samples, and the band in which a calibrated model's accuracy lies.

    Attributes:
        count: Number of samples in each bin, or the sum of their weights.
        confidence: Their mean confidence.
        accuracy: The fraction of them that came true.
        low: Lower limit of the consistency band.
        high: Upper limit of the consistency band.
    """

    count: tuple[float, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Method:
    """One way to turn the scores into probabilities, measured on the test data.

    Sums over rows give neither p-values nor diagrams. A method measured from sums has None there.

    Attributes:
        name: Short and unique, such as "temperature".
        title: The name for people, such as "Temperature scaling".
        parameters: Fitted or given parameters, by name.
        chosen: Whether the report recommends this method.
        given: Whether these are the probabilities as given.
        measures: Estimates, by the name of the measure in `refocal.metrics`.
        p_value: The smallest p-value of `diagnosis`: small if the probabilities cannot be trusted.
        diagnosis: What the tests of calibration found, and what they could have found.
        fit_seconds: Duration of the fit; None if nothing was fitted.
        diagram: Reliability diagram of the top label, or of P(y = 1) in a report on a binary task.
        histogram: Number of samples whose confidence, or P(y = 1), lies in each of 20 equal parts of [0, 1].
        class_diagrams: One for each of the report's `shown_classes`, of that class's probability.
    """

    name: str
    title: str
    parameters: Mapping[str, float]
    chosen: bool
    given: bool
    measures: Mapping[str, Estimate]
    p_value: float | None
    diagnosis: Diagnosis | None
    fit_seconds: float | None
    diagram: Diagram | None
    histogram: tuple[int, ...] | None
    class_diagrams: tuple[Diagram, ...]


@dataclass(frozen=True)
class Change:
    """A sample whose confidence under the chosen method differs much from the one as given."""

    row: int
    label: int
    predicted: int
    before: float
    after: float


@dataclass(frozen=True)
class Slider:
    """Test rows for which the page recomputes its numbers at any gamma and T.

    These are a subset of the test rows if all of them would make the page too large.

    Attributes:
        logits: The rows one after the other as little-endian float32, in base64. The largest logit of each row is 0.
        labels: The true class of each row.
        gamma: The fitted value.
        temperature: The fitted value.
    """

    logits: str
    labels: tuple[int, ...]
    gamma: float
    temperature: float

    @classmethod
    def pack(cls, logits: np.ndarray, labels: np.ndarray, *, gamma: float, temperature: float) -> Slider:
        """Pack rows for the page.

        Args:
            logits: Shape (N, K) with N >= 1 and at most 400,000 numbers, unless N is 1; -inf masks a class.
            labels: Shape (N,), integers below K.
            gamma: Fitted focusing parameter, > -1.
            temperature: Fitted temperature, > 0.

        Example:
            >>> slider = Slider.pack(np.array([[2.0, 0.0, 1.0]]), np.array([0]), gamma=3.0, temperature=1.2)
            >>> slider.rows().tolist()
            [[0.0, -2.0, -1.0]]
        """
        _, logits = _check.floating(logits, "logits")
        _check.classes_last(logits, "logits")
        _check.logits(logits, "logits", xp=np)
        labels = np.asarray(_check.unmasked(labels, "labels"))
        if logits.ndim != 2 or labels.shape != logits.shape[:1] or len(labels) == 0:
            msg = f"logits must have shape (N, K) and labels (N,) with N >= 1, got {logits.shape} and {labels.shape}"
            raise ValueError(msg)
        if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= logits.shape[1]:
            msg = f"labels must be integers from 0 to {logits.shape[1] - 1}"
            raise ValueError(msg)
        if logits.size > SLIDER_LOGITS and len(logits) > 1:
            msg = f"logits must hold at most {SLIDER_LOGITS:,} numbers, got {logits.size:,}: choose fewer rows"
            raise ValueError(msg)
        # Only differences between logits matter. Those from the largest logit lose the fewest digits in float32.
        wide = logits.astype(np.float64)
        shifted = np.maximum(wide - wide.max(axis=1, keepdims=True), np.finfo(np.float32).min)
        narrow = np.where(np.isneginf(wide), -np.inf, shifted).astype("<f4")
        return cls(
            base64.b64encode(narrow.tobytes()).decode("ascii"),
            tuple(labels.tolist()),
            _check.scalar_gamma(gamma),
            _check.positive(temperature, "temperature"),
        )

    def rows(self) -> np.ndarray:
        """Unpack the logits: (N, K), float64."""
        numbers = np.frombuffer(base64.b64decode(self.logits), dtype="<f4")
        return numbers.reshape(len(self.labels), -1).astype(np.float64)


@dataclass(frozen=True)
class Verdict:
    """The result in words.

    Attributes:
        regime: "calibrated" (the probabilities can be trusted), "unclear" (no sign of miscalibration, but too little
            data), "overconfident", "underconfident", "miscalibrated" (in other ways), or, for a binary task, "too high"
            or "too low" on average.
        sentences: Plain English. The first sentence is the answer.
    """

    regime: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Report:
    """Whether the probabilities of a classifier can be trusted and, if not, which ones can.

    If the rows are in memory, a report holds everything. If they are in files or on a cluster, it is measured from sums
    over rows: there are estimates without confidence limits, and no verdict, p-values, diagrams, changes or slider.

    Attributes:
        source: Where the predictions came from, such as a file name.
        samples: Number of test samples. Rows of weight 0 do not count.
        total_weight: Sum of the sample weights; the number of samples if they have no weights.
        task: "binary" for two classes: measures and diagrams are about P(y = 1). Otherwise "multiclass".
        classes: Number of classes.
        class_names: One name per class.
        shown_classes: The classes that have diagrams: the most frequent ones.
        verdict: The result in words; None if measured from sums.
        rule: Why the recommended method was chosen, in one sentence; None if nothing was chosen by cross-validation.
        methods: The scores as given first, then the others by increasing NLL.
        changes: The samples whose confidence changed most, largest change first.
        slider: Rows for the live section of the page; None if measured from sums.
        versions: Versions of the packages that computed the report.
        protocol: How rows were divided into those that calibrators were fitted to and those that were measured, or
            which rows were measured, in sentences; empty if the caller divided them.
        settings: What made the report: the kind of scores, the training loss, the method, and so on.
        worst_classes: The classes with the largest ECE as given, largest first; empty for two classes.
        slices: The parts of the data by the columns that the caller named.
        costs: Decisions with the caller's costs; None if there are none.
        thresholds: Decisions by a threshold; None unless there are two classes.
        sets: Prediction sets with the caller's coverage; None if there are none.
        refinement: The log loss of the scores as given, split into what post-hoc calibration removes and what remains;
            None for fewer than 100 samples, for an infinite log loss, and if measured from sums.
        brier_refinement: The same for the Brier score.
        calibrator: The recommended calibrator, fitted; None if nothing was fitted. It is not part of the JSON.
    """

    source: str
    samples: int
    total_weight: float
    task: str
    classes: int
    class_names: tuple[str, ...]
    shown_classes: tuple[int, ...]
    verdict: Verdict | None
    rule: str | None
    methods: tuple[Method, ...]
    changes: tuple[Change, ...]
    slider: Slider | None
    versions: Mapping[str, str]
    protocol: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    worst_classes: tuple[Subgroup, ...] = ()
    slices: tuple[Subgroup, ...] = ()
    costs: CostDecisions | None = None
    thresholds: ThresholdDecisions | None = None
    sets: SetPredictions | None = None
    refinement: Refinement | None = None
    brier_refinement: Refinement | None = None
    calibrator: Calibrator | None = field(default=None, compare=False, metadata={"json": False})

    @property
    def given(self) -> Method:
        """The probabilities as given."""
        return next(method for method in self.methods if method.given)

    @property
    def chosen(self) -> Method:
        """The recommended method."""
        return next(method for method in self.methods if method.chosen)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the page (.html) or the record (.json). An interrupted write leaves no file."""

        def render() -> str:
            from refocal.report.page import render_page

            return render_page(self)

        save_report(path, render=render, serialize=self.to_json, overwrite=overwrite)

    def log(self, run: Any, *, run_id: str | None = None, step: int | None = None) -> None:
        """Log the report to a run of MLflow or Weights & Biases, to compare it with other runs.

        Metrics have stable names: `refocal/given/ece` for the scores as given, `refocal/chosen/ece` for the recommended
        method, `..._low` and `..._high` for limits, `.../p_value`, and `refocal/samples`. The verdict is in tags.
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
        """Export the recommended calibrator as a PyTorch module that maps scores (..., K) to probabilities."""
        return require_calibrator(self.calibrator, fit="calibrate").to_torch()

    def to_onnx(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the recommended calibrator as an ONNX graph that maps scores (batch, K) to "probabilities".

        Args:
            path: The file to write. Its folder must exist.
            overwrite: Whether to replace an existing file; if False, one raises FileExistsError.
        """
        require_calibrator(self.calibrator, fit="calibrate").to_onnx(Path(path), overwrite=overwrite)

    def __str__(self) -> str:
        """The answer and a short table of the methods, as plain text."""
        from refocal.report.table import format_table

        return format_table(self)

    def __repr__(self) -> str:
        """One line; the whole record would fill the screen."""
        return (
            f"<Report on {self.source!r}: {self.samples:,} samples, {self.classes:,} classes, "
            f"recommended: {self.chosen.title!r}>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, a short table and the reliability diagram."""
        from refocal.report.notebook import render_notebook

        return render_notebook(self)

    def to_json(self) -> str:
        """Serialize the report in ASCII, with its schema version. NaN and infinite numbers become null."""
        return write_json(self)


def freeze(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Copy a mapping into one that cannot be changed."""
    return MappingProxyType(dict(values))
