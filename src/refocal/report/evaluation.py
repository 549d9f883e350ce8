"""Measuring the scores as given and any calibrators on the same test data."""

from __future__ import annotations

import importlib.metadata
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

import refocal
from refocal import _check
from refocal._arrays import namespace
from refocal._check import Input
from refocal._probability_look import resolve_input
from refocal.calibrators.conversion import scores_to_probs
from refocal.metrics.defaults import LEVEL, RESAMPLES
from refocal.report.decisions import read_costs, sweep_thresholds, weigh_costs
from refocal.report.measure import TestData, choose_classes, find_largest_changes, measure_method
from refocal.report.prediction_sets import measure_sets, read_coverage
from refocal.report.record import SLIDER_LOGITS, Method, Report, Slider, freeze
from refocal.report.subgroups import Slices, find_worst_classes, measure_slices, read_slices
from refocal.report.verdict import write_verdict
from refocal.report.words import GIVEN, GIVEN_TITLE, lower_title

if TYPE_CHECKING:
    from refocal.calibrators import Refinement

_SAMPLES_TO_SPLIT = 100  # fewer do not tell how much of a loss calibration removes
_MOST_TO_SPLIT = 20_000  # of more samples, every second, third, ... tells what calibration removes
Step = Callable[[str], None]
Adjust = Callable[[Method], Method]
POSTERIOR = "posterior"


@dataclass(frozen=True)
class ScoreMap:
    """A map from scores to probabilities, with the names that a report gives it.

    Attributes:
        name: Short and unique; "given" for the scores as given.
        title: The name for people.
        predict: Function from scores to probabilities (N, K).
        parameters: The few parameters that the map is known by.
        seconds: Duration of the fit; None if nothing was fitted.
        on_slider: Whether the map is Psi^gamma(softmax(logits / T)) of its parameters, which the page's sliders set.
    """

    name: str
    title: str
    predict: Callable[[ArrayLike], np.ndarray]
    parameters: Mapping[str, float]
    seconds: float | None
    on_slider: bool = True


def given_map(*, input: Input) -> ScoreMap:
    """Return the map of the scores as given: softmax of logits, or the probabilities themselves."""
    return ScoreMap(GIVEN, GIVEN_TITLE, lambda scores: scores_to_probs(scores, input=input), freeze({}), None)


def evaluate(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    input: Input | None = None,
    sample_weight: ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    by_class: bool = True,
    slices: Slices | None = None,
    costs: ArrayLike | None = None,
    sets: float | None = None,
    source: str = "test data",
) -> Report:
    """Measure whether the scores of a classifier can be trusted as they are. Nothing is fitted.

    Args:
        scores: Scores (N, K), or (N,) or (N, 1) for two classes: a list, an array of any library, a tensor, or a frame
            or series of pandas, polars or Arrow.
        labels: Class indices (N,), or names of classes.
        input: "logits" or "probs". None for logits; scores that look like probabilities are then rejected.
        sample_weight: One weight per row, or None. Rows of weight 0 count as absent.
        class_names: One name per class. If None, the names of a frame's columns, or else numbers.
        by_class: Whether to measure each class, too.
        slices: Columns that divide the rows, such as {"region": regions}, each with one value per row, or a frame of
            such columns. Each part is measured, too; the rows where a value is missing are one part.
        costs: Costs (K, K) of decisions: row y holds the cost of each decision if the true class is y.
        sets: A coverage, such as 0.9, for which prediction sets are measured: sets of classes that contain the true
            class with this probability, see `refocal.conformal.PredictionSets`.
        source: Name of the data in the report.

    Returns:
        A report, which `build_table` shows in a terminal and `Report.save` writes as a page or as JSON.

    Example:
        >>> import numpy as np
        >>> evaluate(np.array([[0.6, 0.4], [0.3, 0.7]] * 50), np.array([0, 1] * 50), input="probs").samples
        100

    Reference: Mukhoti et al. (2020), Sec. 2.
    """
    data = TestData.of(scores, labels, sample_weight, class_names=class_names)
    kind = resolve_input(input, data.scores)
    given = given_map(input=kind)
    return compare(
        [given],
        given,
        data,
        input=kind,
        class_names=data.class_names,
        by_class=by_class,
        slices=slices,
        costs=costs,
        sets=sets,
        source=source,
    )


