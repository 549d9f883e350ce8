"""The main job with one set of data: fit calibrators to it, and still measure each row by fits to other rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from refocal import _check
from refocal._check import Input
from refocal.report.decisions import read_costs
from refocal.report.evaluation import Step
from refocal.report.measure import TestData
from refocal.report.prediction_sets import read_coverage
from refocal.report.record import Report
from refocal.report.selection import Selection, calibrate
from refocal.report.subgroups import Slices, read_slices


class CrossCalibration(NamedTuple):
    """The result of `cross_calibrate`.

    Attributes:
        selection: The calibrators fitted to all rows, and the one chosen among them.
        report: Every calibrator, measured on rows that it was not fitted to.
        probs: Probabilities (N, K) by the chosen method, each row by a fit to other rows.
    """

    selection: Selection
    report: Report
    probs: np.ndarray


def cross_calibrate(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    folds: int = 5,
    seed: int = 0,
    input: Input | None = None,
    sample_weight: ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    by_class: bool = True,
    slices: Slices | None = None,
    costs: ArrayLike | None = None,
    sets: float | None = None,
    source: str = "data",
    progress: Step = lambda _: None,
    **settings: Any,
) -> CrossCalibration:
    """Fit calibrators to all rows, and measure each row by calibrators that were not fitted to it.

    Choose it if there is one set of held-out scores and no second one to measure on. The rows are divided into folds at
    random. Each fold is measured by calibrators fitted to the other folds. The method is chosen as by `calibrate`.

    Args:
        scores: Scores (N, K) on data that the classifier was not trained on, as for `calibrate`.
        labels: Class indices (N,), or names of classes.
        folds: Number of folds, at least 2.
        seed: Seed that divides the rows into folds.
        input: "logits" or "probs". None for logits; scores that look like probabilities are then rejected.
        sample_weight: One weight per row, or None.
        class_names: One name per class. If None, the names of a frame's columns, or else numbers.
        by_class: Whether to measure each class, too.
        slices: Columns that divide the rows, as for `refocal.evaluate`.
        costs: Costs (K, K) of decisions, as for `refocal.evaluate`.
        sets: A coverage for prediction sets, as for `refocal.evaluate`.
        source: Name of the data in the report.
        progress: Called with a description of each step.
        **settings: As for `calibrate`: the training loss, and `method`.

    Returns:
        The calibrators that are fitted to all rows, a report on the calibrators of the folds, whose `protocol` says so,
        and the probabilities that were measured.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = 2 * rng.standard_normal((2000, 3))
        >>> labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
        >>> found = cross_calibrate(3 * logits, labels, method="temperature")
        >>> round(found.selection.chosen.calibrator.temperature_), found.report.samples
        (3, 2000)

    Reference: cross-fitting: Chernozhukov et al., "Double/debiased machine learning", Econometrics Journal, 2018.
    """
    data = TestData.of(scores, labels, sample_weight, class_names=class_names)
    given, weights = data.scores, data.sample_weight
    rows, classes = len(data.labels), max([2, *given.shape[1:]])
    parts = divide_rows(rows, folds, seed=seed)
    columns, matrix, coverage = read_slices(slices, rows), read_costs(costs, classes), read_coverage(sets)
    selection = calibrate(
        given,
        data.labels,
        input=input,
        sample_weight=weights,
        class_names=data.class_names,
        progress=progress,
        **settings,
    )
    targets = data.labels.astype(np.intp)
    crossed = cross_fit(selection, replace(data, labels=targets), parts, progress=progress)
    report = crossed.report(
        given,
        targets,
        sample_weight=weights,
        class_names=data.class_names,
        by_class=by_class,
        slices=columns,
        costs=matrix,
        sets=coverage,
        source=source,
        progress=progress,
    )
    report = replace(report, protocol=describe_folds(folds, len(targets)))
    return CrossCalibration(selection, report, crossed.chosen.predict_proba(given))


def divide_rows(rows: int, folds: int, *, seed: int) -> list[np.ndarray]:
    """Divide rows at random into folds: the indices of each."""
    _check.count(folds, "folds", least=2, most=rows)
    return np.array_split(np.random.default_rng(_check.seed(seed, "seed")).permutation(rows), folds)


def cross_fit(
    selection: Selection, data: TestData, folds: Sequence[np.ndarray], *, progress: Step = lambda _: None
) -> Selection:
    """Fit each candidate of a selection without each fold in turn, and predict the fold.

    Args:
        selection: Calibrators fitted to all rows.
        data: These rows.
        folds: The indices of the rows of each fold.
        progress: Called with a description of each step.

    Returns:
        The same selection, whose candidates have the held-out probabilities.
    """
    rows, weights = len(data.labels), data.sample_weight
    classes = max([2, *data.scores.shape[1:]])
    held_out = {candidate.name: np.empty((rows, classes)) for candidate in selection.candidates}
    for number, measured in enumerate(folds, start=1):
        progress(f"fitting without fold {number} of {len(folds)}")
        fitted = np.setdiff1d(np.arange(rows), measured)
        own = None if weights is None else weights[fitted]
        for candidate in selection.candidates:
            unfitted = type(candidate.calibrator)(**candidate.calibrator.get_params(deep=False))
            calibrator = unfitted.fit(data.scores[fitted], data.labels[fitted], own)
            held_out[candidate.name][measured] = calibrator.predict_proba(data.scores[measured])
    candidates = tuple(replace(each, held_out=held_out[each.name]) for each in selection.candidates)
    chosen = next(each for each in candidates if each.name == selection.chosen.name)
    return replace(selection, candidates=candidates, chosen=chosen)


def describe_folds(folds: int, rows: int) -> str:
    """Say how rows were divided into those that calibrators were fitted to and those that were measured."""
    return (
        f"Cross-fitting in {folds} folds: each row is measured by calibrators that were fitted to the other folds. "
        f"The calibrator itself is fitted to all {rows:,} rows."
    )


def check_holdout(share: float) -> float:
    """Check the part of rows to measure on."""
    return _check.share(share, "holdout")


class HeldOutRows(NamedTuple):
    """Rows to fit to and rows to measure on, as sorted indices, and a sentence that says so."""

    fitted: np.ndarray
    measured: np.ndarray
    protocol: str


def hold_out(rows: int, share: float, *, seed: int = 0, unit: str = "rows") -> HeldOutRows:
    """Divide rows at random into some to fit to and some to measure on.

    Args:
        rows: Number of rows.
        share: The part to measure on, between 0 and 1.
        seed: Seed that chooses the rows.
        unit: What the rows are, in the plural.

    Example:
        >>> hold_out(10, 0.3).protocol
        'Measured on 3 rows held out at random, 30% of all (seed 0). The calibrator is fitted to the other 7 rows.'
    """
    check_holdout(share)
    measured = round(share * rows)
    if not 0 < measured < rows:
        msg = f"holdout must leave {unit} on both sides, got {share:g} of {rows} {unit}"
        raise ValueError(msg)
    order = np.random.default_rng(_check.seed(seed, "seed")).permutation(rows)
    protocol = (
        f"Measured on {measured:,} {unit} held out at random, {100 * share:.3g}% of all (seed {seed}). "
        f"The calibrator is fitted to the other {rows - measured:,} {unit}."
    )
    return HeldOutRows(np.sort(order[measured:]), np.sort(order[:measured]), protocol)
