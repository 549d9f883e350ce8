"""The main job: fit calibrators to one part of the data, choose one, and compare them on another part."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from refocal import _check
from refocal._arrays import ClassWeights, namespace
from refocal._check import Input
from refocal._probability_look import resolve_input
from refocal.calibrators import (
    BY_NAME,
    AutoCalibrator,
    Calibrator,
    FocalPosterior,
    IsotonicCalibration,
    VennAbersCalibration,
)
from refocal.calibrators.auto import MIXTURE, default_candidates
from refocal.report.choice import Choice
from refocal.report.evaluation import POSTERIOR, Adjust, ScoreMap, Step, compare, given_map
from refocal.report.measure import TestData, read_scores
from refocal.report.record import Report, freeze
from refocal.report.subgroups import Slices
from refocal.report.words import GIVEN, GIVEN_TITLE, lower_title

_TITLES = {
    GIVEN: GIVEN_TITLE,
    POSTERIOR: "Closed-form posterior",
    "ensemble": "Ensemble temperature scaling",
    "dirichlet": "Dirichlet calibration",
    "beta": "Beta calibration",
    "isotonic": "Isotonic calibration",
    "top-isotonic": "Isotonic calibration of the top class",
    "histogram": "Histogram binning",
    MIXTURE: "Mixture of calibrators",
    "venn-abers": "Venn-Abers calibration",
}
_PARAMETERS = {
    POSTERIOR: {"gamma": "gamma"},
    "temperature": {"temperature": "temperature_"},
    "focal-temperature": {"gamma": "gamma_", "temperature": "temperature_"},
    "venn-abers": {"width": "width_"},
}
_BESIDE = ("temperature", "focal-temperature")  # compared with any method that the user names
_LEAST_FOR_AUTO = 10
_TOP_ISOTONIC = "top-isotonic"
METHODS = ("auto", MIXTURE, POSTERIOR, *BY_NAME, _TOP_ISOTONIC)


@dataclass(frozen=True)
class Candidate:
    """A fitted calibrator with the names that a report gives it.

    Attributes:
        name: Short and unique: one of `METHODS`, or "given" for the scores as given.
        title: The name for people.
        calibrator: The fitted calibrator.
        seconds: Duration of the fit; None if there was nothing to fit, or it is not known.
        held_out: Probabilities (N, K) of the rows that a report is about, each by a fit to other rows. None if the
            rows were not fitted to: then they are predicted by `calibrator`.
    """

    name: str
    title: str
    calibrator: Calibrator
    seconds: float | None
    held_out: np.ndarray | None = None

    @classmethod
    def of(cls, calibrator: Calibrator) -> Candidate:
        """Name a calibrator that was fitted elsewhere."""
        if isinstance(calibrator, AutoCalibrator):
            if calibrator.uniform_ or len(calibrator.members_) > 1:
                return cls(MIXTURE, _title(MIXTURE), calibrator, None)
            calibrator = calibrator.members_[0]
        kinds = {POSTERIOR: FocalPosterior, **BY_NAME}
        name = next((name for name, kind in kinds.items() if type(calibrator) is kind), type(calibrator).__name__)
        if isinstance(calibrator, IsotonicCalibration) and calibrator.method == "top_label":
            name = _TOP_ISOTONIC
        return cls(name, _title(name) if name in METHODS else name, calibrator, None)

    @property
    def parameters(self) -> dict[str, float]:
        """The few parameters that the method is known by."""
        names = _PARAMETERS.get(self.name, {})
        return {name: float(getattr(self.calibrator, attribute)) for name, attribute in names.items()}

    def predict_proba(self, scores: ArrayLike) -> np.ndarray:
        """Return the probabilities that a report measures."""
        return self.calibrator.predict_proba(scores) if self.held_out is None else self.held_out

    @property
    def has_further_settings(self) -> bool:
        """Whether its map depends on more than `parameters`: weights, label smoothing, a detached factor, a table."""
        loss = self.calibrator
        return isinstance(loss, VennAbersCalibration) or (
            isinstance(loss, FocalPosterior) and bool(loss.weight is not None or loss.label_smoothing or loss.detached)
        )


@dataclass(frozen=True)
class Selection:
    """Calibrators fitted to the same data, and the one chosen among them.

    Attributes:
        chosen: The recommended calibrator; "given" if no calibrator is better than the scores as given.
        candidates: All calibrators, the scores as given first.
        gamma: The focusing parameter of the training loss; None if unknown.
        input: "logits" or "probs".
        choice: The cross-validated scores that the choice follows from; None if the caller named the method.
        class_names: The name of each class; None if the classes have no names.
        settings: The arguments of `calibrate`, for the report.
    """

    chosen: Candidate
    candidates: tuple[Candidate, ...]
    gamma: float | None
    input: Input
    choice: Choice | None
    class_names: tuple[str, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rule(self) -> str | None:
        """Why this calibrator was chosen, in one sentence; None if the caller named the method."""
        return None if self.choice is None else self.choice.rule

    @property
    def calibrator(self) -> Calibrator:
        """The chosen calibrator. If the classes have names, these are its `classes_`."""
        if self.class_names is None or not hasattr(self.chosen.calibrator, "classes_"):
            return self.chosen.calibrator
        named = copy(self.chosen.calibrator)
        named.classes_ = np.asarray(self.class_names)
        return named

    @classmethod
    def of(cls, calibrator: Calibrator | None, *, input: Input) -> Selection:
        """Make a selection of a calibrator that was fitted elsewhere; None for the scores as given alone."""
        given = Candidate(GIVEN, _title(GIVEN), FocalPosterior(gamma=0.0, input=input), None)
        chosen = given if calibrator is None else Candidate.of(calibrator)
        return cls(chosen, (given,) if calibrator is None else (given, chosen), None, input, None)

    def predict_proba(self, scores: ArrayLike) -> np.ndarray:
        """Return calibrated probabilities (N, K) of scores of the fitted kind."""
        return self.chosen.calibrator.predict_proba(read_scores(scores, self.class_names))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the chosen calibrator as JSON; `refocal.calibrators.load` reads it.

        Args:
            path: The file to write. Its folder must exist.
            overwrite: Whether to replace an existing file; if False, one raises FileExistsError.
        """
        self.calibrator.save(Path(path), overwrite=overwrite)

    def list_maps(self) -> dict[str, ScoreMap]:
        """Return the map of each candidate, by name; the scores as given come first."""
        given = given_map(input=self.input)
        return {
            fitted.name: given
            if fitted.name == GIVEN
            else ScoreMap(
                fitted.name,
                fitted.title,
                fitted.predict_proba,
                fitted.parameters,
                fitted.seconds,
                on_slider=not fitted.has_further_settings,
            )
            for fitted in self.candidates
        }

    def report(
        self,
        scores: ArrayLike,
        labels: ArrayLike,
        *,
        sample_weight: ArrayLike | None = None,
        class_names: Sequence[str] | None = None,
        by_class: bool = True,
        slices: Slices | None = None,
        costs: ArrayLike | None = None,
        sets: float | None = None,
        source: str = "test data",
        progress: Step = lambda _: None,
        adjust: Adjust = lambda method: method,
    ) -> Report:
        """Measure every calibrator on test data.

        Args:
            scores: Test scores of the fitted kind, (N, K).
            labels: Class indices (N,), or names of classes.
            sample_weight: One weight per row, or None.
            class_names: One name per class. If None, those of `calibrate`, those of a frame's columns, or numbers.
            by_class: Whether to measure each class, too.
            slices: Columns that divide the rows, as for `refocal.evaluate`.
            costs: Costs (K, K) of decisions, as for `refocal.evaluate`.
            sets: A coverage for prediction sets, as for `refocal.evaluate`.
            source: Name of the data in the report.
            progress: Called with a description of each step.
            adjust: Function from each method, as measured, to the method to report. For a sample of more rows, it puts
                the measures of all rows in.
        """
        names = self.class_names if class_names is None else class_names
        data = TestData.of(scores, labels, sample_weight, class_names=names)
        maps = self.list_maps()
        report = compare(
            list(maps.values()),
            maps[self.chosen.name],
            data,
            input=self.input,
            gamma=self.gamma,
            class_names=data.class_names,
            by_class=by_class,
            slices=slices,
            costs=costs,
            sets=sets,
            source=source,
            rule=self.rule,
            progress=progress,
            adjust=adjust,
        )
        settings = freeze({**report.settings, **self.settings})
        return replace(report, calibrator=self.calibrator, settings=settings)


