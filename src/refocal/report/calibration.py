"""The main job: fit calibrators to one part of the data, compare them on another, and report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import refocal
from refocal import _check
from refocal.calibrators import (
    AutoCalibrator,
    BetaCalibration,
    Calibrator,
    DirichletCalibration,
    EnsembleTemperatureScaling,
    FocalPosterior,
    FocalTemperatureScaling,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    PlattScaling,
    TemperatureScaling,
    VectorScaling,
)
from refocal.report.measure import TestData, largest_changes, measured_method, shown_classes
from refocal.report.record import SLIDER_LOGITS, Report, Slider, frozen
from refocal.report.verdict import verdict

_METHODS: dict[str, tuple[str, type[Calibrator]]] = {
    "temperature": ("Temperature scaling", TemperatureScaling),
    "focal-temperature": ("Focal temperature scaling", FocalTemperatureScaling),
    "ensemble": ("Ensemble temperature scaling", EnsembleTemperatureScaling),
    "vector": ("Vector scaling", VectorScaling),
    "matrix": ("Matrix scaling", MatrixScaling),
    "dirichlet": ("Dirichlet calibration", DirichletCalibration),
    "platt": ("Platt scaling", PlattScaling),
    "beta": ("Beta calibration", BetaCalibration),
    "isotonic": ("Isotonic calibration", IsotonicCalibration),
    "histogram": ("Histogram binning", HistogramBinning),
}
_AUTO = ("temperature", "focal-temperature", "ensemble", "vector", "matrix")
_BESIDE = ("temperature", "focal-temperature")  # what a chosen method is compared with
METHODS = ("auto", "posterior", *_METHODS)

Step = Callable[[str], None]


@dataclass(frozen=True)
class Fitted:
    """A calibrator that was fitted, and how long that took (None: it had nothing to fit)."""

    name: str
    title: str
    calibrator: Calibrator
    seconds: float | None

    @property
    def parameters(self) -> dict[str, float]:
        """The few numbers that people know it by."""
        known = {"gamma": ("gamma_", "gamma"), "temperature": ("temperature_",)}
        if self.name not in {"posterior", *_BESIDE}:
            return {}
        found = {}
        for name, attributes in known.items():
            value = next((getattr(self.calibrator, a) for a in attributes if hasattr(self.calibrator, a)), None)
            if isinstance(value, (int, float)) and not (self.name == "temperature" and name == "gamma"):
                found[name] = float(value)
        return found


@dataclass(frozen=True)
class Calibration:
    """Calibrators fitted to the same data, the best of them chosen.

    Attributes:
        chosen: The recommended one; "given" where nothing beat the scores as they came.
        tried: All of them, the scores as they came first.
        gamma: The focal parameter of the training loss, where it was told.
    """

    chosen: Fitted
    tried: tuple[Fitted, ...]
    gamma: float | None

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
        weights: Any = None,
        class_names: Sequence[str] | None = None,
        source: str = "test data",
        progress: Step = lambda _: None,
    ) -> Report:
        """Measure every calibrator on test data.

        Args:
            scores: Test scores of the kind that was fitted to, (N, K).
            labels: Class indices (N,).
            weights: One a row, or None.
            class_names: One a class; numbers where they are not given.
            source: What to call the data.
            progress: Is told what is being done.
        """
        data = TestData(np.asarray(scores), np.asarray(labels), None if weights is None else np.asarray(weights))
        given = self.tried[0].calibrator.predict_proba(data.scores)
        classes = given.shape[1]
        names = tuple(map(str, range(classes))) if class_names is None else tuple(class_names)
        if len(names) != classes:
            msg = f"class_names must have one name for each of {classes} classes, got {len(names)}"
            raise ValueError(msg)
        shown = shown_classes(data.labels, classes)
        methods, best = [], given
        for fitted in self.tried:
            progress(f"measuring {fitted.title[0].lower()}{fitted.title[1:]}")
            probs = given if fitted.name == "given" else fitted.calibrator.predict_proba(data.scores)
            is_chosen = fitted is self.chosen
            best = probs if is_chosen else best
            method = measured_method(
                probs,
                data,
                shown,
                seconds=fitted.seconds,
                name=fitted.name,
                title=fitted.title,
                parameters=frozen(fitted.parameters),
                chosen=is_chosen,
                given=fitted.name == "given",
            )
            methods.append(method)
        methods[1:] = sorted(methods[1:], key=lambda method: method.measures["nll"].value)
        chosen = next(method for method in methods if method.chosen)
        changed = float(np.mean(np.argmax(best, axis=1) != np.argmax(given, axis=1)))
        return Report(
            source=source,
            samples=len(data.labels),
            classes=classes,
            class_names=names,
            shown_classes=shown,
            verdict=verdict(methods[0], chosen, given, changed, gamma=self.gamma),
            methods=tuple(methods),
            changes=() if chosen.given else largest_changes(given, best, data.labels),
            slider=self._slider(data, classes),
            versions=_versions(),
        )

    def _slider(self, data: TestData, classes: int) -> Slider:
        step = -(-len(data.labels) * classes // SLIDER_LOGITS)
        logits = self.tried[0].calibrator.predict_log_proba(data.scores[::step])
        fits = [fitted for fitted in (self.chosen, *self.tried) if fitted.parameters]
        values = fits[0].parameters if fits else {}
        return Slider.pack(
            logits, data.labels[::step], gamma=values.get("gamma", 0.0), temperature=values.get("temperature", 1.0)
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
) -> Calibration:
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
        method: "auto" chooses by cross-validated likelihood among few-parameter methods; else one of
            `refocal.report.METHODS`.
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
    """
    _check.one_of(method, "method", METHODS)
    if method == "posterior" and gamma is None:
        msg = "method='posterior' needs the gamma that the network was trained with"
        raise ValueError(msg)
    names = _AUTO if method == "auto" else tuple(dict.fromkeys((method, *_BESIDE)))
    candidates = {name: _METHODS[name] for name in names if name in _METHODS}
    data = (scores, labels, sample_weight)
    tried = [_fit("given", "As given", FocalPosterior(gamma=0.0, input=input), data)]
    if gamma is not None:
        posterior = FocalPosterior(
            gamma=gamma, weight=weight, label_smoothing=label_smoothing, detached=detached, input=input
        )
        tried.append(_fit("posterior", "Closed-form posterior", posterior, data))
    for name, (title, kind) in candidates.items():
        progress(f"fitting {title[0].lower()}{title[1:]}")
        tried.append(_fit(name, title, kind(input=input), data))
    if method == "auto":
        progress("choosing by cross-validation")
        choice = AutoCalibrator(candidates=[fitted.calibrator for fitted in tried], input=input)
        choice.fit(scores, labels, sample_weight)
        chosen = next(fitted for fitted in tried if _same(fitted.calibrator, choice.best_))
    else:
        chosen = next(fitted for fitted in tried if fitted.name == method)
    return Calibration(chosen, tuple(tried), gamma)


