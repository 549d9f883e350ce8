"""The main job: fit calibrators to one part of the data, compare them on another, and report."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refocal import _check
from refocal._arrays import namespace
from refocal.calibrators import BY_NAME, AutoCalibrator, Calibrator, FocalPosterior
from refocal.report.evaluation import GIVEN, POSTERIOR, ScoreMap, Step, compare, given_map
from refocal.report.measure import TestData
from refocal.report.record import Report

_TITLES = {
    "ensemble": "Ensemble temperature scaling",
    "dirichlet": "Dirichlet calibration",
    "beta": "Beta calibration",
    "isotonic": "Isotonic calibration",
    "histogram": "Histogram binning",
}
_AUTO = ("temperature", "focal-temperature", "ensemble", "vector", "matrix")
_BESIDE = ("temperature", "focal-temperature")  # what a chosen method is compared with
_LEAST_FOR_AUTO = 10
_CLASSES_FOR_MATRIX = 100  # beyond, its K^2 parameters take minutes
METHODS = ("auto", "posterior", *BY_NAME)


@dataclass(frozen=True)
class Candidate:
    """A calibrator that was fitted, and how long that took (None: it had nothing to fit)."""

    name: str
    title: str
    calibrator: Calibrator
    seconds: float | None

    @property
    def parameters(self) -> dict[str, float]:
        """The few numbers that people know it by."""
        names = {
            "posterior": {"gamma": "gamma"},
            "temperature": {"temperature": "temperature_"},
            "focal-temperature": {"gamma": "gamma_", "temperature": "temperature_"},
        }.get(self.name, {})
        return {name: float(getattr(self.calibrator, attribute)) for name, attribute in names.items()}

    @property
    def has_further_settings(self) -> bool:
        """Whether its map needs more than these numbers: the loss's class weights, smoothing or stopped gradient."""
        loss = self.calibrator
        return isinstance(loss, FocalPosterior) and bool(
            loss.weight is not None or loss.label_smoothing or loss.detached
        )


