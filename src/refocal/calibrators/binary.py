"""Logistic maps of one score: Platt scaling, beta calibration and quadratic scaling.

With more than two classes, each class is fitted against the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike

from refocal._check import Input
from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head
from refocal.calibrators.fit.logistic import fit_binary
from refocal.calibrators.fit.temperature_likelihood import MASKED, find_open_rows
from refocal.calibrators.tables import remove_rounding
from refocal.maps.heads import logistic_head, quadratic_features, quadratic_head
from refocal.maps.simplex import log_p_and_q, split_logits

_FAR = 10.0  # spreads of the logits; fits count log-odds farther from 0 as this far. Those of networks reach about 4.


@final
class PlattScaling(Calibrator):
    """Calibrate a two-class score with a slope and an offset.

    Choose it for two classes if the score is off by a scale and a shift. `BetaCalibration` is more flexible.

    The map is sigmoid(a s + b), where s = log(p / (1 - p)) are the log-odds of a class and p is its softmax
    probability. With two classes this is the probability of the second class. With more, each class has its own a and
    b, and the probabilities are scaled to sum to 1. Labels are smoothed as Platt proposed, to (n + 1) / (n + 2) and
    1 / (m + 2) for n samples of the class and m others. This keeps a and b finite for separable data and missing
    classes. The fit counts log-odds beyond ±10 spreads as ±10 spreads, so that a row that is far off and masks such as
    -1e9 change little. A spread is the median distance of a logit from the largest of its row, and at least 1.

    Args:
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        weights_: a, (1,) for two classes, else (K,).
        bias_: b, of the same shape.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> log_odds = 2 * rng.standard_normal(20_000)
        >>> labels = rng.random(20_000) < 1 / (1 + np.exp(-(0.5 * log_odds + 1)))
        >>> calibrator = PlattScaling().fit(log_odds, labels)
        >>> round(float(calibrator.weights_[0]), 1), round(float(calibrator.bias_[0]), 1)
        (0.5, 1.0)

    Reference: Platt, "Probabilistic outputs for support vector machines", 1999.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "weights_": attributes.coefficients_check(attributes.count_functions),
        "bias_": attributes.coefficients_check(attributes.count_functions),
    }

    def __init__(self, *, input: Input | None = None, classes: ArrayLike | None = None) -> None:
        self.input = input
        self.classes = classes

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        self.weights_, self.bias_ = _fit_classes(_fit_platt, logits, labels, weights)

    def _head(self, classes: int) -> Head:  # noqa: ARG002
        arrays = {"on_p": self.weights_, "on_q": self.weights_, "bias": self.bias_}
        return Head(logistic_head, arrays, {})

    def _count_parameters(self) -> int:
        return self.weights_.size + self.bias_.size


