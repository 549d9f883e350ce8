"""The main job for a multi-label task: each class is a binary task of its own, and all of them are judged together."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from refocal import _check
from refocal._arrays import PerClass
from refocal._check import Input
from refocal.calibrators import MultilabelCalibrator
from refocal.calibrators.multilabel_data import name_columns, read_event_labels, read_event_scores
from refocal.calibrators.training_data import check_sample_weight
from refocal.report.cross_fitting import cross_fit, describe_folds, divide_rows
from refocal.report.evaluation import POSTERIOR, Step, compare, name_classes, read_versions
from refocal.report.measure import TestData
from refocal.report.multilabel_record import MultilabelReport
from refocal.report.multilabel_verdict import judge_together, write_multilabel_verdict
from refocal.report.record import Report, freeze
from refocal.report.selection import METHODS, Candidate, Selection, calibrate

_LEAST_EVENTS = 10  # positives and negatives that a fit needs


class _Events(NamedTuple):
    """Checked data of all classes."""

    scores: np.ndarray  # (N, K)
    labels: np.ndarray  # (N, K)
    weights: np.ndarray | None  # (N,)
    names: tuple[str, ...]
    input: Input

    @classmethod
    def of(cls, scores: Any, labels: Any, weights: Any, *, names: Sequence[str] | None, input: Input | None) -> _Events:
        named = name_columns(names, scores, labels)
        array, kind = read_event_scores(scores, "scores", input=input, names=named)
        answers = read_event_labels(labels, array.shape, named, "labels")
        weight = check_sample_weight(weights, len(array))
        return cls(array, answers, weight, name_classes(named, array.shape[1]), kind)

    def select(self, index: int) -> TestData:
        """The data of one class."""
        name = self.names[index]
        return TestData(self.scores[:, index], self.labels[:, index], self.weights, (f"not {name}", name))

    def count_events(self) -> np.ndarray:
        """Count the positives of each class, or its negatives if these are fewer, among rows with a weight."""
        labels = self.labels if self.weights is None else self.labels[self.weights > 0]
        positives = labels.sum(axis=0, dtype=np.int64)
        return np.minimum(positives, len(labels) - positives)


@dataclass(frozen=True)
class MultilabelSelection:
    """Calibrators of independent classes, fitted to the same data, and the one chosen for each class.

    Attributes:
        selections: One selection per class, each of a binary task.
        class_names: One name per class.
        input: "logits" or "probs".
        unfitted: Indices of classes that had too few positives or negatives to fit to.
        settings: What `calibrate_multilabel` was told, for the report.
    """

    selections: tuple[Selection, ...]
    class_names: tuple[str, ...]
    input: Input
    unfitted: tuple[int, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def calibrator(self) -> MultilabelCalibrator:
        """The chosen calibrators of all classes as one."""
        chosen = [selection.chosen.calibrator for selection in self.selections]
        return MultilabelCalibrator.join(chosen, input=self.input, classes=self.class_names)

    def predict_proba(self, scores: ArrayLike) -> np.ndarray:
        """Return calibrated probabilities (N, K) of scores of the fitted kind; rows do not sum to 1."""
        return self.calibrator.predict_proba(scores)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the chosen calibrators as JSON; `refocal.calibrators.load` reads it."""
        self.calibrator.save(Path(path))

    def report(
        self,
        scores: ArrayLike,
        labels: ArrayLike,
        *,
        sample_weight: ArrayLike | None = None,
        class_names: Sequence[str] | None = None,
        source: str = "test data",
        progress: Step = lambda _: None,
    ) -> MultilabelReport:
        """Measure the scores as given and the chosen calibrator of each class on test data.

        Args:
            scores: Test scores of the fitted kind, (N, K).
            labels: Labels (N, K), 0 or 1.
            sample_weight: One weight per row, or None.
            class_names: One name per class. If None, those of `calibrate_multilabel`.
            source: Name of the data in the report.
            progress: Called with a description of each step.
        """
        names = self.class_names if class_names is None else class_names
        data = _Events.of(scores, labels, sample_weight, names=names, input=self.input)
        _check_width(data, len(self.selections))
        return _measure(self, data, self.calibrator, source=source, progress=progress)


