"""Measuring the probabilities of one method for a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from refocal import _check, _image_checks, metrics
from refocal._containers import check_order, column_names, encode_labels, float_limits, to_array, to_numpy
from refocal.calibrators.conversion import claim_second_class
from refocal.metrics.defaults import RESAMPLES
from refocal.report.record import Change, Diagram, Estimate, Method, freeze

_HISTOGRAM_BINS = 20
_CLASSES_FOR_CLASSWISE = 100  # with more, classwise intervals take longer than everything else
_CLASSES_SHOWN = 20
_CHANGES = 12
_CLASS_RESAMPLES = 200


@dataclass(frozen=True)
class TestData:
    """The data on which all methods are measured.

    Attributes:
        scores: Scores as given, (N, K), or (N,) or (N, 1) for two classes.
        labels: Class indices (N,).
        sample_weight: One per row, or None.
        class_names: The names that were given, or those of the columns of a frame; None if there are none.
    """

    scores: np.ndarray
    labels: np.ndarray
    sample_weight: np.ndarray | None
    class_names: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        scores: ArrayLike,
        labels: ArrayLike,
        sample_weight: ArrayLike | None,
        *,
        class_names: Sequence[str] | None = None,
    ) -> Self:
        """Convert lists, arrays of any library, frames and series; labels that are names become class indices."""
        names = column_names(scores) if class_names is None else tuple(class_names)
        array = read_scores(scores, names)
        classes = max(2, array.shape[1]) if array.ndim == 2 else 2
        given = to_numpy(labels, "labels", column=True)
        _reject_several_labels(given, array)
        indices = encode_labels(given, names, classes, how="pass class_names")
        weight = None if sample_weight is None else to_numpy(sample_weight, "sample_weight", column=True)
        return cls(array, indices, weight, names)

    def find_counted(self) -> np.ndarray:
        """Return the numbers of the rows that count: all but those of weight 0. Wrong weights are rejected later."""
        weight = self.sample_weight
        if weight is None or weight.shape != self.labels.shape or not weight.any() or not (weight >= 0).all():
            return np.arange(len(self.labels))
        return np.flatnonzero(weight)

    def select(self, rows: np.ndarray) -> Self:
        """Select rows by their numbers."""
        weight = self.sample_weight
        return replace(
            self,
            scores=self.scores[rows],
            labels=self.labels[rows],
            sample_weight=None if weight is None else weight[rows],
        )


def read_scores(scores: ArrayLike, names: Sequence[str] | None) -> np.ndarray:
    """Convert scores of any container to NumPy. The columns of a frame must be in the order of the class names."""
    check_order(column_names(scores), names, "scores")
    array = to_array(scores, "scores")
    rows = to_numpy(array, "scores")
    if rows.ndim not in (1, 2) or len(rows) == 0:
        shapes = "(N, K), or (N,) for two classes, with N >= 1"
        msg = f"scores must have shape {shapes}, got {rows.shape}{_image_checks.image_hint(rows.shape)}"
        raise ValueError(msg)
    if rows.dtype.kind not in "iuf":
        msg = f"scores must be real numbers, got {rows.dtype}"
        raise TypeError(msg)
    if float_limits(array).bits == 16 and rows.dtype == np.float32 and rows.ndim == 2 and rows.shape[1] > 1:
        # bfloat16: rows of probabilities sum to 1 in 8 bits only
        sums = rows.sum(axis=1, keepdims=True, dtype=np.float64)
        if (rows >= 0).all() and (np.abs(sums - 1) <= _check.sum_tolerance(16)).all():
            rows = rows / sums
    return rows


def _reject_several_labels(labels: np.ndarray, scores: np.ndarray) -> None:
    """Reject one answer per row and class: that is another task, or one-hot labels."""
    if (
        labels.ndim == 2
        and labels.shape == scores.shape
        and labels.dtype.kind in "biuf"
        and np.isin(labels, (0, 1)).all()
    ):
        msg = (
            f"labels must be class indices (N,), got 0 and 1 for each class, {labels.shape}: if a row can have several "
            "labels, use refocal.evaluate_multilabel or refocal.calibrate_multilabel; if exactly one of each row is 1, "
            "pass labels.argmax(axis=1)"
        )
        raise ValueError(msg)


def choose_classes(labels: np.ndarray, classes: int) -> tuple[int, ...]:
    """Choose the classes that a report shows: the most frequent ones, in order of their index; none of two classes."""
    if classes == 2:
        return ()
    frequent = np.argsort(-np.bincount(labels, minlength=classes), kind="stable")[:_CLASSES_SHOWN]
    return tuple(sorted(frequent.tolist()))


def measure_method(
    probs: np.ndarray,
    data: TestData,
    shown: tuple[int, ...],
    *,
    among: int | None = None,
    seconds: float | None = None,
    **named: Any,
) -> Method:
    """Measure a method on test data.

    Args:
        probs: Its probabilities (N, K).
        data: The test data.
        shown: The classes to measure, too.
        among: The number of classes, each with a report of its own, that are judged together. They get fewer measures
            and resamples. None for a report that stands alone.
        seconds: Duration of the fit, or None.
        named: Its name, title, parameters and roles.
    """
    binary = probs.shape[1] == 2
    claims = claim_second_class(probs) if binary else probs
    settings: dict[str, Any] = {"sample_weight": data.sample_weight, "task": "binary" if binary else "multiclass"}
    resamples = RESAMPLES if among is None else _CLASS_RESAMPLES
    histogram = np.histogram(claims if binary else probs.max(axis=1), bins=_HISTOGRAM_BINS, range=(0.0, 1.0))[0]
    diagnosis = metrics.diagnose(claims, data.labels, among=among or 1, **settings)
    wanted: list[Callable[..., float]] = [metrics.brier, metrics.ece]
    if among is None:
        wanted.append(metrics.adaptive_ece)
    if shown and not binary and probs.shape[1] <= _CLASSES_FOR_CLASSWISE:
        wanted.append(metrics.classwise_ece)
    wanted.append(metrics.error)
    # from both columns: 1 - p has fewer digits than the probability of the first of two classes
    nll = metrics.interval(metrics.nll, probs, data.labels, sample_weight=data.sample_weight)
    measures = {"nll": Estimate(*nll)}
    for measure in wanted:
        estimate = Estimate(*metrics.interval(measure, claims, data.labels, **settings))
        measures[measure.__name__] = estimate
        if measure is metrics.ece:
            value = metrics.ece(claims, data.labels, debias=True, **settings)
            measures["debiased_ece"] = replace(estimate, value=value)
    return Method(
        measures=freeze(measures),
        p_value=diagnosis.p_value,
        diagnosis=diagnosis,
        fit_seconds=seconds,
        diagram=_diagram(metrics.reliability_diagram(claims, data.labels, resamples=resamples, **settings)),
        histogram=tuple(histogram.tolist()),
        class_diagrams=tuple(_class_diagram(probs[:, k], data.labels == k, data.sample_weight) for k in shown),
        **named,
    )


def _diagram(bins: metrics.ReliabilityDiagram) -> Diagram:
    return Diagram(*(tuple(part.tolist()) for part in bins))


def _class_diagram(probs: np.ndarray, came_true: np.ndarray, sample_weight: np.ndarray | None) -> Diagram:
    return _diagram(
        metrics.reliability_diagram(
            probs, came_true, sample_weight=sample_weight, task="binary", resamples=_CLASS_RESAMPLES
        )
    )


def find_largest_changes(
    before: np.ndarray, after: np.ndarray, labels: np.ndarray, numbers: np.ndarray
) -> tuple[Change, ...]:
    """Find the samples whose predicted class gained or lost the most probability; `numbers` are those of their rows."""
    predicted = np.argmax(after, axis=1)
    rows = np.arange(len(labels))
    change = after[rows, predicted] - before[rows, predicted]
    first = np.argsort(-np.abs(change), kind="stable")[:_CHANGES]
    return tuple(
        Change(
            int(numbers[i]),
            int(labels[i]),
            int(predicted[i]),
            float(before[i, predicted[i]]),
            float(after[i, predicted[i]]),
        )
        for i in first
    )
