"""The search for the penalty of a linear map, by fits to all folds but one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from refocal.calibrators.fit.structured import Correction, Solution, Structured
from refocal.calibrators.folded import FoldedLogits

# From strong to weak, so that each fit starts from the last.
PENALTIES: np.ndarray = np.array([64.0, 16.0, 4.0, 1.0, 0.25])

# How much the summed NLL may exceed its minimum: in the fits that are compared, a share of its noise, which grows with
# the root of the number of parameters; in the last fit, a share of the error of each parameter, or only rounding errors
# if the fit is small.
_ROUGH, _FINE, _EXACT = 1e-3, 1e-7, 1e-15
_CLEARLY = 2.0  # standard errors
_LARGE = 1 << 14  # features; fits to more are not exact, and a fit in float32 comes first


class Form(NamedTuple):
    """What kind of linear map is fitted.

    Attributes:
        centered: Whether its features are log-probabilities minus their mean over the classes.
        matrix: Whether it has a matrix, and not only one factor per class.
    """

    centered: bool
    matrix: bool

    def center(self, log_probs: np.ndarray) -> np.ndarray:
        """Make features (N, K) of log-probabilities of the base."""
        return log_probs - log_probs.mean(axis=1, keepdims=True) if self.centered else log_probs

    def prepare(self, folded: FoldedLogits, *, focal: bool) -> Structured:
        """Prepare the fit to all rows."""
        features, data = self.center(folded.features(None, focal=focal)), folded.data
        return Structured.prepare(features, data.labels, data.share, data.samples, matrix=self.matrix)


class Trial(NamedTuple):
    """One fold: the fit to its rows, and the rows that are held out, with their features. All are float32."""

    problem: Structured
    held_features: np.ndarray
    labels: np.ndarray
    share: np.ndarray

    @classmethod
    def prepare(cls, form: Form, folded: FoldedLogits, fold: int, *, focal: bool, axes: np.ndarray) -> Trial:
        """Prepare the features. With the axes of all rows, corrections of several folds can be averaged."""
        rows, held = folded.folds[fold]
        features, part = form.center(folded.features(fold, focal=focal)), folded.part(fold)
        problem = Structured.prepare(
            features[rows], part.labels, part.share, part.samples, matrix=form.matrix, axes=axes
        )
        return cls(problem, features[held], folded.labels[held], folded.data.share[held])

    def predict(self, correction: Correction) -> np.ndarray:
        """Predict the log-probabilities of the held-out rows."""
        return apply_map(self.held_features, *self.problem.join(correction))

    def score(self, correction: Correction) -> np.ndarray:
        """The NLL of the held-out rows (n,)."""
        return -self.predict(correction)[np.arange(len(self.labels)), self.labels].astype(np.float64)


class Path(NamedTuple):
    """Fits to the rows of each fold with one penalty after another, each from the correction of the one before.

    Attributes:
        penalty: The given penalty, or the one with the best score.
        scores: The mean NLL of held-out rows for each penalty that was tried in all folds; none if it was given.
        trials: The folds.
        solutions: The fit of each fold with that penalty.
    """

    penalty: float
    scores: np.ndarray
    trials: list[Trial]
    solutions: list[Solution]

    @classmethod
    def follow(cls, trials: list[Trial], given: float | None) -> Path:
        """Fit with all penalties, or with those down to the given one.

        The path ends with the second penalty after the best. If that is clearly worse in the first folds, it is not
        tried in the others and gets no score.
        """
        solutions = [trial.problem.begin() for trial in trials]
        scores: list[float] = []
        best: list[Solution] = []
        best_losses: list[np.ndarray] = []
        penalties = [*PENALTIES] if given is None else [*PENALTIES[given < PENALTIES], given]
        for penalty in penalties if trials else ():
            losses: list[np.ndarray] = []
            is_last = given is None and len(scores) > 1 and scores[-1] > min(scores)  # unless it turns out the best
            for index, trial in enumerate(trials):
                tolerance = _ROUGH * math.sqrt(trial.problem.parameters)
                solutions[index] = trial.problem.fit(penalty, solutions[index], tolerance=tolerance)
                losses.append(trial.score(solutions[index].correction))
                if is_last and _is_clearly_behind(losses, best_losses, trials):
                    break
            if len(losses) < len(trials):
                break
            score = _compare(losses, best_losses, trials)[0] + min(scores, default=0.0)
            is_best = not scores or score < min(scores)  # of equal scores, the stronger penalty
            scores.append(score)
            if is_best or given is not None:
                best, best_losses = list(solutions), losses
            elif is_last:
                break
        chosen = float(penalties[np.argmin(scores)] if scores else penalties[0]) if given is None else float(given)
        return cls(chosen, np.array(scores if given is None else []), trials, best)

    def predict(self) -> Iterator[np.ndarray]:
        """Predict the log-probabilities of the held-out rows of each fold."""
        for trial, solution in zip(self.trials, self.solutions, strict=True):
            yield trial.predict(solution.correction)

    def finish(self, problem: Structured) -> Correction:
        """Fit to all rows. The mean of the corrections of all folds is close to the solution."""
        start = None
        if self.solutions:
            parts = zip(*(solution.correction for solution in self.solutions), strict=True)
            start = self.solutions[-1]._replace(correction=Correction(*(np.mean(part, axis=0) for part in parts)))
        is_large = problem.features.size > _LARGE
        tolerance = (_FINE if is_large else _EXACT) * problem.parameters
        if is_large:
            start = problem.cast(np.float32).fit(self.penalty, start, tolerance=tolerance)
        return problem.fit(self.penalty, start, tolerance=tolerance).correction


def _is_clearly_behind(losses: list[np.ndarray], best: list[np.ndarray], trials: list[Trial]) -> bool:
    behind, error = _compare(losses, best, trials)
    return behind > _CLEARLY * error


def _compare(losses: list[np.ndarray], best: list[np.ndarray], trials: list[Trial]) -> tuple[float, float]:
    """Compute by how much losses exceed the best ones on average, or 0 if there are none, and the standard error."""
    share = np.concatenate([trial.share for trial in trials[: len(losses)]])
    share = share / share.sum()
    away = np.concatenate(losses) - (np.concatenate(best[: len(losses)]) if best else 0.0)
    behind = float(share @ away)
    return behind, float(np.sqrt(share**2 @ (away - behind) ** 2))


def apply_map(features: np.ndarray, weights: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Compute log-probabilities (N, K) of features, in their dtype."""
    weights, bias = weights.astype(features.dtype), bias.astype(features.dtype)
    scores = (features * weights if weights.ndim == 1 else features @ weights.T) + bias
    scores -= scores.max(axis=1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    return scores