def calibrate(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    gamma: float | None = None,
    weight: ClassWeights = None,
    label_smoothing: float = 0.0,
    detached: bool = False,
    method: str = "auto",
    input: Input | None = None,
    sample_weight: ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    progress: Step = lambda _: None,
) -> Selection:
    """Fit calibrators to held-out scores of a classifier and choose one.

    Args:
        scores: Scores (N, K) on data that the classifier was not trained on; (N,) or (N, 1) for two classes, see
            `refocal.calibrators.Calibrator`. A list, an array of any library, a tensor, or a frame or series of pandas,
            polars or Arrow.
        labels: Class indices (N,), or names of classes. At least two classes must occur, unless method is "posterior".
        gamma: Focusing parameter of the focal loss that the network was trained with. If given, the closed-form
            posterior is one of the candidates.
        weight: Class weights of that loss.
        label_smoothing: Label smoothing of that loss.
        detached: Whether that loss detached its focusing factor from the gradient.
        method: One of `refocal.report.METHODS`. "auto" chooses by cross-validated likelihood among the scores as
            given, the candidates of `AutoCalibrator` and their mixture: the simplest that is not clearly worse than the
            best. "mixture" takes the mixture in any case.
        input: "logits" or "probs". None for logits; scores that look like probabilities are then rejected.
        sample_weight: One weight per row, or None.
        class_names: One name per class. If None, the names of a frame's columns, if it has any.
        progress: Called with a description of each step.

    Returns:
        The fitted calibrators. Its `report` measures all of them on test data, its `predict_proba` applies the chosen
        one, and its `save` writes that one to a file.

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
    gamma = check_loss(gamma, weight, label_smoothing, detached=detached, method=method)
    given = TestData.of(scores, labels, sample_weight, class_names=class_names)
    kind = resolve_input(input, given.scores)
    indices = _class_indices(given.labels, given.scores.shape)
    counted = given.find_counted()
    samples = len(counted)
    if method != POSTERIOR and samples and np.ptp(indices[counted]) == 0:
        found = indices[counted[0]] if given.class_names is None else repr(given.class_names[indices[counted[0]]])
        msg = f"labels must have two classes or more, got only class {found}: nothing can be fitted to one class"
        raise ValueError(msg)
    together = method in ("auto", MIXTURE)
    if together and samples < _LEAST_FOR_AUTO:
        msg = f"method={method!r} needs at least {_LEAST_FOR_AUTO} samples, got {samples}: name another method"
        raise ValueError(msg)
    classes = max([2, *given.scores.shape[1:]])
    data = (given.scores, indices, given.sample_weight)
    named: dict[str, Calibrator] = {GIVEN: FocalPosterior(gamma=0.0)}
    if gamma is not None:
        named[POSTERIOR] = FocalPosterior(
            gamma=gamma, weight=weight, label_smoothing=label_smoothing, detached=detached
        )
    kinds: dict[str, Callable[[], Calibrator]] = {
        **BY_NAME,
        _TOP_ISOTONIC: partial(IsotonicCalibration, method="top_label"),
    }
    others = (
        default_candidates(classes, masked=bool(np.isneginf(given.scores).any()))
        if together
        else {name: kinds[name]() for name in (method, *_BESIDE) if name in kinds}
    )
    named |= {name: calibrator for name, calibrator in others.items() if name not in named}
    choice = None
    if together:
        progress(f"fitting and comparing {len(named)} calibrators")
        auto = AutoCalibrator(candidates=list(named.values()), input=input).fit(*data)
        candidates = [
            Candidate(name, _title(name), calibrator, None if isinstance(calibrator, FocalPosterior) else seconds)
            for name, calibrator, seconds in zip(named, auto.candidates_, auto.fit_seconds_, strict=True)
        ]
        candidates.append(Candidate(MIXTURE, _title(MIXTURE), auto, sum(auto.fit_seconds_)))
        chosen = candidates[-1 if method == MIXTURE else auto.best_index_]
        if method == "auto":
            choice = Choice.of(auto.results_, [(candidate.name, candidate.title) for candidate in candidates])
    else:
        candidates = []
        for name, calibrator in named.items():
            progress(f"fitting {lower_title(_title(name))}")
            candidates.append(_fit(name, calibrator.set_params(input=input), data))
        chosen = next(candidate for candidate in candidates if candidate.name == method)
    told = {
        "method": method,
        "gamma": gamma,
        "class_weights": None if weight is None else np.asarray(weight).tolist(),
        "label_smoothing": label_smoothing or None,
        "detached": detached,
        "fitted_samples": samples,
    }
    return Selection(chosen, tuple(candidates), gamma, kind, choice, given.class_names, freeze(told))


def check_loss(
    gamma: float | None, weight: ClassWeights, label_smoothing: float, *, detached: bool, method: str
) -> float | None:
    """Check that gamma is given if other settings of the training loss, or the method, need it, and return it."""
    if gamma is not None:
        return _check.scalar_gamma(gamma)
    if weight is not None or label_smoothing or detached:
        msg = (
            "weight, label_smoothing and detached describe a training loss whose gamma must be given, too: 0 for "
            "cross-entropy"
        )
        raise ValueError(msg)
    if method == POSTERIOR:
        msg = "method='posterior' needs gamma, the focusing parameter that the network was trained with"
        raise ValueError(msg)
    return None


def _class_indices(labels: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Check that labels are class indices. An estimator would accept any K distinct numbers as names of classes."""
    samples, *classes = shape or (0,)
    rows = np.broadcast_to(0.0, (samples, max([2, *classes])))
    checked: np.ndarray = _check.labels(labels, rows, "labels", xp=namespace(rows))
    return checked


def _title(name: str) -> str:
    return _TITLES.get(name, f"{name.capitalize().replace('-', ' ')} scaling")


def _fit(name: str, calibrator: Calibrator, data: tuple[Any, Any, Any]) -> Candidate:
    scores, labels, weights = data
    start = time.perf_counter()
    calibrator.fit(scores, labels, weights)
    seconds = time.perf_counter() - start
    return Candidate(name, _title(name), calibrator, None if isinstance(calibrator, FocalPosterior) else seconds)
