"""Labeled logits with their folds, and the fits that several calibrators share.

Temperature scaling and focal temperature scaling are calibrators of their own and the bases of linear maps. With one
`FoldedLogits` for several calibrators, they are fitted once.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from refocal.calibrators.fit.focal_masses import Parameters, RankedLogits, log_probs_with_uniform
from refocal.calibrators.fit.held_out import Fold
from refocal.calibrators.fit.isotonic_tables import RankedScores
from refocal.calibrators.fit.maximum_likelihood import (
    FocalTemperature,
    Temperature,
    fit_focal_temperature,
    fit_temperature,
)
from refocal.calibrators.fit.temperature_likelihood import LabeledLogits
from refocal.calibrators.tables import rank_problems

# The standard error of log(1 + gamma) below which the fits of all folds have the same minimum nearby. Otherwise the NLL
# may have several, and all rows must not tell a fold which one to take.
_CERTAIN = 0.2


class Base(NamedTuple):
    """Psi^gamma(softmax(logits / T)), mixed with a share of the uniform distribution."""

    gamma: float
    temperature: float
    uniform: float

    def compute(self, ranked: RankedLogits) -> np.ndarray:
        """Compute the log-probabilities (N, K) of logits, in their dtype."""
        return log_probs_with_uniform(ranked, Parameters(self.gamma, 1 / self.temperature), self.uniform)


class FoldedLogits:
    """Labeled logits with their folds, and fits that are made when a calibrator first asks for them.

    A fit to the rows of a fold never sees the labels of its held-out rows, except in a first guess that the fit of all
    rows gives. The end hardly depends on that guess.

    Args:
        logits: (N, K), float32 or float64.
        labels: Class indices (N,).
        weights: Weights of the rows (N,), or None.
        folds: For each fold, the rows to fit to and the rows that are held out.
    """

    def __init__(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, folds: list[Fold]) -> None:
        self.logits, self.labels, self.weights, self.folds = logits, labels, weights, folds
        self._features: dict[tuple[int | None, bool], np.ndarray] = {}

    def take(self, fold: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Logits, labels and weights of the rows that a fit sees, if their weight is positive; None for all rows."""
        if fold is None and self.weights is None:
            return self.logits, self.labels, None
        rows = np.arange(len(self.logits)) if fold is None else self.folds[fold][0]
        if self.weights is not None:
            rows = rows[self.weights[rows] > 0]
        return self.logits[rows], self.labels[rows], None if self.weights is None else self.weights[rows]

    @cached_property
    def data(self) -> LabeledLogits:
        """All rows."""
        return LabeledLogits.prepare(self.logits, self.labels, self.weights)

    def temperature(self, fold: int | None) -> Temperature:
        """Fit temperature scaling to the rows of a fold, or to all rows."""
        if fold is None:
            return self._temperature
        fitted = self._temperatures[fold]
        return fitted if _is_undetermined(fitted) else fitted._replace(beta=fitted.beta / self._unit)

    def focal_temperature(self, fold: int | None) -> FocalTemperature:
        """Fit focal temperature scaling to the rows of a fold, or to all rows."""
        if fold is None:
            return self._focal_temperature
        fitted = self._focal_temperatures[fold]
        return fitted if _is_undetermined(fitted) else fitted._replace(beta=fitted.beta / self._unit)

    @cached_property
    def focal_is_better(self) -> bool:
        """Whether focal temperature scaling predicts the held-out rows better than temperature scaling."""
        gain = 0.0
        for fold, (_, held) in enumerate(self.folds):
            at_label, ranked = (np.arange(len(held)), self.labels[held]), self._scaled.take(held)
            plain, focal = (self._base(fold, focal=each).compute(ranked)[at_label] for each in (False, True))
            gain += float(np.sum((focal - plain) * (1 if self.weights is None else self.weights[held])))
        return gain > 0

    def base(self, *, focal: bool) -> Base:
        """The base of linear maps, fitted to all rows.

        If T is not determined, or so small or large that it means "certain" or "any", it is 1.
        """
        return self._base(None, focal=focal)

    def features(self, fold: int | None, *, focal: bool) -> np.ndarray:
        """Compute the log-probabilities (N, K) of all rows under the base of a fold, in float32; None for float64."""
        if (fold, focal) not in self._features:
            ranked = self._scaled
            if fold is None:
                wide = self.logits.astype(np.float64, copy=False)
                ranked = RankedLogits.prepare(LabeledLogits.prepare(wide, self.labels, self.weights))
            self._features[fold, focal] = self._base(fold, focal=focal).compute(ranked)
        return self._features[fold, focal]

    def part(self, fold: int) -> LabeledLogits:
        """The rows of a fold. Logits count from the largest of their row, in spreads, so that float32 holds them."""
        return self._parts[fold]

    @cached_property
    def ranked_log_odds(self) -> RankedScores:
        """The log-odds of each class, from the smallest to the largest."""
        return rank_problems(self.logits, self.labels, top_label=False)

    def _base(self, fold: int | None, *, focal: bool) -> Base:
        data = self.data if fold is None else self._parts[fold]
        uniform = 1 / (data.samples + 1)
        if focal:
            fitted = self._focal_temperature if fold is None else self._focal_temperatures[fold]
            if not (fitted.at_bound or _is_undetermined(fitted)):
                return Base(fitted.gamma, 1 / fitted.beta, uniform)
        plain = self._temperature if fold is None else self._temperatures[fold]
        if plain.at_bound or _is_undetermined(plain):
            return Base(0.0, 1.0 if fold is None else 1 / self._unit, uniform)  # one logit; folds count in spreads
        return Base(0.0, 1 / plain.beta, uniform)

    @cached_property
    def _unit(self) -> float:
        return self.data.scales.spread or 1.0

    @cached_property
    def _in_spreads(self) -> np.ndarray:
        below = (self.data.logits - self.data.top[:, None]).astype(np.float64, copy=False)
        logits = (below / self._unit).astype(np.float32)
        logits[np.isneginf(self.logits)] = -np.inf  # masks have no scale
        return logits

    @cached_property
    def _scaled(self) -> RankedLogits:
        return RankedLogits.prepare(LabeledLogits.prepare(self._in_spreads, self.labels, self.weights))

    @cached_property
    def _parts(self) -> list[LabeledLogits]:
        logits, weights = self._in_spreads, self.weights
        return [
            LabeledLogits.prepare(logits[rows], self.labels[rows], None if weights is None else weights[rows])
            for rows, _ in self.folds
        ]

    @cached_property
    def _temperature(self) -> Temperature:
        return fit_temperature(self.data)

    @cached_property
    def _temperatures(self) -> list[Temperature]:
        start = None if self._temperature.at_bound else self._temperature.beta * self._unit
        return [fit_temperature(part, start=start) for part in self._parts]

    @cached_property
    def _focal_temperature(self) -> FocalTemperature:
        return fit_focal_temperature(self.data)

    @cached_property
    def _focal_temperatures(self) -> list[FocalTemperature]:
        found = self._focal_temperature
        certain = found.gamma_error < _CERTAIN * (1 + found.gamma)
        start = (found.gamma, found.beta * self._unit) if certain else None
        pairs = zip(self._parts, self._temperatures, strict=True)
        return [fit_focal_temperature(part, plain=plain, start=start) for part, plain in pairs]


def _is_undetermined(fitted: Temperature | FocalTemperature) -> bool:
    """Whether all rows were constant. Then there was nothing to evaluate, and T is 1 in every unit."""
    return fitted.evaluations == 0
