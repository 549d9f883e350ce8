"""Ensemble temperature scaling: a mixture of calibrated, original and uniform probabilities."""

from __future__ import annotations

import math
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike

from refocal._check import Input
from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head
from refocal.calibrators.fit.logistic import fit_mixture
from refocal.calibrators.fit.maximum_likelihood import fit_temperature, guess_beta
from refocal.calibrators.fit.temperature_likelihood import LabeledLogits, label_likelihoods
from refocal.maps.heads import mixture_head

_ROWS_FOR_A_GUESS = 2048
_GRID_STEP = 0.23  # in log beta
_ROUNDING = 1e-12  # of an NLL


@final
class EnsembleTemperatureScaling(Calibrator):
    """Mix temperature-scaled, original and uniform probabilities. Predicted classes do not change.

    Choose it if temperature scaling is not flexible enough, for example because some labels are wrong and no
    prediction should come close to 1.

    The map is w_1 softmax(z / T) + w_2 softmax(z) + w_3 / K for logits z, with weights w >= 0 that sum to 1. T and the
    weights maximize the likelihood together: a search in T, with the best weights for each T, a convex problem.

    Args:
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        temperature_: T.
        weights_: w, (3,).

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = 5 * rng.standard_normal((3000, 4))
        >>> labels = np.where(rng.random(3000) < 0.2, rng.integers(0, 4, 3000), logits.argmax(axis=1))
        >>> calibrator = EnsembleTemperatureScaling().fit(logits, labels)  # a fifth of the labels is random
        >>> bool(calibrator.predict_proba([[90.0, 0.0, 0.0, 0.0]]).max() < 0.9)
        True

    Reference: Zhang, Kailkhura and Han, "Mix-n-Match", ICML 2020.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "temperature_": attributes.check_positive,
        "weights_": attributes.check_mixture,
    }

    def __init__(self, *, input: Input | None = None, classes: ArrayLike | None = None) -> None:
        self.input = input
        self.classes = classes

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        data = LabeledLogits.prepare(logits, labels, weights)
        first = fit_temperature(data)
        beta = first.beta
        if first.evaluations:  # otherwise all logits of each row are equal
            beta = _search(data, beta)
        self.temperature_, self.weights_ = 1 / beta, _fit_weights(data, beta)[0]
        if self.weights_[2] == 1:  # then T does not matter: nearly uniform, but it keeps the order of the classes
            self.temperature_, self.weights_ = 1 / first.beta, np.array([1.0, 0.0, 0.0])

    def _head(self, classes: int) -> Head:  # noqa: ARG002
        return Head(mixture_head, {"weights": self.weights_}, {"temperature": self.temperature_})

    def _count_parameters(self) -> int:
        return 3


def _search(data: LabeledLogits, fitted: float) -> float:
    """Find the inverse temperature whose best mixture has the lowest NLL, from coarse to fine in its logarithm.

    The NLL may have several minima. The grid reaches from the fit without a uniform part, or from a guess by medians,
    to far beyond both. A few labels that seem impossible make the T of that fit large, so most of the grid is at lower
    T. One row that is far off makes it so large that only the guess is near the best T.
    """
    from scipy.optimize import minimize_scalar

    some = data.sample(_ROWS_FOR_A_GUESS) or data
    ends = sorted([math.log(fitted), math.log(guess_beta(data.scales))])
    # Multiples of one step: the same data, given once or as copies with weights, have the same grid where it matters.
    grid = _GRID_STEP * np.arange(math.floor((ends[0] - 0.7) / _GRID_STEP), math.ceil((ends[1] + 3.5) / _GRID_STEP) + 1)
    losses = np.array([_fit_weights(some, math.exp(point))[1] for point in grid])
    best = int(np.argmax(losses <= losses.min() + _ROUNDING))  # the largest T of those that are as likely
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]

    def nll(log_beta: float) -> float:
        return _fit_weights(data, math.exp(log_beta))[1]

    middle = float(grid[best])
    if high > middle and abs(nll(high) - nll(middle)) <= _ROUNDING:
        return math.exp(middle)  # beyond it, predictions are certain: rounding would choose among equals
    return math.exp(minimize_scalar(nll, bounds=(low, high), method="bounded", options={"xatol": 1e-4}).x)


def _fit_weights(data: LabeledLogits, beta: float) -> tuple[np.ndarray, float]:
    """Find the most likely weights for an inverse temperature, and their NLL."""
    uniform = np.full(len(data.labels), 1 / data.classes)
    likelihoods = np.stack([label_likelihoods(data, beta), label_likelihoods(data, 1.0), uniform], axis=1)
    weights = fit_mixture(likelihoods, data.share)
    return weights, float(data.share @ -np.log(likelihoods @ weights))