@dataclass(frozen=True)
class Selection:
    """Calibrators fitted to the same data, the best of them chosen.

    Attributes:
        chosen: The recommended one; "given" where nothing beat the scores as they came.
        candidates: All of them, the scores as they came first.
        gamma: The focal parameter of the training loss, where it was told.
        input: "logits" or "probs".
    """

    chosen: Candidate
    candidates: tuple[Candidate, ...]
    gamma: float | None
    input: str

    def predict_proba(self, scores: Any) -> np.ndarray:
        """Calibrated probabilities (N, K) of scores of the kind that was fitted to."""
        return self.chosen.calibrator.predict_proba(scores)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the chosen calibrator as JSON; `refocal.calibrators.load` reads it."""
        self.chosen.calibrator.save(Path(path))

    def report(
        self,
        scores: Any,
        labels: Any,
        *,
        sample_weight: Any = None,
        class_names: Sequence[str] | None = None,
        by_class: bool = True,
        source: str = "test data",
        progress: Step = lambda _: None,
    ) -> Report:
        """Measure every calibrator on test data.

        Args:
            scores: Test scores of the kind that was fitted to, (N, K).
            labels: Class indices (N,).
            sample_weight: One per row, or None.
            class_names: One a class; numbers where they are not given.
            by_class: Whether to measure each class, too.
            source: What to call the data.
            progress: Is told what is being done.
        """
        data = TestData.of(scores, labels, sample_weight)
        given = given_map(input=self.input)
        maps = {
            fitted.name: given
            if fitted.name == GIVEN
            else ScoreMap(
                fitted.name,
                fitted.title,
                fitted.calibrator.predict_proba,
                fitted.parameters,
                fitted.seconds,
                on_slider=not fitted.has_further_settings,
            )
            for fitted in self.candidates
        }
        return compare(
            list(maps.values()),
            maps[self.chosen.name],
            data,
            input=self.input,
            gamma=self.gamma,
            class_names=class_names,
            by_class=by_class,
            source=source,
            progress=progress,
        )


def calibrate(
    scores: Any,
    labels: Any,
    *,
    gamma: float | None = None,
    weight: Any = None,
    label_smoothing: float = 0.0,
    detached: bool = False,
    method: str = "auto",
    input: str = "logits",
    sample_weight: Any = None,
    progress: Step = lambda _: None,
) -> Selection:
    """Fit calibrators to held-out scores of a classifier and choose one.

    Args:
        scores: Scores (N, K) on data that the classifier was not trained on; (N,) or (N, 1) for two classes, see
            `refocal.calibrators.Calibrator`.
        labels: Class indices (N,).
        gamma: The focal parameter that the network was trained with, if it was; its closed-form posterior is then one
            of the candidates.
        weight: Class weights of that loss.
        label_smoothing: Label smoothing of that loss.
        detached: Whether that loss stopped the gradient of its focusing factor.
        method: "auto" chooses by cross-validated likelihood among temperature, focal temperature, ensemble, vector and,
            up to 100 classes, matrix scaling; else one of `refocal.report.METHODS`.
        input: "logits" or "probs".
        sample_weight: One a row, or None.
        progress: Is told what is being done.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = 2 * rng.standard_normal((4000, 3))
        >>> labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
        >>> calibration = calibrate(3 * logits[:2000], labels[:2000])  # of an overconfident classifier
        >>> calibration.chosen.title
        'Temperature scaling'
        >>> report = calibration.report(3 * logits[2000:], labels[2000:])
        >>> report.verdict.regime
        'overconfident'

    Reference: Charoenphakdee et al. (2021), Secs. 5 and 6.1; Komisarenko and Kull (2024), Secs. 4.2 and 5.
    """
    _check.one_of(method, "method", METHODS)
    if gamma is not None:
        gamma = _check.scalar_gamma(gamma)
    elif weight is not None or label_smoothing or detached:
        msg = "weight, label_smoothing and detached are of the loss whose gamma is given: cross-entropy's gamma is 0"
        raise ValueError(msg)
    if method == "posterior" and gamma is None:
        msg = "method='posterior' needs the gamma that the network was trained with"
        raise ValueError(msg)
    labels = _class_indices(labels, np.shape(scores))
    if method == "auto" and len(labels) < _LEAST_FOR_AUTO:
        msg = f"method='auto' needs {_LEAST_FOR_AUTO} samples or more, got {len(labels)}: choose a method"
        raise ValueError(msg)
    names = _AUTO if method == "auto" else tuple(dict.fromkeys((method, *_BESIDE)))
    if method == "auto" and np.asarray(scores).shape[-1] > _CLASSES_FOR_MATRIX:
        names = tuple(name for name in names if name != "matrix")
    data = (scores, labels, sample_weight)
    candidates = [_fit(GIVEN, "As given", FocalPosterior(gamma=0.0, input=input), data)]
    if gamma is not None:
        posterior = FocalPosterior(
            gamma=gamma, weight=weight, label_smoothing=label_smoothing, detached=detached, input=input
        )
        candidates.append(_fit(POSTERIOR, "Closed-form posterior", posterior, data))
    for name in names:
        if name in BY_NAME:
            title = _TITLES.get(name, f"{name.capitalize().replace('-', ' ')} scaling")
            progress(f"fitting {title[0].lower()}{title[1:]}")
            candidates.append(_fit(name, title, BY_NAME[name](input=input), data))
    if method == "auto":
        progress("choosing by cross-validation")
        choice = AutoCalibrator(candidates=[fitted.calibrator for fitted in candidates], input=input)
        choice.fit(scores, labels, sample_weight)
        chosen = candidates[choice.best_index_]
    else:
        chosen = next(fitted for fitted in candidates if fitted.name == method)
    return Selection(chosen, tuple(candidates), gamma, input)


def _class_indices(labels: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The labels, checked: an estimator would take any K different numbers for names of the classes."""
    samples, *classes = shape or (0,)
    rows = np.broadcast_to(0.0, (samples, max([2, *classes])))
    checked: np.ndarray = _check.labels(
        np.asarray(_check.unmasked(labels, "labels")), rows, "labels", xp=namespace(rows)
    )
    return checked


def _fit(name: str, title: str, calibrator: Calibrator, data: tuple[Any, Any, Any]) -> Candidate:
    scores, labels, weights = data
    start = time.perf_counter()
    calibrator.fit(scores, labels, weights)
    seconds = time.perf_counter() - start
    return Candidate(name, title, calibrator, None if isinstance(calibrator, FocalPosterior) else seconds)