@final
class BetaCalibration(Calibrator):
    """Calibrate a two-class probability with three numbers, so that it can be bent differently near 0 and near 1.

    Choose it for two classes, in particular if the scores are probabilities already.

    The map is sigmoid(a log p - b log(1 - p) + c) with a, b >= 0, where p is the softmax probability of a class. Two
    classes, more classes, smoothed labels, and huge log-odds are treated as in `PlattScaling`.

    Args:
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        weights_: a and b, (2, 1) for two classes, else (2, K).
        bias_: c, (1,) or (K,).

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> probs = rng.random(20_000)
        >>> labels = rng.random(20_000) < probs**2 / (probs**2 + (1 - probs))
        >>> calibrator = BetaCalibration(input="probs").fit(probs, labels)
        >>> calibrator.weights_[:, 0].round().tolist()
        [2.0, 1.0]

    Reference: Kull, Silva Filho and Flach, "Beta calibration", AISTATS 2017.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "weights_": attributes.coefficients_check(2, attributes.count_functions, least=0.0),
        "bias_": attributes.coefficients_check(attributes.count_functions),
    }

    def __init__(self, *, input: Input | None = None, classes: ArrayLike | None = None) -> None:
        self.input = input
        self.classes = classes

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        found = _fit_classes(_fit_beta, logits, labels, weights)
        self.weights_, self.bias_ = found[:2], found[2]

    def _head(self, classes: int) -> Head:  # noqa: ARG002
        arrays = {"on_p": self.weights_[0], "on_q": self.weights_[1], "bias": self.bias_}
        # In float64: log(1 - p) may be tiny, and its coefficient too large for float32.
        return Head(logistic_head, arrays, {}, wide=True)

    def _count_parameters(self) -> int:
        return self.weights_.size + self.bias_.size


@final
class QuadraticScaling(Calibrator):
    """Calibrate a two-class score with a curve: its slope changes steadily from low to high scores.

    Choose it for two classes if a straight line, as `PlattScaling` has, is too stiff. It bends over the whole range of
    the scores, while `BetaCalibration` bends near p = 1/2.

    The map is sigmoid(g(s)) of the log-odds s = log(p / (1 - p)), where g is the most likely quadratic polynomial that
    does not decrease in the range of the fitted scores. Scores outside count as the nearest end of that range. The
    range reaches from the lowest to the highest score, but the two extreme scores count at most one mean gap beyond
    their neighbors. So probabilities of exactly 0 or 1, whose log-odds are huge, do not stretch it. Two classes, more
    classes, smoothed labels, and huge log-odds are treated as in `PlattScaling`.

    Args:
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        range_: The ends of the range, (2, 1) for two classes, else (2, K).
        slopes_: The slopes of g there, of the same shape. If they are equal, this is Platt scaling inside the range.
        bias_: g at the lower end, (1,) or (K,).

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> log_odds = 4 * rng.random(20_000) - 2
        >>> labels = rng.random(20_000) < 1 / (1 + np.exp(-(log_odds + log_odds**2 / 4)))  # slopes 0 to 2
        >>> calibrator = QuadraticScaling().fit(log_odds, labels)
        >>> calibrator.slopes_[:, 0].round().tolist()
        [0.0, 2.0]

    Reference: Berta, Holzmüller, Jordan and Bach, "Structured matrix scaling for multi-class calibration", 2025, whose
    quadratic scaling is any polynomial, without a range.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "range_": attributes.check_ranges,
        "slopes_": attributes.coefficients_check(2, attributes.count_functions, least=0.0),
        "bias_": attributes.coefficients_check(attributes.count_functions),
    }

    def __init__(self, *, input: Input | None = None, classes: ArrayLike | None = None) -> None:
        self.input = input
        self.classes = classes

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        found = _fit_classes(_fit_quadratic, logits, labels, weights)
        self.range_, self.slopes_, self.bias_ = found[:2], found[2:4], found[4]

    def _head(self, classes: int) -> Head:  # noqa: ARG002
        arrays = {"ends": self.range_, "slopes": self.slopes_, "bias": self.bias_}
        # In float64: if all scores are close together, slopes may be too large for float32.
        return Head(quadratic_head, arrays, {}, wide=True)

    def _count_parameters(self) -> int:
        return self.slopes_.size + self.bias_.size


FitClass = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]


def _find_spread(logits: np.ndarray, weights: np.ndarray | None) -> float:
    """The median distance of a logit from the largest of its row, masked classes aside; 0 if every row is constant.

    Unlike `Scales`, it takes all rows with their weights: the fit depends on it, so it must not depend on the order of
    the rows, and whole weights must count repetitions.
    """
    weights = np.ones(len(logits)) if weights is None else weights
    with np.errstate(over="ignore"):
        distances = logits.max(axis=1, keepdims=True) - logits
    distances[~(distances > 0)] = np.inf  # the top class and its equals
    leads = distances.min(axis=1)
    distinct = np.isfinite(leads) & (weights > 0)
    if not distinct.any():
        return 0.0
    leads, own = leads[distinct], weights[distinct]
    open_rows = find_open_rows(leads, own)
    near = distances <= MASKED * _median(leads[open_rows], own[open_rows])
    return _median(distances[near], np.broadcast_to(weights[:, None], distances.shape)[near])


def _median(values: np.ndarray, weights: np.ndarray) -> float:
    return float(np.quantile(values, 0.5, weights=weights, method="inverted_cdf"))


