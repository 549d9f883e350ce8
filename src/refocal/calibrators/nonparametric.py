"""Calibration maps without a formula: isotonic regression and histogram binning.

Both are functions of a class's log-odds log(p / (1 - p)), where p is its softmax probability. They depend only on the
order of the scores. Unlike p, log-odds keep scores apart near 0 and 1.
"""

from __future__ import annotations

from typing import ClassVar, Literal, final, get_args

import numpy as np
from numpy.typing import ArrayLike
from sklearn.isotonic import IsotonicRegression

from refocal import _check
from refocal._check import Input
from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head
from refocal.calibrators.tables import count_knots, list_problems, pad_tables
from refocal.maps.heads import table_head
from refocal.stats.binning import BINS

Method = Literal["one_vs_rest", "top_label"]


@final
class IsotonicCalibration(Calibrator):
    """Calibrate with any non-decreasing function of the score.

    Choose it if you have very many held-out samples and do not know the shape of the miscalibration.

    The map is piecewise linear in the log-odds and is found by isotonic regression. Its values keep a distance of
    1 / (n + 2) from 0 and 1, the value that the rule of succession gives after n samples of one kind.

    Args:
        method: "one_vs_rest" fits one function per class (for two classes, one for the second class) and scales the
            probabilities to sum to 1. "top_label" fits one function for the most probable class; the other classes
            keep their proportions.
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        knots_: Log-odds at which a piece begins, (C, M): one row per function, padded with inf.
        values_: The function there, (C, M).

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
    }

    def __init__(
        self, *, method: Method = "one_vs_rest", input: Input | None = None, classes: ArrayLike | None = None
    ) -> None:
        self.method = method
        self.input = input
        self.classes = classes

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        top_label = self._check_method() == "top_label"
        floor = 1 / (2 + (len(logits) if weights is None else weights.sum()))
        tables = []
        for scores, positive in list_problems(logits, labels, top_label=top_label):
            regression = IsotonicRegression(y_min=floor, y_max=1 - floor, out_of_bounds="clip")
            regression.fit(scores, positive.astype(np.float64), sample_weight=weights)
            tables.append((regression.X_thresholds_, regression.y_thresholds_))
        self.knots_, self.values_ = pad_tables(tables)

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
        return Head(table_head, arrays, {"top_label": self.method == "top_label"}, wide=True)

    def _count_parameters(self) -> int:
        return count_knots(self.knots_)


@final
class HistogramBinning(Calibrator):
    """Calibrate each class with the frequency of that class in bins of its score.

    Choose it if you have very many held-out samples and want probabilities that are plain frequencies.

    Bins of a class's log-odds hold equally many samples; equal log-odds stay together. Each bin gets one more sample,
    whose label is the class in proportion to the frequency of the class among all N samples, (n + 1) / (N + K). So no
    probability is 0. Probabilities are scaled to sum to 1 over the classes.

    Args:
        bins: Number of bins, 1 to 1,000,000.
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        knots_: Left ends of the bins, which are open, (C, M): one row per class (for two classes, one row for the
            second class), padded with inf.
        values_: Probabilities, (C, M).

    Example:
        >>> import numpy as np
        >>> log_odds = np.array([-2.0, -2.0, -1.0, -1.0, 1.0, 1.0, 2.0, 2.0])
        >>> calibrator = HistogramBinning(bins=2).fit(log_odds, [0, 0, 0, 1, 1, 1, 1, 0])
        >>> calibrator.predict_proba([-2.0, 2.0])[:, 1].round(2).tolist()  # (1 + 0.5) / 5 and (3 + 0.5) / 5
        [0.3, 0.7]

    Reference: Zadrozny and Elkan, ICML 2001.
    """

    _learned: ClassVar[dict[str, Check]] = {"knots_": attributes.check_knots, "values_": attributes.check_probabilities}

    def __init__(self, *, bins: int = BINS, input: Input | None = None, classes: ArrayLike | None = None) -> None:
        self.bins = bins
        self.input = input
        self.classes = classes

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        bins = _check.count(self.bins, "bins")
        counts = np.ones(len(logits)) if weights is None else weights
        tables = []
        for scores, positive in list_problems(logits, labels, top_label=False):
            prior = (counts[positive].sum() + 1) / (counts.sum() + logits.shape[1])
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

    def _check_settings(self, classes: int | None) -> None:  # noqa: ARG002
        _check.count(self.bins, "bins")

    def _head(self, classes: int) -> Head:  # noqa: ARG002
        arrays = {"knots": self.knots_, "values": self.values_, "slopes": np.zeros_like(self.values_)}
        return Head(table_head, arrays, {"top_label": False}, wide=True)

    def _count_parameters(self) -> int:
        return count_knots(self.knots_)
