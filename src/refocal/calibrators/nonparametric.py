"""Calibration maps without a formula: isotonic regression and histogram binning.

Both are functions of a class's log-odds log(p / (1 - p)), p the softmax of the logits: they depend only on the order
of scores, and log-odds, unlike p, do not run together near 0 and 1.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.isotonic import IsotonicRegression

from refocal import _check
from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head
from refocal.maps.heads import table_head
from refocal.maps.simplex import log_p_and_q, split_logits


class IsotonicCalibration(Calibrator):
    """A non-decreasing function of the log-odds, piecewise linear, by isotonic regression.

    No value is closer to 0 or 1 than 1 / (n + 2), which n samples of one kind would give by the rule of succession.

    Args:
        method: "one_vs_rest": a function for each class (for two classes, of the second), probabilities scaled to
            sum 1; "top_label": one function, of the most probable class, the others keeping their proportions.
        input: "logits" or "probs".
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        knots_: Log-odds at which a piece begins, (C, M): a row a function, padded with inf.
        values_: The function there, (C, M).

    Reference: Zadrozny and Elkan, KDD 2002; top-label: Gupta and Ramdas, ICLR 2022.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "knots_": attributes.check_knots,
        "values_": attributes.check_rising_probabilities,
    }

    def __init__(self, *, method: str = "one_vs_rest", input: str = "logits", classes: Any = None) -> None:
        self.method = method
        self.input = input
        self.classes = classes

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        top_label = self._check_method() == "top_label"
        floor = 1 / (2 + (len(logits) if weights is None else weights.sum()))
        tables = []
        for scores, positive in _problems(logits, labels, top_label=top_label):
            regression = IsotonicRegression(y_min=floor, y_max=1 - floor, out_of_bounds="clip")
            regression.fit(scores, positive.astype(np.float64), sample_weight=weights)
            tables.append((regression.X_thresholds_, regression.y_thresholds_))
        self.knots_, self.values_ = _tables(tables)

    def _check_method(self) -> str:
        return _check.one_of(self.method, "method", ("one_vs_rest", "top_label"))

    def _check_settings(self, classes: int | None) -> None:
        super()._check_settings(classes)
        self._check_method()

    def _head(self, classes: int) -> Head:  # noqa: ARG002
        rise = np.diff(self.values_, axis=1, append=self.values_[:, -1:])
        following = np.append(self.knots_[:, 1:], np.full((len(self.knots_), 1), np.inf), axis=1)
        run = np.where(np.isinf(following), np.inf, following - np.where(np.isinf(self.knots_), 0.0, self.knots_))
        arrays = {"knots": self.knots_, "values": self.values_, "slopes": np.where(np.isinf(run), 0.0, rise / run)}
        return Head(table_head, arrays, {"top_label": self.method == "top_label"}, wide=True)

    def _count_parameters(self) -> int:
        return int(np.sum(np.isfinite(self.knots_)))


class HistogramBinning(Calibrator):
    """The frequency of a class among the samples of a bin of its log-odds, scaled to sum 1 over the classes.

    Bins hold equally many samples; equal log-odds stay together. To each bin one sample is added whose label is the
    class in proportion to its frequency, (n + 1) / (N + K) over all N samples, so that no probability is 0.

    Args:
        bins: How many bins, 1 to 1,000,000.
        input: "logits" or "probs".
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        knots_: Left ends of the bins, open, (C, M): a row a class (for two classes, the second), padded with inf.
        values_: Probabilities, (C, M).

    Reference: Zadrozny and Elkan, ICML 2001.
    """

    _learned: ClassVar[dict[str, Check]] = {"knots_": attributes.check_knots, "values_": attributes.check_probabilities}

    def __init__(self, *, bins: int = 15, input: str = "logits", classes: Any = None) -> None:
        self.bins = bins
        self.input = input
        self.classes = classes

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        bins = _check.count(self.bins, "bins")
        counts = np.ones(len(logits)) if weights is None else weights
        tables = []
        for scores, positive in _problems(logits, labels, top_label=False):
            prior = (counts[positive].sum() + 1) / (counts.sum() + logits.shape[1])
            order = np.argsort(scores, kind="stable")
            shares = np.cumsum(counts[order]) / counts.sum()
            last = np.searchsorted(shares, np.arange(1, bins) / bins - 1e-12)
            distinct = np.unique(scores)
            ends = np.searchsorted(distinct, np.unique(scores[order][last]))
            ends = ends[ends < len(distinct) - 1]
            # halfway to the next score, so that rounding moves no sample to another bin
            edges = distinct[ends] + (distinct[ends + 1] - distinct[ends]) / 2
            index = np.searchsorted(edges, scores, side="left")
            size = np.bincount(index, weights=counts, minlength=len(edges) + 1)
            own = np.bincount(index, weights=counts * positive, minlength=len(edges) + 1)
            # the first bin has no left end: any knot below the first edge, as what lies before it belongs to it
            first = scores.min() - 1
            tables.append((np.concatenate([[first], edges]), (own + prior) / (size + 1)))
        self.knots_, self.values_ = _tables(tables)

    def _check_settings(self, classes: int | None) -> None:
        super()._check_settings(classes)
        _check.count(self.bins, "bins")

    def _head(self, classes: int) -> Head:  # noqa: ARG002
        arrays = {"knots": self.knots_, "values": self.values_, "slopes": np.zeros_like(self.values_)}
        return Head(table_head, arrays, {"top_label": False}, wide=True)

    def _count_parameters(self) -> int:
        return int(np.sum(np.isfinite(self.knots_)))


def _problems(logits: np.ndarray, labels: np.ndarray, *, top_label: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Log-odds and whether the label is that class: of the top class, of the second of two, or of each."""
    split = split_logits(logits.astype(np.float64, copy=False), temperature=1.0, xp=np)
    log_p, log_q = log_p_and_q(split, xp=np)
    log_odds = _without_rounding(log_p - log_q)
    if top_label:
        return [(log_odds.max(axis=1), np.argmax(logits, axis=1) == labels)]
    chosen = [1] if logits.shape[1] == 2 else range(logits.shape[1])
    return [(log_odds[:, k], labels == k) for k in chosen]


def _without_rounding(log_odds: np.ndarray) -> np.ndarray:
    """Log-odds in steps of about 1e-12 of their largest: those of equal rows, their classes reordered, are equal."""
    step = 2.0 ** (np.frexp(np.abs(log_odds).max())[1] - 40)
    return np.round(log_odds / step) * step


def _tables(tables: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of one length, a power of two: knots padded with inf, values with their last."""
    size = 1 << max(len(knots) - 1 for knots, _ in tables).bit_length()
    padded = [
        (np.pad(knots, (0, size - len(knots)), constant_values=np.inf), np.pad(values, (0, size - len(values)), "edge"))
        for knots, values in tables
    ]
    return np.array([knots for knots, _ in padded]), np.array([values for _, values in padded])