def evaluate(
    scores: Any,
    labels: Any,
    *,
    input: str = "logits",
    weights: Any = None,
    class_names: Sequence[str] | None = None,
    source: str = "test data",
) -> Report:
    """Measure scores as they are, with nothing fitted.

    Args:
        scores: Scores (N, K), or (N,) or (N, 1) for two classes.
        labels: Class indices (N,).
        input: "logits" or "probs".
        weights: One a row, or None.
        class_names: One a class.
        source: What to call the data.

    Example:
        >>> import numpy as np
        >>> evaluate(np.array([[0.6, 0.4], [0.3, 0.7]] * 50), np.array([0, 1] * 50), input="probs").samples
        100
    """
    given = _fit("given", "As given", FocalPosterior(gamma=0.0, input=input), (scores, labels, weights))
    return Calibration(given, (given,), None).report(
        scores, labels, weights=weights, class_names=class_names, source=source
    )


def _fit(name: str, title: str, calibrator: Calibrator, data: tuple[Any, Any, Any]) -> Fitted:
    scores, labels, weights = data
    start = time.perf_counter()
    calibrator.fit(scores, labels, weights)
    seconds = time.perf_counter() - start
    return Fitted(name, title, calibrator, None if isinstance(calibrator, FocalPosterior) else seconds)


def _same(one: Calibrator, other: Calibrator) -> bool:
    """Whether two candidates are one: of each kind there is one, but for posteriors of different gamma."""
    return type(one) is type(other) and one.get_params().get("gamma") == other.get_params().get("gamma")


def _versions() -> dict[str, str]:
    packages = {name: importlib.metadata.version(name) for name in ("numpy", "scipy", "scikit-learn")}
    return {"refocal": refocal.__version__, **packages, "python": platform.python_version()}
