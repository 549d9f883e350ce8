"""Calibration maps without a formula: isotonic regression and histogram binning.

Both are functions of a class's log-odds log(p / (1 - p)), where p is its softmax probability. They depend only on the
order of the scores. Unlike p, log-odds keep scores apart near 0 and 1.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, final, get_args

import numpy as np
from numpy.typing import ArrayLike

from refocal import _check
from refocal._check import Input
from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head
from refocal.calibrators.fit.isotonic_tables import RankedScores
from refocal.calibrators.fit.maximum_likelihood import fit_temperature
from refocal.calibrators.fit.temperature_likelihood import LabeledLogits
from refocal.calibrators.folded import FoldedLogits
from refocal.calibrators.tables import count_knots, list_problems, pad_tables, rank_problems
from refocal.maps.heads import table_head
from refocal.stats.binning import BINS

_LEAST_MISTAKES = 20  # that the classes below the top need for a temperature of their own

Method = Literal["one_vs_rest", "top_label"]


@final
class IsotonicCalibration(Calibrator):
    """Calibrate with any non-decreasing function of the score.

    Choose it if you have very many held-out samples and do not know the shape of the miscalibration.

    The map is piecewise linear in the log-odds and is found by isotonic regression. Its values keep a distance of
    1 / (n + 2) from 0 and 1, the value that the rule of succession gives after n samples of one kind.

    Args:
        method: "one_vs_rest" fits one function per class (for two classes, one for the second class) and scales the
            probabilities to sum to 1. "top_label" scales the logits by a temperature, then fits one function for the
            most probable class. The others keep their proportions, and predicted classes do not change.
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        knots_: Log-odds at which a piece begins, (C, M): one row per function, padded with inf.
        values_: The function there, (C, M).
        temperature_: The temperature of "top_label"; 1 otherwise.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> log_odds = 2 * rng.standard_normal(20_000)
        >>> labels = rng.random(20_000) < np.where(log_odds > 0, 0.8, 0.2)  # a step
        >>> calibrator = IsotonicCalibration().fit(log_odds, labels)
        >>> calibrator.predict_proba([-1.0, 1.0])[:, 1].round(1).tolist()
        [0.2, 0.8]

    Reference: Zadrozny and Elkan, KDD 2002; top-label: Gupta and Ramdas, ICLR 2022.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "knots_": attributes.check_knots,
        "values_": attributes.check_rising_probabilities,
        "temperature_": attributes.check_positive,
    }
    _earlier: ClassVar[dict[str, Any]] = {"temperature_": 1.0}

    def __init__(
        self, *, method: Method = "one_vs_rest", input: Input | None = None, classes: ArrayLike | None = None
    ) -> None:
        self.method = method
        self.input = input
        self.classes = classes

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        top_label = self._check_method() == "top_label"
        self.temperature_ = _fit_temperature(logits, labels, weights) if top_label else 1.0
        ranked = rank_problems(logits, labels, self.temperature_, top_label=top_label)
        self._tabulate(ranked, np.ones(len(logits)) if weights is None else weights)

    def _learn_fold(self, folded: FoldedLogits, fold: int | None) -> None:
        """As for every calibrator, but scores are sorted once for all folds."""
        if self._check_method() == "top_label":
            super()._learn_fold(folded, fold)
            return
        counts = np.ones(len(folded.logits)) if folded.weights is None else folded.weights
        rows = np.arange(len(counts)) if fold is None else folded.folds[fold][0]
        self.temperature_ = 1.0
        self._tabulate(folded.ranked_log_odds.take(rows[counts[rows] > 0]), counts)

    def _tabulate(self, ranked: RankedScores, counts: np.ndarray) -> None:
        """Make the tables; `counts` are the weights of the samples by their numbers."""
        floor = 1 / (2 + float(counts[ranked.samples[0]].sum()))
        self.knots_, self.values_ = pad_tables(ranked.fit_isotonic(counts, floor=floor))

    def _check_method(self) -> Method:
        method: Method = _check.one_of(self.method, "method", get_args(Method))
        return method

    def _check_settings(self, classes: int | None) -> None:  # noqa: ARG002
        self._check_method()

    def _head(self, classes: int) -> Head:  # noqa: ARG002
        rise = np.diff(self.values_, axis=1, append=self.values_[:, -1:])
        following = np.append(self.knots_[:, 1:], np.full((len(self.knots_), 1), np.inf), axis=1)
        run = np.where(np.isinf(following), np.inf, following - np.where(np.isinf(self.knots_), 0.0, self.knots_))
        arrays = {"knots": self.knots_, "values": self.values_, "slopes": np.where(np.isinf(run), 0.0, rise / run)}
        return _table_head(arrays, top_label=self.method == "top_label", temperature=self.temperature_)

    def _count_parameters(self) -> int:
        return count_knots(self.knots_) + (self.method == "top_label")