class MultilabelCrossCalibration(NamedTuple):
    """The result of `cross_calibrate_multilabel`.

    Attributes:
        selection: The calibrators fitted to all rows, and the one chosen for each class.
        report: The chosen calibrators, measured on rows that they were not fitted to.
        probs: Probabilities (N, K) by the chosen methods, each row by a fit to other rows.
    """

    selection: MultilabelSelection
    report: MultilabelReport
    probs: np.ndarray


def evaluate_multilabel(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    input: Input | None = None,
    sample_weight: ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    source: str = "test data",
    progress: Step = lambda _: None,
) -> MultilabelReport:
    """Measure whether the scores of a multi-label classifier can be trusted as they are. Nothing is fitted.

    Each class is a binary task of its own. The verdict is about all classes: its tests are corrected for their number.

    Args:
        scores: Scores (N, K), one sigmoid score per class: logits, or probabilities that need not sum to 1. A list, an
            array of any library, a tensor, or a frame of pandas, polars or Arrow.
        labels: Labels (N, K), 0 or 1, or booleans, in any of these containers.
        input: "logits" or "probs". None for logits; scores that look like probabilities are then rejected.
        sample_weight: One weight per row, or None.
        class_names: One name per class. If None, the names of a frame's columns, or else numbers.
        source: Name of the data in the report.
        progress: Called with a description of each step.

    Returns:
        A report with one binary report per class. It prints as a table, and its `save` writes a page or JSON.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.standard_normal((3000, 4))
        >>> labels = rng.random((3000, 4)) < 1 / (1 + np.exp(-logits))
        >>> evaluate_multilabel(logits * [1, 1, 3, 1], labels).verdict.sentences[0]
        'The probabilities of 1 of 4 classes cannot be trusted: class 2.'

    Reference: Mukhoti et al. (2020), Sec. 2; Holm's method for the number of classes.
    """
    data = _Events.of(scores, labels, sample_weight, names=class_names, input=input)
    given = Selection.of(None, input=data.input)
    selection = MultilabelSelection((given,) * len(data.names), data.names, data.input)
    return _measure(selection, data, None, source=source, progress=progress)


def calibrate_multilabel(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    gamma: PerClass | None = None,
    alpha: PerClass | None = None,
    method: str = "auto",
    input: Input | None = None,
    sample_weight: ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    progress: Step = lambda _: None,
) -> MultilabelSelection:
    """Fit calibrators to held-out scores of a multi-label classifier, and choose one for each class.

    A class with fewer than 10 positives or negatives is not fitted. It gets the closed-form posterior if the training
    loss is known, and stays as given otherwise.

    Args:
        scores: Scores (N, K), one sigmoid score per class, on data that the classifier was not trained on, as for
            `evaluate_multilabel`.
        labels: Labels (N, K), 0 or 1, or booleans.
        gamma: Focusing parameter of the sigmoid focal loss that the network was trained with: a number, or one value
            per class. If given, the closed-form posterior (`refocal.sigmoid_posterior`) is one of the candidates.
        alpha: Weight of the positives in that loss, in (0, 1): a number, or one value per class. None if positives and
            negatives had the same weight.
        method: One of `refocal.report.METHODS`, for every class. "auto" chooses for each class, as
            `refocal.calibrate` does for two classes.
        input: "logits" or "probs". None for logits; scores that look like probabilities are then rejected.
        sample_weight: One weight per row, or None.
        class_names: One name per class. If None, the names of a frame's columns, or else numbers.
        progress: Called with a description of each step.

    Returns:
        The fitted calibrators. Its `report` measures them on test data, its `predict_proba` applies the chosen ones,
        and its `save` writes them to one file.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.standard_normal((4000, 2))
        >>> labels = rng.random((4000, 2)) < 1 / (1 + np.exp(-logits))
        >>> calibration = calibrate_multilabel(logits * [1, 3], labels)  # the second class is overconfident
        >>> [selection.chosen.title for selection in calibration.selections]
        ['As given', 'Temperature scaling']

    Reference: Charoenphakdee et al. (2021), Secs. 5 and 6.1; Komisarenko and Kull (2024), Prop. 2.
    """
    data = _Events.of(scores, labels, sample_weight, names=class_names, input=input)
    return _fit(data, gamma=gamma, alpha=alpha, method=method, progress=progress)


