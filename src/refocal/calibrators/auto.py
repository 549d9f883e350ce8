"""Choice of a calibrator by cross-validation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self, final, get_args

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.model_selection import KFold, check_cv
from sklearn.utils.validation import check_is_fitted

from refocal import _check
from refocal._check import Input
from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head
from refocal.calibrators.binary import BetaCalibration, PlattScaling, QuadraticScaling
from refocal.calibrators.ensemble import EnsembleTemperatureScaling
from refocal.calibrators.focal_posterior import FocalPosterior
from refocal.calibrators.focal_temperature import FocalTemperatureScaling
from refocal.calibrators.linear import MatrixScaling, VectorScaling
from refocal.calibrators.nonparametric import IsotonicCalibration
from refocal.calibrators.temperature import TemperatureScaling
from refocal.stats.proper_scores import log_scores

_LARGEST_SCORE = 700.0  # a probability of 0 for the true class counts as e^-700, so that means stay comparable

Scoring = Literal["nll", "brier"]
Data = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # logits, class indices and weights


class HeldOut(NamedTuple):
    """Scores of samples while they were held out, (candidates, N), and the row of each sample, (N,)."""

    scores: np.ndarray
    rows: np.ndarray


_RESULT: dict[str, Check] = {
    "name": attributes.check_text,
    "index": attributes.check_count,
    "score": attributes.check_finite,
    "behind": attributes.check_finite,
    "error": attributes.check_standard_error,
    "parameters": attributes.check_count,
    "chosen": attributes.check_flag,
}


def _check_best(value: Any, name: str, calibrator: Any) -> Calibrator:
    """Check a fitted calibrator of the same number of classes."""
    if not isinstance(value, Calibrator) or len(getattr(value, "classes_", ())) != attributes.count_classes(calibrator):
        msg = f"{name} must be a calibrator of {attributes.count_classes(calibrator)} classes, got {value!r:.100}"
        raise ValueError(msg)
    return value


def _check_results(value: Any, name: str, calibrator: Any) -> list[dict[str, Any]]:
    """Check the results: one dict per candidate."""
    if not (
        isinstance(value, list)
        and value
        and all(isinstance(row, dict) and row.keys() == _RESULT.keys() for row in value)
    ):
        msg = f"{name} must be a list of dicts with the keys {', '.join(_RESULT)}, got {value!r:.100}"
        raise ValueError(msg)
    rows = [
        {key: check(row[key], f"{name}[{index}].{key}", calibrator) for key, check in _RESULT.items()}
        for index, row in enumerate(value)
    ]
    if {row["index"] for row in rows} != set(range(len(rows))):
        msg = f"{name} must have each index from 0 to {len(rows) - 1} once, got {[row['index'] for row in rows]}"
        raise ValueError(msg)
    return rows


def _check_best_index(value: Any, name: str, calibrator: Any) -> int:
    """Check an index into the results."""
    if attributes.check_count(value, name, calibrator) >= len(calibrator.results_):
        msg = f"{name} must be below {len(calibrator.results_)}, the number of candidates, got {value}"
        raise ValueError(msg)
    return int(value)


@final
class AutoCalibrator(Calibrator):
    """Choose a calibrator by cross-validation: the simplest one that is not clearly worse than the best.

    Use it if you have no preference. It takes about as long as fitting every candidate `cv` + 1 times.

    Each candidate is fitted to all folds but one and scored on that one. The one-standard-error rule then takes the
    candidate with the fewest parameters among those whose mean score is worse than the best by at most the standard
    error of that difference. The chosen calibrator is fitted to all data.

    Args:
        candidates: Unfitted calibrators. Their `input` and `classes` are set to those given here. None for no change
            (`FocalPosterior(gamma=0)`), `TemperatureScaling`, `FocalTemperatureScaling`, and then, for two classes,
            `PlattScaling`, `BetaCalibration`, `QuadraticScaling` and `IsotonicCalibration`, or for more classes
            `EnsembleTemperatureScaling`, `VectorScaling` and `MatrixScaling`.
        scoring: A proper score: "nll" or "brier".
        cv: The number of folds, or a scikit-learn splitter.
        random_state: Seed that shuffles rows into folds if `cv` is a number.
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        best_: The chosen calibrator, fitted.
        best_index_: Its index among the candidates.
        results_: One dict for each candidate, best first: name, index among the candidates, mean score, difference from
            the best score and the standard error of that difference, number of parameters, and whether it was chosen.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = 2 * rng.standard_normal((3000, 4))
        >>> labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
        >>> type(AutoCalibrator().fit(3 * logits, labels).best_).__name__
        'TemperatureScaling'

    Reference: the one-standard-error rule: Breiman et al., "Classification and Regression Trees", 1984.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "best_": _check_best,
        "results_": _check_results,
        "best_index_": _check_best_index,
    }

    def __init__(
        self,
        *,
        candidates: Sequence[Calibrator] | None = None,
        scoring: Scoring = "nll",
        cv: Any = 5,
        random_state: int = 0,
        input: Input | None = None,
        classes: ArrayLike | None = None,
    ) -> None:
        self.candidates = candidates
        self.scoring = scoring
        self.cv = cv
        self.random_state = random_state
        self.input = input
        self.classes = classes

    def choose(
        self, fitted: Sequence[Calibrator], X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Choose among calibrators that are already fitted to these data: `fit` without fitting them again.

        Args:
            fitted: The candidates, each fitted to all rows. `best_` is one of them.
            X: Scores (N, K), as for `fit`.
            y: Labels (N,).
            sample_weight: One weight per row, or None.

        Returns:
            The calibrator itself.
        """
        candidates = _check_candidates(fitted, "fitted")
        for candidate in candidates:
            check_is_fitted(candidate)
        data = self._prepare(X, y, sample_weight)
        self._choose(candidates, data, self._score(candidates, data))
        return self

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        given = _default_candidates(logits.shape[1]) if self.candidates is None else self.candidates
        candidates = _check_candidates(given, "candidates")
        data = (logits, labels, weights)
        held_out = self._score(candidates, data)
        fitted = [_copy(candidate, logits.shape[1]).fit(*data) for candidate in candidates]
        self._choose(fitted, data, held_out)

    def _score(self, candidates: Sequence[Calibrator], data: Data) -> HeldOut:
        """Score copies of the candidates on rows that they were not fitted to."""
        scoring = self._check_scoring()
        logits, labels, _ = data
        folds = self._split(logits, labels)
        copies = [_copy(candidate, logits.shape[1]) for candidate in candidates]
        scores = np.array([_score_held_out(each, data, folds=folds, scoring=scoring) for each in copies])
        return HeldOut(scores, np.concatenate([test for _, test in folds]))

    def _choose(self, candidates: Sequence[Calibrator], data: Data, held_out: HeldOut) -> None:
        """Apply the one-standard-error rule to candidates that are fitted to all rows."""
        weights, (scores, rows) = data[2], held_out
        counts = np.ones(len(rows)) if weights is None else weights[rows]
        share = counts / counts.sum()
        means = scores @ share
        away = scores - scores[np.argmin(means)]
        behind = away @ share
        errors = np.sqrt((away - behind[:, None]) ** 2 @ share / max(1.0, counts.sum() - 1))
        parameters = [candidate.n_parameters_ for candidate in candidates]
        eligible = np.flatnonzero(behind <= errors)
        chosen = int(min(eligible, key=lambda index: (parameters[index], means[index])))
        self.best_, self.best_index_ = candidates[chosen], chosen
        self.results_ = [
            {
                "name": type(candidates[index]).__name__,
                "index": int(index),
                "score": float(means[index]),
                "behind": float(behind[index]),
                "error": float(errors[index]),
                "parameters": parameters[index],
                "chosen": bool(index == chosen),
            }
            for index in np.argsort(means, kind="stable")
        ]

    def _split(self, logits: np.ndarray, labels: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        if isinstance(self.cv, int | np.integer):
            if not 2 <= self.cv <= len(logits):
                samples = f"{len(logits)}, the number of samples"
                msg = f"cv must be a splitter or a number of folds from 2 to {samples}, got {self.cv}"
                raise ValueError(msg)
            splitter: Any = KFold(int(self.cv), shuffle=True, random_state=self.random_state)
        else:
            splitter = check_cv(self.cv, labels, classifier=True)
        return list(splitter.split(logits, labels))

    def _check_scoring(self) -> Scoring:
        scoring: Scoring = _check.one_of(self.scoring, "scoring", get_args(Scoring))
        return scoring

    def _check_settings(self, classes: int | None) -> None:  # noqa: ARG002
        self._check_scoring()

    def _head(self, classes: int) -> Head:
        return self.best_._head(classes)

    def _count_parameters(self) -> int:
        return self.best_._count_parameters()


def _check_candidates(candidates: Iterable[Calibrator], name: str) -> list[Calibrator]:
    """Check that there are candidates and that all are calibrators."""
    checked = list(candidates) if isinstance(candidates, Iterable) else []
    if not checked or not all(isinstance(candidate, Calibrator) for candidate in checked):
        msg = f"{name} must be a sequence of calibrators, got {candidates!r}"
        raise ValueError(msg)
    return checked


def _default_candidates(classes: int) -> list[Calibrator]:
    always = [FocalPosterior(gamma=0.0), TemperatureScaling(), FocalTemperatureScaling()]
    if classes == 2:  # a vector or a matrix has no more freedom than Platt scaling here
        return [*always, PlattScaling(), BetaCalibration(), QuadraticScaling(), IsotonicCalibration()]
    return [*always, EnsembleTemperatureScaling(), VectorScaling(), MatrixScaling()]


def _copy(candidate: Calibrator, columns: int) -> Calibrator:
    """Copy a candidate, unfitted, for logits and class indices."""
    copy: Calibrator = clone(candidate)
    copy.set_params(input="logits", classes=np.arange(columns))
    return copy


def _score_held_out(
    candidate: Calibrator,
    data: Data,
    *,
    folds: list[tuple[np.ndarray, np.ndarray]],
    scoring: Scoring,
) -> np.ndarray:
    """Score each sample by the fit to the other folds, fold after fold."""
    logits, labels, weights = data
    parts = []
    for train, test in folds:
        candidate.fit(logits[train], labels[train], None if weights is None else weights[train])
        probs = candidate.predict_proba(logits[test])
        if scoring == "nll":
            parts.append(np.minimum(log_scores(probs, labels[test]), _LARGEST_SCORE))
        else:
            parts.append(np.sum((probs - np.eye(probs.shape[1])[labels[test]]) ** 2, axis=1))
    return np.concatenate(parts)