@final
class HistogramBinning(Calibrator):
    """Calibrate with frequencies in bins of the score.

    Choose it if you have very many held-out samples and want confidences that are plain frequencies.

    Bins of the log-odds hold equally many samples; equal log-odds stay together. Each bin gets one more sample, whose
    label is positive in proportion to the n positive labels among all N samples, (n + 1) / (N + C) with C = 2 for two
    classes and for "top_label", and C = K for each of K classes. So no frequency is 0.

    Args:
        method: "top_label" scales the logits by a temperature and then replaces the confidence in the most probable
            class by the frequency with which that class is right. The others keep their proportions, and predicted
            classes do not change. "one_vs_rest" replaces the probability of each class by its own frequency (for two
            classes, that of the second class) and scales them to sum to 1. Many classes then share a bin and are tied,
            and predictions are lost: on networks of 100 classes up to 32 percentage points of accuracy. None for
            "one_vs_rest" with two classes and "top_label" with more.
        bins: Number of bins, at least 1.
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        knots_: Left ends of the bins, which are open, (C, M): one row for "top_label", else one row per class (for two
            classes, one row for the second class), padded with inf.
        values_: Probabilities, (C, M).
        temperature_: The temperature of "top_label"; 1 otherwise.

    Example:
        >>> import numpy as np
        >>> log_odds = np.array([-2.0, -2.0, -1.0, -1.0, 1.0, 1.0, 2.0, 2.0])
        >>> calibrator = HistogramBinning(bins=2).fit(log_odds, [0, 0, 0, 1, 1, 1, 1, 0])
        >>> calibrator.predict_proba([-2.0, 2.0])[:, 1].round(2).tolist()  # (1 + 0.5) / 5 and (3 + 0.5) / 5
        [0.3, 0.7]

    Reference: Zadrozny and Elkan, ICML 2001; scaling before binning: Kumar, Liang and Ma, NeurIPS 2019; one binary
    problem for the top class: Le Coz, Herbin and Adjed, NeurIPS 2024.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "knots_": attributes.check_knots,
        "values_": attributes.check_probabilities,
        "temperature_": attributes.check_positive,
    }
    _earlier: ClassVar[dict[str, Any]] = {"method": "one_vs_rest", "temperature_": 1.0}

    def __init__(
        self,
        *,
        method: Method | None = None,
        bins: int = BINS,
        input: Input | None = None,
        classes: ArrayLike | None = None,
    ) -> None:
        self.method = method
        self.bins = bins
        self.input = input
        self.classes = classes

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        bins = _check.count(self.bins, "bins")
        top_label = self.is_top_label(logits.shape[1])
        counts = np.ones(len(logits)) if weights is None else weights
        self.temperature_ = _fit_temperature(logits, labels, weights) if top_label else 1.0
        tables = []
        for scores, positive in list_problems(logits, labels, self.temperature_, top_label=top_label):
            prior = (counts[positive].sum() + 1) / (counts.sum() + (2 if top_label else logits.shape[1]))
            order = np.argsort(scores, kind="stable")
            shares = np.cumsum(counts[order]) / counts.sum()
            last = np.searchsorted(shares, np.arange(1, bins) / bins - 1e-12)
            distinct = np.unique(scores)
            ends = np.searchsorted(distinct, np.unique(scores[order][last]))
            ends = ends[ends < len(distinct) - 1]
            # Edges lie halfway to the next score, so that rounding moves no sample to another bin.
            edges = distinct[ends] + (distinct[ends + 1] - distinct[ends]) / 2
            index = np.searchsorted(edges, scores, side="left")
            size = np.bincount(index, weights=counts, minlength=len(edges) + 1)
            own = np.bincount(index, weights=counts * positive, minlength=len(edges) + 1)
            # The first bin has no left end. Any knot below the first edge will do: all lower scores belong to the bin.
            first = scores.min() - 1
            tables.append((np.concatenate([[first], edges]), (own + prior) / (size + 1)))
        self.knots_, self.values_ = pad_tables(tables)

    def is_top_label(self, classes: int) -> bool:
        """Return whether only the most probable class of this many has bins."""
        if self.method is None:
            return classes > 2
        return bool(_check.one_of(self.method, "method", get_args(Method)) == "top_label")

    def _check_settings(self, classes: int | None) -> None:
        _check.count(self.bins, "bins")
        self.is_top_label(classes or 2)

    def _head(self, classes: int) -> Head:
        arrays = {"knots": self.knots_, "values": self.values_, "slopes": np.zeros_like(self.values_)}
        return _table_head(arrays, top_label=self.is_top_label(classes), temperature=self.temperature_)

    def _count_parameters(self) -> int:
        return count_knots(self.knots_) + self.is_top_label(len(self.classes_))


def _fit_temperature(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> float:
    """Fit the temperature of the classes below the top, to the rows whose label is one of them.

    The confidence in the top class is calibrated by itself, so these classes need a temperature of their own. If such
    rows do not determine one, it is that of all classes.
    """
    top = np.argmax(logits, axis=1)
    wrong = top != labels
    mistakes = np.count_nonzero(wrong) if weights is None else weights[wrong].sum()
    if logits.shape[1] > 2 and mistakes >= _LEAST_MISTAKES:
        below = np.arange(logits.shape[1]) != top[wrong, None]
        others = logits[wrong][below].reshape(-1, logits.shape[1] - 1)
        places = labels[wrong] - (labels[wrong] > top[wrong])
        own = None if weights is None else weights[wrong]
        fitted = fit_temperature(LabeledLogits.prepare(others, places, own), exact=True)
        if fitted.evaluations and not fitted.at_bound:
            return 1 / fitted.beta
    return 1 / fit_temperature(LabeledLogits.prepare(logits, labels, weights), exact=True).beta


def _table_head(arrays: dict[str, np.ndarray], *, top_label: bool, temperature: float) -> Head:
    """Make the head of tables; only "top_label" has a temperature."""
    scale = {"temperature": temperature} if top_label else {}
    return Head(table_head, arrays, {"top_label": top_label, **scale}, wide=True)
