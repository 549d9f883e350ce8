"""The search for the base and the penalty of a linear map, by fits to all folds but one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from refocal._arrays import map_row_blocks
from refocal.calibrators.fit.held_out import Fold
from refocal.calibrators.fit.maximum_likelihood import fit_focal_temperature, fit_temperature
from refocal.calibrators.fit.structured import Structured
from refocal.calibrators.fit.temperature_likelihood import LabeledLogits
from refocal.maps.heads import structured_features
from refocal.maps.posterior import MapSettings

PENALTIES: np.ndarray = np.array(
    [64.0, 16.0, 4.0, 1.0, 0.25]
)  # from strong to weak, so that each fit starts from the last

ROUGH, FINE = 3e-4, 1e-5  # tolerances of the fits that are compared, and of the last one


class Base(NamedTuple):
    """Psi^gamma(softmax(logits / T)), mixed with a share of the uniform distribution."""

    gamma: float
    temperature: float
    uniform: float


class Form(NamedTuple):
    """What kind of linear map is fitted.

    Attributes:
        centered: Whether its features are log-probabilities minus their mean over the classes.
        matrix: Whether it has a matrix, and not only one factor per class.
    """

    centered: bool
    matrix: bool

    def compute_features(self, logits: np.ndarray, base: Base) -> np.ndarray:
        """Compute the features (N, K) of logits."""
        settings = MapSettings.check(base.gamma, None, 0.0, False, classes=logits.shape[1])

        def compute(rows: np.ndarray) -> np.ndarray:
            return structured_features(
                rows,
                temperature=base.temperature,
                settings=settings,
                uniform=base.uniform,
                centered=self.centered,
                xp=np,
            )

        return map_row_blocks(compute, logits.astype(np.float64, copy=False))

    def prepare(self, data: LabeledLogits, base: Base) -> Structured:
        """Prepare the fit to labeled logits."""
        features = self.compute_features(data.logits, base)
        return Structured.prepare(features, data.labels, data.share, data.samples, matrix=self.matrix)


class Trial(NamedTuple):
    """One fold: the rows to fit to, with both bases, and the rows that are held out. Logits are float32."""

    part: LabeledLogits
    bases: tuple[Base, Base]  # temperature scaling, and focal temperature scaling
    held: np.ndarray
    labels: np.ndarray
    share: np.ndarray

    @classmethod
    def prepare(cls, data: LabeledLogits, fold: Fold) -> Trial:
        """Fit the bases. Here logits count from the largest of their row, in spreads, so that float32 holds them."""
        rows, held = fold
        unit = data.scales.spread or 1.0
        logits = ((data.logits - data.top[:, None]).astype(np.float64) / unit).astype(np.float32)
        part = LabeledLogits.prepare(logits[rows], data.labels[rows], data.share[rows] * data.samples)
        bases = (fit_base(part, focal=False), fit_base(part, focal=True))
        return cls(part, bases, logits[held], data.labels[held], data.share[held])

    def score_base(self, *, focal: bool) -> float:
        """The summed NLL of the held-out rows under one of the bases."""
        form = Form(centered=False, matrix=False)
        return self.score(form.compute_features(self.held, self.bases[focal]))

    def score(self, log_probs: np.ndarray) -> float:
        """The summed NLL of the held-out rows."""
        return float(self.share @ -log_probs[np.arange(len(self.labels)), self.labels])


class Path(NamedTuple):
    """Fits to the rows of each fold with one penalty after another, each from the correction of the one before.

    Attributes:
        penalty: The given penalty, or the one with the best score.
        scores: The mean NLL of held-out rows for each penalty, up to the second after the best; none if it was given.
        fitted: For each fold, the features of its held-out rows, and the linear map for the best penalty.
    """

    penalty: float
    scores: np.ndarray
    fitted: list[tuple[np.ndarray, np.ndarray, np.ndarray]]

    @classmethod
    def follow(cls, form: Form, trials: list[Trial], *, focal: bool, given: float | None) -> Path:
        """Fit with all penalties, or with those down to the given one."""
        problems = [form.prepare(trial.part, trial.bases[focal]).cast(np.float32) for trial in trials]
        features = [form.compute_features(trial.held, trial.bases[focal]) for trial in trials]
        corrections: list[Any] = [None] * len(trials)
        total = sum(trial.share.sum() for trial in trials)
        scores: list[float] = []
        best: list[tuple[np.ndarray, np.ndarray]] = []
        penalties = [*PENALTIES] if given is None else [*PENALTIES[given < PENALTIES], given]
        for penalty in penalties if trials else ():
            pairs = zip(problems, corrections, strict=True)
            corrections = [problem.fit(penalty, start, tolerance=ROUGH) for problem, start in pairs]
            maps = [problem.join(each) for problem, each in zip(problems, corrections, strict=True)]
            compared = zip(trials, features, maps, strict=True)
            scores.append(float(sum(trial.score(apply_map(x, *each)) for trial, x, each in compared) / total))
            if given is not None or scores[-1] <= min(scores):
                best = maps
            elif len(scores) - np.argmin(scores) > 2:
                break
        chosen = float(penalties[np.argmin(scores)] if scores else penalties[0]) if given is None else float(given)
        fitted = [(x, *each) for x, each in zip(features, best, strict=True)]
        return cls(chosen, np.array(scores if given is None else []), fitted)

    def predict(self) -> Iterator[np.ndarray]:
        """Predict the log-probabilities of the held-out rows of each fold."""
        for features, weights, bias in self.fitted:
            yield apply_map(features, weights, bias)


def fit_base(data: LabeledLogits, *, focal: bool) -> Base:
    """Fit the base. If T is not determined, or so small or large that it means "certain" or "any", it is 1."""
    uniform = 1 / (data.samples + 1)
    if focal:
        fitted = fit_focal_temperature(data)
        if not fitted.at_bound:
            return Base(fitted.gamma, 1 / fitted.beta, uniform)
    plain = fit_temperature(data)
    return Base(0.0, 1.0 if plain.at_bound else 1 / plain.beta, uniform)


def apply_map(features: np.ndarray, weights: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Compute log-probabilities (N, K) of features."""
    scores = (features * weights if weights.ndim == 1 else features @ weights.T) + bias
    scores -= scores.max(axis=1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return scores
