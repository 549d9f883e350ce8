"""Venn-Abers calibration: isotonic regression that shows where it has too few data."""

from __future__ import annotations

from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from refocal._arrays import namespace
from refocal._check import Input
from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head
from refocal.calibrators.tables import count_knots, find_rounding_step, list_problems, pad_tables
from refocal.maps.heads import interval_head, table_head


def _check_upper(value: Any, name: str, calibrator: Any) -> np.ndarray:
    """Check upper ends of intervals: ascending probabilities above 0 that are not below the lower ends."""
    upper = attributes.check_rising_probabilities(value, name, calibrator)
    if not ((upper > 0) & (calibrator.lower_ < 1) & (upper >= calibrator.lower_)).all():
        msg = f"{name} must be above 0 and at least lower_, which must be below 1, got {upper.tolist()!r:.100}"
        raise ValueError(msg)
    return upper


@final
class VennAbersCalibration(Calibrator):
    """Calibrate by isotonic regression, with an interval for each probability.

    Choose it for few held-out samples of two classes, or to see where data are too few for a probability: the interval
    is wide there. Its width is how much one more label moves the probability. It is not a confidence interval.

    A new score gets two isotonic fits: to the data and the score with label 0, and with label 1. Their values there are
    the ends of an interval, p0 <= p1. If samples are exchangeable, one of the two is a calibrated probability, whatever
    the distribution. The single probability p1 / (1 - p0 + p1) has the least largest regret in log loss. It is never 0
    or 1. More than two classes get one such function each, and the probabilities are scaled to sum to 1; the guarantee
    is then lost.

    Both ends are step functions of the log-odds, with up to two steps per sample. They are computed once, in
    O(n log n), and looked up by bisection. The file of the calibrator grows with the samples.

    Args:
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        knots_: Log-odds at which a piece begins, (C, M): one row per class (for two classes, one row for the second
            class), padded with inf.
        lower_: The lower end p0 of the interval on each piece, (C, M).
        upper_: The upper end p1, (C, M).
        width_: The mean width of the intervals of the scores given to `fit`.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> log_odds = 2 * rng.standard_normal(2000)
        >>> labels = rng.random(2000) < np.where(log_odds > 0, 0.8, 0.2)  # a step
        >>> calibrator = VennAbersCalibration().fit(log_odds, labels)
        >>> calibrator.predict_proba([-1.0, 1.0])[:, 1].round(1).tolist()
        [0.2, 0.8]
        >>> calibrator.predict_interval([1.0])[0, 1].round(3).tolist()
        [0.821, 0.822]

    Reference: Vovk and Petej (2014); the algorithm: Vovk, Petej and Fedorova (2015), Sec. 3; several classes:
    Manokhin (2017), one against the rest instead of one against one.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "knots_": attributes.check_knots,
        "lower_": attributes.check_rising_probabilities,
        "upper_": _check_upper,
        "width_": attributes.check_probability,
    }

    def __init__(self, *, input: Input | None = None, classes: ArrayLike | None = None) -> None:
        self.input = input
        self.classes = classes

    def predict_interval(self, X: ArrayLike) -> np.ndarray:
        """The intervals [p0, p1] of each class, (N, K, 2).

        They are those of one class against the rest, before the probabilities are scaled to sum to 1.

        Args:
            X: Scores (N, K), or (N,) or (N, 1) for two classes.
        """
        check_is_fitted(self)
        logits = self._read_scores(X, reset=False).astype(np.float64, copy=False)
        ends = interval_head(logits, self.knots_, self.lower_, self.upper_, xp=namespace(logits))
        return ends.reshape(len(logits), 2, -1).transpose(0, 2, 1)

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        counts = np.ones(len(logits)) if weights is None else weights
        problems = list_problems(logits, labels, top_label=False)
        steps = find_rounding_step(np.stack([scores for scores, _ in problems]))
        tables, widths = [], []
        for (scores, positive), step in zip(problems, steps, strict=True):
            distinct, first, index = np.unique(scores, return_index=True, return_inverse=True)
            mass = np.bincount(index, weights=counts)
            hits = np.bincount(index, weights=counts * positive)
            lower, upper = fit_ends(mass, hits)
            tables.append(_build_table(distinct, lower, upper, step[first]))
            widths.append(np.average(upper - lower, weights=mass))
        self.knots_, self.lower_, self.upper_ = pad_tables(tables)
        self.width_ = float(np.mean(widths))

    def _head(self, classes: int) -> Head:  # noqa: ARG002
        values = self.upper_ / (1 - self.lower_ + self.upper_)
        arrays = {"knots": self.knots_, "values": values, "slopes": np.zeros_like(values)}
        return Head(table_head, arrays, {"top_label": False}, wide=True)

    def _count_parameters(self) -> int:
        return count_knots(self.knots_)


def _build_table(
    scores: np.ndarray, lower: np.ndarray, upper: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Build the pieces of both ends from their values at distinct ascending scores, and the rounding of each score.

    A score between two others has the p0 of the one below and the p1 of the one above: a further label 0 pools with the
    scores below it, a further label 1 with those above. So there is a piece for each score and one between each two.
    """
    # The piece of a score reaches a little to both sides, so that rounding moves no equal score out of it.
    half = np.diff(scores) / 2
    starts = scores - np.minimum(step, np.append(np.inf, half))
    ends = scores + np.minimum(step, np.append(half, np.inf))
    knots = np.concatenate([[starts[0] - 1], np.stack([starts, ends], axis=1).ravel()])
    low = np.concatenate([[0.0], np.repeat(lower, 2)])
    high = np.concatenate([np.repeat(upper, 2), [1.0]])
    # Leave out empty pieces, and join equal ones.
    some = np.append(knots[1:] > knots[:-1], True)
    knots, low, high = knots[some], low[some], high[some]
    new = np.append(True, (np.diff(low) > 0) | (np.diff(high) > 0))
    return knots[new], low[new], high[new]