def compare(
    score_maps: Sequence[ScoreMap],
    chosen: ScoreMap,
    data: TestData,
    *,
    input: Input,
    gamma: float | None = None,
    class_names: Sequence[str] | None = None,
    by_class: bool = True,
    slices: Slices | None = None,
    costs: ArrayLike | None = None,
    sets: float | None = None,
    source: str = "test data",
    rule: str | None = None,
    progress: Step = lambda _: None,
    adjust: Adjust = lambda method: method,
    among: int | None = None,
) -> Report:
    """Measure several maps, of which the first gives the scores as given, and report the chosen one as recommended.

    Rows of weight 0 count as absent. `rule` says why the recommended map was chosen. `among` is the number of classes
    that are judged together, each with a report of its own, without the rows that a page shows; None for a report that
    stands alone.
    """
    scores = data.scores
    given = score_maps[0].predict(scores)
    data = replace(data, labels=_check.labels(data.labels, given, "labels", xp=namespace(given)))
    classes = given.shape[1]
    names = name_classes(class_names, classes)
    columns, cost_matrix = read_slices(slices, len(data.labels)), read_costs(costs, classes)
    coverage = read_coverage(sets)
    counted = data.find_counted()
    some = len(counted) < len(data.labels)
    if some:
        data, given = data.select(counted), given[counted]
        columns = {name: column[counted] for name, column in columns.items()}
    shown = choose_classes(data.labels, classes) if by_class else ()
    methods, best, below = [], given, None
    for score_map in score_maps:
        progress(f"measuring {lower_title(score_map.title)}")
        probs = given
        if score_map is not score_maps[0]:
            probs = score_map.predict(scores)[counted] if some else score_map.predict(scores)
        best = probs if score_map is chosen else best
        if score_map.name == POSTERIOR:
            below = float(np.average(given.max(axis=1) < probs.max(axis=1), weights=data.sample_weight))
        method = measure_method(
            probs,
            data,
            shown,
            among=among,
            seconds=score_map.seconds,
            name=score_map.name,
            title=score_map.title,
            parameters=freeze(score_map.parameters),
            chosen=score_map is chosen,
            given=score_map is score_maps[0],
        )
        methods.append(adjust(method))
    methods[1:] = sorted(methods[1:], key=lambda method: method.measures["nll"].value)
    winner = next(method for method in methods if method.chosen)
    compared = [given] if chosen is score_maps[0] else [given, best]
    truth = (data.labels, data.sample_weight)
    by_preference = (chosen, *reversed(score_maps))
    fitted = next((each.parameters for each in by_preference if each.parameters and each.on_slider), {})
    parts = (None, None) if among else _split_losses(given, data, methods[0])
    return Report(
        source=source,
        samples=len(data.labels),
        total_weight=float(len(data.labels) if data.sample_weight is None else np.sum(data.sample_weight)),
        task=name_task(classes),
        classes=classes,
        class_names=names,
        shown_classes=shown,
        verdict=write_verdict(
            methods[0],
            winner,
            class_names=names,
            samples=len(data.labels),
            changed=float(np.average(np.argmax(best, axis=1) != np.argmax(given, axis=1), weights=data.sample_weight)),
            gamma=gamma,
            below=below,
            alone=len(methods) == 1,
        ),
        rule=rule,
        methods=tuple(methods),
        changes=() if winner.given or among else find_largest_changes(given, best, data.labels, counted),
        slider=None if among else _slider(data, classes, fitted, input=input),
        versions=read_versions(),
        settings=freeze(
            {
                "input": input,
                "columns": max([1, *data.scores.shape[1:]]),
                "weighted": data.sample_weight is not None,
                "level": LEVEL,
                "resamples": RESAMPLES,
                "seed": 0,
            }
        ),
        worst_classes=find_worst_classes(compared, *truth, names) if by_class and classes > 2 else (),
        slices=measure_slices(compared, *truth, columns),
        costs=None if cost_matrix is None else weigh_costs(compared, *truth, cost_matrix),
        thresholds=sweep_thresholds(compared, *truth) if classes == 2 else None,
        sets=None if coverage is None else measure_sets(compared, *truth, coverage),
        refinement=parts[0],
        brier_refinement=parts[1],
    )


def _split_losses(given: np.ndarray, data: TestData, method: Method) -> tuple[Refinement | None, Refinement | None]:
    """Split the log loss and the Brier score of the scores as given.

    Both are None if there are few samples, and a loss that is infinite is None.
    """
    from refocal.calibrators.loss_parts import split_losses

    some = slice(None, None, -(-len(given) // _MOST_TO_SPLIT))
    weights = None if data.sample_weight is None else data.sample_weight[some]
    samples = len(given[some]) if weights is None else np.count_nonzero(weights)
    if samples < _SAMPLES_TO_SPLIT:
        return None, None
    nll, brier = split_losses(given[some], data.labels[some], ("nll", "brier"), input="probs", sample_weight=weights)
    # A report has the Brier score of P(y = 1), which is half of that of two classes.
    return _rescale(nll, method, 1.0), _rescale(brier, method, 0.5 if given.shape[1] == 2 else 1.0)


def _rescale(parts: Refinement, method: Method, unit: float) -> Refinement | None:
    """Convert parts to the unit and the total of a report; None if the total is infinite."""
    total, calibration = method.measures[parts.score].value, unit * parts.calibration
    if not math.isfinite(total):
        return None
    return replace(
        parts,
        total=total,
        refinement=total - calibration,
        calibration=calibration,
        total_error=unit * parts.total_error,
        refinement_error=unit * parts.refinement_error,
        calibration_error=unit * parts.calibration_error,
    )


def name_task(classes: int) -> str:
    """Name the task: two classes are about P(y = 1)."""
    return "binary" if classes == 2 else "multiclass"


def name_classes(names: Sequence[str] | None, classes: int) -> tuple[str, ...]:
    """Check the names of the classes; without names, return their numbers."""
    if names is None:
        return tuple(str(number) for number in range(classes))
    if len(names) != classes:
        msg = f"class_names must have one name for each of {classes} classes, got {len(names)}"
        raise ValueError(msg)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        msg = f"class_names must be text, got {wrong[0]!r}"
        raise TypeError(msg)
    return tuple(names)


def _slider(data: TestData, classes: int, fitted: Mapping[str, float], *, input: Input) -> Slider:
    step = -(-len(data.labels) // max(1, SLIDER_LOGITS // classes))
    logits = scores_to_probs(data.scores[::step], input=input, log=True)
    values = {"gamma": 0.0, "temperature": 1.0, **fitted}
    return Slider.pack(logits, data.labels[::step], gamma=values["gamma"], temperature=values["temperature"])


def read_versions() -> dict[str, str]:
    """Return the versions of the packages that compute a report."""
    packages = {name: importlib.metadata.version(name) for name in ("numpy", "scipy", "scikit-learn")}
    return {"refocal": refocal.__version__, **packages, "python": platform.python_version()}
