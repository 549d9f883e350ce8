"""The combination of several calibrators by cross-validation: a mixture of them, or the choice of one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, final, get_args

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from refocal import _check
from refocal._check import Input
from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head
from refocal.calibrators.binary import BetaCalibration, PlattScaling, QuadraticScaling
from refocal.calibrators.fit.held_out import HeldOut, compare, mix, mix_held_out
from refocal.calibrators.focal_posterior import FocalPosterior
from refocal.calibrators.focal_temperature import FocalTemperatureScaling
from refocal.calibrators.folded import FoldedLogits
from refocal.calibrators.folds import split_rows
from refocal.calibrators.linear import MatrixScaling, VectorScaling
from refocal.calibrators.nonparametric import IsotonicCalibration
from refocal.calibrators.temperature import TemperatureScaling
from refocal.maps.heads import blend_head

Scoring = Literal["nll", "brier"]
Combine = Literal["mixture", "select"]

MIXTURE = "mixture"  # its name among the results
_CLASSES_FOR_EACH = 100  # with more, a matrix and a function for each class take too long

_RESULT: dict[str, Check] = {
    "name": attributes.check_text,
    "index": attributes.check_count,
    "score": attributes.check_finite,
    "behind": attributes.check_finite,
    "error": attributes.check_standard_error,
    "p_value": attributes.check_probability,
    "parameters": attributes.check_standard_error,
    "weight": attributes.check_probability,
    "chosen": attributes.check_flag,
}


def _check_members(value: Any, name: str, calibrator: Any) -> list[Calibrator]:
    """Check the fitted calibrators of a mixture, all of the same number of classes."""
    count = attributes.count_classes(calibrator)
    if not isinstance(value, list) or not value:
        msg = f"{name} must be a list of calibrators, got {value!r:.100}"
        raise ValueError(msg)
    for member in value:
        if not isinstance(member, Calibrator) or len(getattr(member, "classes_", ())) != count:
            msg = f"{name} must be calibrators of {count} classes, got {member!r:.100}"
            raise ValueError(msg)
    return value


def _check_weights(value: Any, name: str, calibrator: Any) -> np.ndarray:
    """Check one share per member, summing to 1."""
    array: np.ndarray = attributes.coefficients_check(len(calibrator.members_), least=0.0)(value, name, calibrator)
    if abs(array.sum() - 1) > 1e-6:
        msg = f"{name} must be shares that sum to 1, got {array.tolist()!r:.100}"
        raise ValueError(msg)
    return array


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
        {key: _RESULT[key](value, f"{name}[{index}].{key}", calibrator) for key, value in row.items()}
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
    """Combine several calibrators by cross-validation. Use it if you have no preference.

    Each candidate is fitted to all folds but one and scored on that one. `combine="mixture"` then averages the
    probabilities of the candidates, fitted to all data, and of the uniform distribution, with the weights whose average
    predicts the held-out rows best. The uniform distribution has at least 1 / (n + 1), because from n samples nobody
    can tell a smaller probability from 0; if classes are masked, it is left out. `combine="select"` takes a single
    candidate by the one-standard-error rule: the one with the fewest effective parameters among those whose mean score
    is worse than the best by at most the standard error of that difference. A mixture predicts better; a single
    calibrator is easier to explain.

    Held-out rows are predicted by fits that have not seen their labels, with a few exceptions, which favor candidates
    slightly. Linear maps choose one base and one penalty for all folds by the mean NLL of the same held-out rows and,
    with more than 128 classes, take the axes of their matrix from all rows. With `input="probs"`, all rows choose one
    floor.

    Args:
        candidates: Unfitted calibrators. Their `input` and `classes` are set to those given here. None for no change
            (`FocalPosterior(gamma=0)`), `TemperatureScaling`, `FocalTemperatureScaling`, and then, for two classes,
            `PlattScaling`, `BetaCalibration`, `QuadraticScaling` and `IsotonicCalibration`, or for more classes
            `VectorScaling`, `IsotonicCalibration(method="top_label")` and, for up to 100 classes, `MatrixScaling` and
            `IsotonicCalibration`. If logits are masked with -inf, only the first three.
        combine: "mixture" or "select".
        scoring: The proper score that weights and choice are about: "nll" or "brier".
        cv: The number of folds, or a scikit-learn splitter. Of millions of scores, only the first folds are held out.
        random_state: Seed that shuffles rows into folds if `cv` is a number.
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        candidates_: All candidates, fitted. Files do not hold them.
        fit_seconds_: The time that each candidate took, cross-validation included. A fit that several candidates
            share counts for the first. Files do not hold it.
        members_: Those whose probabilities are averaged; one with "select".
        weights_: Their weights, summing to 1.
        uniform_: The share of the uniform distribution: the mixture is (1 - uniform_) times that of the members, plus
            uniform_ / K. It is 0 with "select", and if logits were masked.
        best_index_: Index of the candidate that the one-standard-error rule takes; a mixture comes after all others.
        results_: One dict for each candidate, and for the mixture, best first: name, index among the candidates, mean
            score, difference from the best score, the standard error of that difference and its one-sided p-value,
            effective number of parameters, weight in the mixture, and whether the one-standard-error rule takes it. The
            mixture counts the parameters of its members, and their weights. Its score comes from weights that were
            fitted without the scored fold. The p-value is that of a paired test and has two biases. Choosing the best
            of several makes it too small; needless parameters, which worsen the best score, make it too large. In
            simulations with true temperature scaling, p <= 0.05 occurred in 0 to 9 % of data sets.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = 2 * rng.standard_normal((3000, 4))
        >>> labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
        >>> auto = AutoCalibrator(combine="select").fit(3 * logits, labels)
        >>> type(auto.members_[0]).__name__
        'TemperatureScaling'

    Reference: mixtures by held-out likelihood: Smyth and Wolpert, "Stacked density estimation", NIPS 1997; the
    one-standard-error rule: Breiman et al., "Classification and Regression Trees", 1984.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "members_": _check_members,
        "weights_": _check_weights,
        "uniform_": attributes.check_probability,
        "results_": _check_results,
        "best_index_": _check_best_index,
    }

    def __init__(
        self,
        *,
        candidates: Sequence[Calibrator] | None = None,
        combine: Combine = "mixture",
        scoring: Scoring = "nll",
        cv: Any = 5,
        random_state: int = 0,
        input: Input | None = None,
        classes: ArrayLike | None = None,
    ) -> None:
        self.candidates = candidates
        self.combine = combine
        self.scoring = scoring
        self.cv = cv
        self.random_state = random_state
        self.input = input
        self.classes = classes

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        columns = logits.shape[1]
        given = self.candidates
        masked = bool(np.isneginf(logits).any())
        if given is None:
            given = list(default_candidates(columns, masked=masked).values())
        self._check_settings(None)
        folds = split_rows(self.cv, self.random_state, logits, labels, weights)
        raised = self._raise_to_floor(logits)
        self.candidates_: list[Calibrator] = [
            clone(candidate).set_params(input="logits", classes=np.arange(columns))
            for candidate in _check_candidates(given)
        ]
        folded = FoldedLogits(logits, labels, weights, folds)
        folded_raised = folded if raised is logits else FoldedLogits(raised, labels, weights, folds)
        held_out = []
        self.fit_seconds_: list[float] = []
        for candidate in self.candidates_:
            start = time.perf_counter()
            predictions = candidate._fit_and_hold_out(folded_raised if candidate._has_floor else folded)
            held_out.append(HeldOut.collect(predictions, folds, labels, self.scoring))
            self.fit_seconds_.append(time.perf_counter() - start)
        counts = np.ones(len(logits)) if weights is None else weights
        held_counts = np.concatenate([counts[held] for _, held in folds])
        share = held_counts / held_counts.sum()
        least = 0.0 if masked else 1 / (float(counts.sum()) + 1)
        names = [type(candidate).__name__ for candidate in self.candidates_]
        parameters = [candidate._count_effective() for candidate in self.candidates_]
        shares, self.uniform_ = np.zeros(len(names)), 0.0
        if self.combine == "mixture":
            shares, self.uniform_ = mix(held_out, share, columns, scoring=self.scoring, least_uniform=least)
            sizes = [len(held) for _, held in folds]
            held_out.append(mix_held_out(held_out, share, columns, sizes, scoring=self.scoring, least_uniform=least))
            names.append(MIXTURE)
            parameters.append(float(np.array(parameters)[shares > 0].sum()) + np.count_nonzero(shares))
        compared = compare(np.array([each.scores for each in held_out]), held_counts, np.array(parameters))
        self.best_index_ = next(row["index"] for row in compared if row["chosen"])
        if self.combine == "select":
            shares[self.best_index_] = 1.0
        used = np.flatnonzero(shares)
        self.members_, self.weights_ = [self.candidates_[index] for index in used], shares[used]
        for candidate in self.candidates_:  # they are fitted to these scores, too, not only to logits
            candidate.set_params(input=self.input, classes=self.classes)
            candidate.classes_, candidate.n_features_in_ = self.classes_, self.n_features_in_
            if hasattr(self, "feature_names_in_"):
                candidate.feature_names_in_ = self.feature_names_in_
            if hasattr(self, "floor_") and candidate._has_floor:
                candidate.floor_ = self.floor_
        self.results_ = [
            {
                "name": names[row["index"]],
                **row,
                "parameters": float(parameters[row["index"]]),
                "weight": float(shares[row["index"]]) if row["index"] < len(shares) else 1.0,
            }
            for row in compared
        ]

    def _learn_from(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        """Choose the floor; a candidate that has none is scored without it."""
        self._choose_floor(logits, labels, weights)
        self._fit(logits, labels, weights)

    def _may_be_masked(self, *, reset: bool) -> bool:
        return reset or (self.uniform_ == 0 and all(member._may_be_masked(reset=False) for member in self.members_))

    def _check_settings(self, classes: int | None) -> None:  # noqa: ARG002
        _check.one_of(self.scoring, "scoring", get_args(Scoring))
        _check.one_of(self.combine, "combine", get_args(Combine))

    def _head(self, classes: int) -> Head:
        heads = [member._head(classes) for member in self.members_]
        if len(heads) == 1 and self.uniform_ == 0:
            return heads[0]
        arrays = {f"{name}_{k}": array for k, head in enumerate(heads) for name, array in head.arrays.items()}
        parts = tuple(
            (head.function, tuple(head.arrays), head.settings, float(weight))
            for head, weight in zip(heads, (1 - self.uniform_) * self.weights_, strict=True)
        )
        settings = {"parts": parts, "uniform": self.uniform_}
        return Head(blend_head, arrays, settings, wide=any(head.wide for head in heads))

    def _count_parameters(self) -> int:
        return sum(member._count_parameters() for member in self.members_) + len(self.members_) - 1

    def _count_effective(self) -> float:
        return sum(member._count_effective() for member in self.members_) + len(self.members_) - 1


def _check_candidates(candidates: Iterable[Calibrator]) -> list[Calibrator]:
    """Check that there are candidates and that all are calibrators of one label per row."""
    from refocal.calibrators.multilabel import MultilabelCalibrator  # it imports this module

    checked = list(candidates) if isinstance(candidates, Iterable) else []
    if not checked or not all(isinstance(candidate, Calibrator) for candidate in checked):
        msg = f"candidates must be a sequence of calibrators, got {candidates!r}"
        raise ValueError(msg)
    for candidate in checked:
        if isinstance(candidate, MultilabelCalibrator):
            msg = (
                f"candidates must be calibrators for mutually exclusive classes, got {candidate!r:.100}: "
                "for rows with several labels, use MultilabelCalibrator(AutoCalibrator(...))"
            )
            raise ValueError(msg)
    return checked


def default_candidates(classes: int, *, masked: bool = False) -> dict[str, Calibrator]:
    """Make the candidates for a number of classes, by the names that commands and reports use.

    Few of them take logits that are masked.
    """
    always: dict[str, Calibrator] = {
        "given": FocalPosterior(gamma=0.0),
        "temperature": TemperatureScaling(),
        "focal-temperature": FocalTemperatureScaling(),
    }
    if masked:
        return always
    if classes == 2:  # a vector or a matrix has no more freedom than Platt scaling here
        return always | {
            "platt": PlattScaling(),
            "beta": BetaCalibration(),
            "quadratic": QuadraticScaling(),
            "isotonic": IsotonicCalibration(),
        }
    found: dict[str, Calibrator] = always | {
        "vector": VectorScaling(),
        "top-isotonic": IsotonicCalibration(method="top_label"),
    }
    if classes <= _CLASSES_FOR_EACH:
        found |= {"matrix": MatrixScaling(), "isotonic": IsotonicCalibration()}
    return found