def fit_ends(mass: np.ndarray, hits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit the lower and upper ends at each group of samples; the arguments are those of `fit_with_one`."""
    return 1 - fit_with_one(mass[::-1], (mass - hits)[::-1])[::-1], fit_with_one(mass, hits)


def fit_with_one(mass: np.ndarray, hits: np.ndarray) -> np.ndarray:
    """Fit isotonic regressions to groups of samples, each with one more sample of label 1 in one group.

    Let P_j be the sums of (mass, hits) over the first j groups. With one more sample in group i, the fit there is the
    largest over a < i of the least over b >= i of the slope from P_a - (1, 1) to P_b: the slope of the line that
    touches both sets of points from below. As i grows, both points of contact only move to the right.

    Args:
        mass: Weight of the samples of each group (m,), in the order of the scores.
        hits: Weight of the samples of label 1 among them (m,).

    Returns:
        The fit at each group that got the further sample, (m,), in ascending order.
    """
    x = [0.0, *np.cumsum(mass).tolist()]
    y = [0.0, *np.cumsum(hits).tolist()]
    right: list[int] = []  # corners of the greatest convex minorant of P_1 ... P_m, the leftmost on top
    for j in range(len(x) - 1, 0, -1):
        _drop_above(right, x, y, x[j], y[j])
        right.append(j)
    fitted = []
    left = (-1.0, -1.0)
    for i in range(1, len(x)):
        new = (x[i - 1] - 1, y[i - 1] - 1)
        b = right[-1]
        if (new[1] - left[1]) * (x[b] - left[0]) <= (y[b] - left[1]) * (new[0] - left[0]):
            left = new
            while right[-1] < i:
                right.pop()
            _drop_above(right, x, y, *left)
        b = right[-1]
        fitted.append((y[b] - left[1]) / (x[b] - left[0]))
    # Weights that are not whole numbers bring rounding.
    ascending: np.ndarray = np.maximum.accumulate(np.clip(fitted, 0.0, 1.0))
    return ascending


def _drop_above(corners: list[int], x: list[float], y: list[float], left: float, low: float) -> None:
    """Drop corners from the top that are not below the line from a point on their left to the corner that follows."""
    while len(corners) > 1:
        first, second = corners[-1], corners[-2]
        if (y[second] - low) * (x[first] - left) > (y[first] - low) * (x[second] - left):
            return
        corners.pop()