def cross_calibrate_multilabel(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    folds: int = 5,
    seed: int = 0,
    input: Input | None = None,
    sample_weight: ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    source: str = "data",
    progress: Step = lambda _: None,
    **settings: Any,
) -> MultilabelCrossCalibration:
    """Fit calibrators of a multi-label task to all rows, and measure each row by fits to other rows.

    Choose it if there is one set of held-out scores and no second one to measure on, as for `cross_calibrate`.

    Args:
        scores: Scores (N, K), as for `calibrate_multilabel`.
        labels: Labels (N, K), 0 or 1, or booleans.
        folds: Number of folds, at least 2.
        seed: Seed that divides the rows into folds.
        input: "logits" or "probs". None for logits; scores that look like probabilities are then rejected.
        sample_weight: One weight per row, or None.
        class_names: One name per class. If None, the names of a frame's columns, or else numbers.
        source: Name of the data in the report.
        progress: Called with a description of each step.
        **settings: As for `calibrate_multilabel`: `gamma`, `alpha` and `method`.

    Returns:
        The calibrators that are fitted to all rows, a report on the calibrators of the folds, whose `protocol` says so,
        and the probabilities that were measured.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.standard_normal((1000, 2))
        >>> labels = rng.random((1000, 2)) < 1 / (1 + np.exp(-logits))
        >>> cross_calibrate_multilabel(2 * logits, labels, method="platt").probs.shape
        (1000, 2)

    Reference: cross-fitting: Chernozhukov et al., "Double/debiased machine learning", Econometrics Journal, 2018.
    """
    data = _Events.of(scores, labels, sample_weight, names=class_names, input=input)
    parts = divide_rows(len(data.scores), folds, seed=seed)
    selection = _fit(data, progress=progress, **settings)
    crossed = []
    for index, own in enumerate(selection.selections):
        progress(f"fitting {_count(index, data.names)} without each fold")
        crossed.append(cross_fit(_keep_chosen(own), data.select(index), parts))
    measured = replace(selection, selections=tuple(crossed))
    report = _measure(measured, data, selection.calibrator, source=source, progress=progress)
    report = replace(report, protocol=describe_folds(folds, len(data.scores)))
    probs = [own.chosen.predict_proba(data.scores[:, index])[:, 1] for index, own in enumerate(crossed)]
    return MultilabelCrossCalibration(selection, report, np.stack(probs, axis=1))


def _fit(
    data: _Events,
    *,
    gamma: PerClass | None = None,
    alpha: PerClass | None = None,
    method: str = "auto",
    progress: Step,
) -> MultilabelSelection:
    _check.one_of(method, "method", METHODS)
    classes = len(data.names)
    if gamma is None and alpha is not None:
        msg = "alpha describes a sigmoid focal loss whose gamma must be given, too: 0 for cross-entropy"
        raise ValueError(msg)
    if method == POSTERIOR and gamma is None:
        msg = "method='posterior' needs gamma, the focusing parameter that the network was trained with"
        raise ValueError(msg)
    gammas = None if gamma is None else np.broadcast_to(_check.gamma(gamma, classes=classes), classes)
    checked = _check.alpha(alpha, classes=classes)
    alphas = None if checked is None else np.broadcast_to(checked, classes)
    unfitted = () if method == POSTERIOR else tuple(np.flatnonzero(data.count_events() < _LEAST_EVENTS).tolist())
    selections = []
    for index in range(classes):
        progress(f"fitting {_count(index, data.names)}")
        own = data.select(index)
        loss: dict[str, Any] = {} if gammas is None else {"gamma": float(gammas[index])}
        if alphas is not None:
            # Two classes with these weights have the same map: the weights divide the odds by alpha / (1 - alpha).
            loss["weight"] = [1 - float(alphas[index]), float(alphas[index])]
        chosen = (POSTERIOR if loss else "given") if index in unfitted else method
        selections.append(_select(own, chosen, loss, data.input))
    told = {
        "input": data.input,
        "method": method,
        "gamma": None if gammas is None else _shorten(gammas),
        "alpha": None if alphas is None else _shorten(alphas),
        "fitted_samples": len(data.scores) if data.weights is None else int(np.count_nonzero(data.weights)),
    }
    return MultilabelSelection(tuple(selections), data.names, data.input, unfitted, freeze(told))