def _fit_classes(fit_class: FitClass, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Fit the second of two classes, or each of more; the coefficients are (d, classes).

    `fit_class` takes log p and log(1 - p) of the class, whether the label is the class, and the weights, all (N,).
    """
    logits = logits.astype(np.float64, copy=False)
    log_p, log_q = log_p_and_q(split_logits(logits, temperature=1.0, xp=np), xp=np)
    # A smoothed label is never 0 or 1. So log-odds of a million cost much even if they are right, and the fit would
    # flatten the map for all other rows. Log-odds of up to 10 belong to ordinary probabilities, whatever the spread.
    far = _FAR * max(1.0, _find_spread(logits, weights))
    log_p, log_q = np.maximum(log_p, -far), np.maximum(log_q, -far)
    columns = [1] if logits.shape[1] == 2 else range(logits.shape[1])
    return np.array([fit_class(log_p[:, k], log_q[:, k], labels == k, weights) for k in columns]).T


def _fit_platt(log_p: np.ndarray, log_q: np.ndarray, positive: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    features = np.stack([log_p - log_q, np.ones(len(log_p))], axis=1)
    return _fit_smoothed(features, positive, weights)


def _fit_beta(log_p: np.ndarray, log_q: np.ndarray, positive: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    return _fit_rising(np.stack([log_p, -log_q, np.ones(len(log_p))], axis=1), positive, weights)


def _fit_quadratic(
    log_p: np.ndarray, log_q: np.ndarray, positive: np.ndarray, weights: np.ndarray | None
) -> np.ndarray:
    log_odds = remove_rounding(log_p - log_q)
    low, high = _find_range(log_odds)
    features = np.stack([*quadratic_features(log_odds, low, high, xp=np), np.ones(len(log_odds))], axis=1)
    return np.array([low, high, *_fit_rising(features, positive, weights)])


def _find_range(scores: np.ndarray) -> tuple[float, float]:
    """Find the lowest and the highest score, at most one mean gap away from the scores between them."""
    distinct = np.unique(scores)
    low, high = distinct[0], distinct[-1]
    if len(distinct) > 2:
        inner = distinct[1:-1]
        gap = (inner[-1] - inner[0]) / (len(inner) - 1) if len(inner) > 1 else min(inner[0] - low, high - inner[0])
        low, high = max(low, inner[0] - gap), min(high, inner[-1] + gap)
    return float(low), float(high)


def _fit_rising(features: np.ndarray, positive: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Fit coefficients of two rising features and a constant, the first two at least 0.

    The NLL is convex. So if the free minimum lies outside, the minimum is on an edge: a coefficient is 0.
    """
    free = _fit_smoothed(features, positive, weights)
    if np.min(free[:-1]) >= 0:
        return free
    edges = [np.zeros(3), np.zeros(3), np.zeros(3)]
    edges[0][2:] = _fit_smoothed(features[:, 2:], positive, weights)
    for kept in (0, 1):
        edges[1 + kept][[kept, 2]] = _fit_smoothed(features[:, [kept, 2]], positive, weights)
    targets, share = _smooth_labels(positive, weights)

    def nll(coefficients: np.ndarray) -> float:
        scores = features @ coefficients
        return float(share @ (np.logaddexp(0.0, scores) - targets * scores))

    return min((edge for edge in edges if np.min(edge[:-1]) >= 0), key=nll)


def _fit_smoothed(features: np.ndarray, positive: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Fit the coefficients of features (N, d), the constant last, to labels smoothed as Platt proposed."""
    targets, share = _smooth_labels(positive, weights)
    # Features are centered and scaled, so that Newton's steps are well conditioned.
    center, spread = share @ features, np.sqrt(share @ (features - share @ features) ** 2)
    spread[spread <= 1e-12 * np.abs(center)] = 1.0  # the spread of equal numbers is rounding alone
    center[-1], spread[-1] = 0.0, 1.0
    scaled = fit_binary((features - center) / spread, targets, share)
    coefficients = scaled / spread
    coefficients[-1] -= coefficients @ center
    return coefficients


def _smooth_labels(positive: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Compute the labels as Platt smooths them, and weights that sum to 1."""
    counts = np.ones(len(positive)) if weights is None else weights
    total, own = counts.sum(), counts[positive].sum()
    return np.where(positive, (own + 1) / (own + 2), 1 / (total - own + 2)), counts / total
