"""Measuring one or several ways to read scores as probabilities, on the same test data."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import refocal
from refocal import _check
from refocal._arrays import namespace
from refocal.calibrators.conversion import scores_to_probs
from refocal.report.measure import TestData, choose_classes, find_largest_changes, measure_method
from refocal.report.record import SLIDER_LOGITS, Report, Slider, freeze
from refocal.report.verdict import verdict

Step = Callable[[str], None]
GIVEN, POSTERIOR = "given", "posterior"


@dataclass(frozen=True)
class ScoreMap:
    """A way to read scores as probabilities.

    Attributes:
        name: Short and unique; "given" for the scores as they came.
        title: For people.
        predict: From scores to probabilities (N, K).
        parameters: The few numbers that people know it by.
        seconds: How long fitting took; None where nothing was fitted.
        on_slider: Whether the map is Psi^gamma(softmax(logits / T)) of its parameters, as the page's sliders set it.
    """

    name: str
    title: str
    predict: Callable[[Any], np.ndarray]
    parameters: Mapping[str, float]
    seconds: float | None
    on_slider: bool = True


def given_map(*, input: str) -> ScoreMap:
    """The scores as they came: softmax of logits, or the probabilities themselves."""
    return ScoreMap(GIVEN, "As given", lambda scores: scores_to_probs(scores, input=input), freeze({}), None)


def evaluate(
    scores: Any,
    labels: Any,
    *,
    input: str = "logits",
    sample_weight: Any = None,
    class_names: Sequence[str] | None = None,
    by_class: bool = True,
    source: str = "test data",
) -> Report:
    """Measure scores as they are, with nothing fitted.

    Args:
        scores: Scores (N, K), or (N,) or (N, 1) for two classes.
        labels: Class indices (N,).
        input: "logits" or "probs".
        sample_weight: One per row, or None.
        class_names: One a class.
        by_class: Whether to measure each class, too.
        source: What to call the data.

    Example:
        >>> import numpy as np
        >>> evaluate(np.array([[0.6, 0.4], [0.3, 0.7]] * 50), np.array([0, 1] * 50), input="probs").samples
        100

    Reference: Mukhoti et al. (2020), Sec. 2.
    """
    data = TestData.of(scores, labels, sample_weight)
    given = given_map(input=input)
    return compare([given], given, data, input=input, class_names=class_names, by_class=by_class, source=source)


def compare(
    maps: Sequence[ScoreMap],
    chosen: ScoreMap,
    data: TestData,
    *,
    input: str,
    gamma: float | None = None,
    class_names: Sequence[str] | None = None,
    by_class: bool = True,
    source: str = "test data",
    progress: Step = lambda _: None,
) -> Report:
    """Measure maps, the scores as given first, and put the chosen one forward."""
    given = maps[0].predict(data.scores)
    data = replace(data, labels=_check.labels(data.labels, given, "labels", xp=namespace(given)))
    classes = given.shape[1]
    names = tuple(map(str, range(classes))) if class_names is None else tuple(class_names)
    if len(names) != classes:
        msg = f"class_names must have one name for each of {classes} classes, got {len(names)}"
        raise ValueError(msg)
    wrong = [name for name in names if not isinstance(name, str)]
    if wrong:
        msg = f"class_names must be text, got {wrong[0]!r}"
        raise TypeError(msg)
    shown = choose_classes(data.labels, classes) if by_class else ()
    methods, best, below = [], given, None
    for score_map in maps:
        progress(f"measuring {score_map.title[0].lower()}{score_map.title[1:]}")
        probs = given if score_map is maps[0] else score_map.predict(data.scores)
        best = probs if score_map is chosen else best
        if score_map.name == POSTERIOR:
            below = float(np.average(given.max(axis=1) < probs.max(axis=1), weights=data.sample_weight))
        method = measure_method(
            probs,
            data,
            shown,
            seconds=score_map.seconds,
            name=score_map.name,
            title=score_map.title,
            parameters=freeze(score_map.parameters),
            chosen=score_map is chosen,
            given=score_map is maps[0],
        )
        methods.append(method)
    methods[1:] = sorted(methods[1:], key=lambda method: method.measures["nll"].value)
    winner = next(method for method in methods if method.chosen)
    fitted = next((c.parameters for c in (chosen, *reversed(maps)) if c.parameters and c.on_slider), {})
    return Report(
        source=source,
        samples=len(data.labels),
        classes=classes,
        class_names=names,
        shown_classes=shown,
        verdict=verdict(
            methods[0],
            winner,
            samples=len(data.labels),
            changed=float(np.average(np.argmax(best, axis=1) != np.argmax(given, axis=1), weights=data.sample_weight)),
            gamma=gamma,
            below=below,
            alone=len(methods) == 1,
        ),
        methods=tuple(methods),
        changes=() if winner.given else find_largest_changes(given, best, data.labels),
        slider=_slider(data, classes, fitted, input=input),
        versions=_versions(),
    )


def _slider(data: TestData, classes: int, fitted: Mapping[str, float], *, input: str) -> Slider:
    step = -(-len(data.labels) // max(1, SLIDER_LOGITS // classes))
    logits = scores_to_probs(data.scores[::step], input=input, log=True)
    values = {"gamma": 0.0, "temperature": 1.0, **fitted}
    return Slider.pack(logits, data.labels[::step], gamma=values["gamma"], temperature=values["temperature"])


def _versions() -> dict[str, str]:
    packages = {name: importlib.metadata.version(name) for name in ("numpy", "scipy", "scikit-learn")}
    return {"refocal": refocal.__version__, **packages, "python": platform.python_version()}
