"""Calibrating a multi-label task when there is only one data set: each row is measured by fits to other rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from refocal._check import Input
from refocal.report.cross_fitting import cross_fit, describe_folds, divide_rows
from refocal.report.evaluation import Step
from refocal.report.multilabel_evaluation import keep_chosen, measure_together
from refocal.report.multilabel_events import Events
from refocal.report.multilabel_record import MultilabelReport
from refocal.report.multilabel_selection import MultilabelSelection, fit_events


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
    data = Events.of(scores, labels, sample_weight, names=class_names, input=input)
    parts = divide_rows(len(data.scores), folds, seed=seed)
    selection = fit_events(data, progress=progress, **settings)
    crossed = []
    for index, own in enumerate(selection.selections):
        progress(f"fitting {data.describe_class(index)} without each fold")
        crossed.append(cross_fit(keep_chosen(own), data.select(index), parts))
    report = measure_together(
        crossed,
        data,
        calibrator=selection.calibrator,
        unfitted=selection.unfitted,
        settings=selection.settings,
        source=source,
        progress=progress,
    )
    report = replace(report, protocol=describe_folds(folds, len(data.scores)))
    probs = [own.chosen.predict_proba(data.scores[:, index])[:, 1] for index, own in enumerate(crossed)]
    return MultilabelCrossCalibration(selection, report, np.stack(probs, axis=1))