def _select(data: TestData, method: str, loss: Mapping[str, Any], input: Input) -> Selection:
    """Fit the calibrators of one class; "given" leaves its scores as they are."""
    if method != "given":
        return calibrate(
            data.scores,
            data.labels,
            method=method,
            input=input,
            sample_weight=data.sample_weight,
            class_names=data.class_names,
            **loss,
        )
    selection = Selection.of(None, input=input)
    selection.chosen.calibrator.fit(data.scores, data.labels, data.sample_weight)
    return selection


def _measure(
    selection: MultilabelSelection,
    data: _Events,
    calibrator: MultilabelCalibrator | None,
    *,
    source: str,
    progress: Step,
) -> MultilabelReport:
    """Measure each class by itself, and judge all of them together. Without a calibrator, nothing was tried."""
    reports, changed = [], []
    for index, own in enumerate(selection.selections):
        progress(f"measuring {_count(index, data.names)}")
        report, share = _measure_class(_keep_chosen(own), data.select(index), len(data.names), source=source)
        reports.append(report)
        changed.append(share)
    tried = [calibrator is not None and index not in selection.unfitted for index in range(len(reports))]
    judged = judge_together(reports, changed, tried=tried)
    return MultilabelReport(
        source=source,
        samples=judged[0].samples,
        total_weight=judged[0].total_weight,
        class_names=data.names,
        reports=judged,
        verdict=write_multilabel_verdict(judged, data.names, tried=any(tried), unfitted=selection.unfitted),
        unfitted=selection.unfitted,
        versions=read_versions(),
        settings=freeze({**judged[0].settings, **selection.settings, "columns": len(data.names)}),
        calibrator=calibrator,
    )


def _measure_class(selection: Selection, data: TestData, among: int, *, source: str) -> tuple[Report, float]:
    """Measure one class; return its report, and the fraction of its decisions that the chosen method changes."""
    maps = selection.list_maps()
    given, chosen = next(iter(maps.values())), maps[selection.chosen.name]
    report = compare(
        list(maps.values()),
        chosen,
        data,
        input=selection.input,
        class_names=data.class_names,
        source=source,
        rule=selection.rule,
        among=among,
    )
    decisions = [np.argmax(each.predict(data.scores), axis=1) for each in (given, chosen)]
    changed = float(np.average(decisions[0] != decisions[1], weights=data.sample_weight))
    return replace(report, calibrator=selection.chosen.calibrator), changed


def _keep_chosen(selection: Selection) -> Selection:
    """Leave out the candidates that were not chosen: the report of a class shows before and after only."""
    given = selection.candidates[0]
    kept: tuple[Candidate, ...] = (given,) if selection.chosen.name == given.name else (given, selection.chosen)
    return replace(selection, candidates=kept)


def _count(index: int, names: Sequence[str]) -> str:
    return f"{names[index]} (class {index + 1:,} of {len(names):,})"


def _shorten(values: np.ndarray) -> float | list[float]:
    """One number if all are equal."""
    return float(values[0]) if np.ptp(values) == 0 else [float(value) for value in values]


def _check_width(data: _Events, classes: int) -> None:
    if len(data.names) != classes:
        msg = f"scores must have {classes} columns, one per fitted class, got {len(data.names)}"
        raise ValueError(msg)
