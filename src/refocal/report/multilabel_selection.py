"""Fitting calibrators to the scores of a multi-label task, and choosing one for each class."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from refocal import _check
from refocal._arrays import PerClass
from refocal._check import Input
from refocal.calibrators import MultilabelCalibrator
from refocal.report.evaluation import POSTERIOR, Step
from refocal.report.measure import TestData
from refocal.report.multilabel_evaluation import measure_together
from refocal.report.multilabel_events import Events
from refocal.report.multilabel_record import MultilabelReport
from refocal.report.record import freeze
from refocal.report.selection import METHODS, Selection, calibrate

_LEAST_EVENTS = 10  # positives and negatives that a fit needs


@dataclass(frozen=True)
class MultilabelSelection:
    """Calibrators of independent classes, fitted to the same data, and the one chosen for each class.

    Attributes:
        selections: One selection per class, each of a binary task.
        class_names: One name per class.
        input: "logits" or "probs".
        unfitted: Indices of classes that had too few positives or negatives to fit to.
        settings: The arguments of `calibrate_multilabel`, for the report.
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

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the chosen calibrators as JSON; `refocal.calibrators.load` reads it.

        Args:
            path: The file to write. Its folder must exist.
            overwrite: Whether to replace an existing file; if False, one raises FileExistsError.
        """
        self.calibrator.save(Path(path), overwrite=overwrite)

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
        data = Events.of(scores, labels, sample_weight, names=names, input=self.input)
        _check_width(data, len(self.selections))
        return measure_together(
            self.selections,
            data,
            calibrator=self.calibrator,
            unfitted=self.unfitted,
            settings=self.settings,
            source=source,
            progress=progress,
        )


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

    A class with fewer than 10 positives or negatives is not fitted: the closed-form posterior is used if the
    training loss is known; otherwise its scores stay as given.

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
    data = Events.of(scores, labels, sample_weight, names=class_names, input=input)
    return fit_events(data, gamma=gamma, alpha=alpha, method=method, progress=progress)


def fit_events(
    data: Events,
    *,
    gamma: PerClass | None = None,
    alpha: PerClass | None = None,
    method: str = "auto",
    progress: Step,
) -> MultilabelSelection:
    """Fit calibrators to checked data, as `calibrate_multilabel` says."""
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
        progress(f"fitting {data.describe_class(index)}")
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


def _shorten(values: np.ndarray) -> float | list[float]:
    """One number if all are equal."""
    return float(values[0]) if np.ptp(values) == 0 else [float(value) for value in values]


def _check_width(data: Events, classes: int) -> None:
    if len(data.names) != classes:
        msg = f"scores must have {classes} columns, one per fitted class, got {len(data.names)}"
        raise ValueError(msg)
