"""Logistic maps of one score: Platt scaling and beta calibration, one class against the rest beyond two classes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head
from refocal.calibrators.fit.logistic import fit_binary
from refocal.maps.heads import logistic_head
from refocal.maps.simplex import log_p_and_q, split_logits


class PlattScaling(Calibrator):
    """sigmoid(a s + b) of the log-odds s = log(p / (1 - p)) of a class, p the softmax of the logits.

    With two classes this is the second class's probability; with more, each class has its a and b, and
    probabilities are scaled to sum 1. Labels are smoothed as Platt proposed, to (n + 1) / (n + 2) and 1 / (m + 2)
    for n samples of the class and m others, which keeps separable data and missing classes finite.

    Args:
        input: "logits" or "probs".
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        weights_: a, (1,) for two classes, else (K,).
        bias_: b, the same shape.

    Reference: Platt, "Probabilistic outputs for support vector machines", 1999.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "weights_": attributes.coefficients_check(attributes.count_functions),
        "bias_": attributes.coefficients_check(attributes.count_functions),
    }

    def __init__(self, *, input: str = "logits", classes: Any = None) -> None:
        self.input = input
        self.classes = classes

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        log_p, log_q = _logs(logits)
        found = []
        for k in _fitted_classes(logits.shape[1]):
            features = np.stack([log_p[:, k] - log_q[:, k], np.ones(len(logits))], axis=1)
            found.append(_fit_class(features, labels == k, weights))
        self.weights_, self.bias_ = np.array(found).T

    def _head(self, classes: int) -> Head:  # noqa: ARG002
        arrays = {"on_p": self.weights_, "on_q": self.weights_, "bias": self.bias_}
        return Head(logistic_head, arrays, {})

    def _count_parameters(self) -> int:
        return self.weights_.size + self.bias_.size


class BetaCalibration(Calibrator):
    """sigmoid(a log p - b log(1 - p) + c) with a, b >= 0, p the softmax probability of a class.

    Two classes, more classes, and smoothed labels are as in `PlattScaling`.

    Args:
        input: "logits" or "probs".
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        weights_: a and b, (2, 1) for two classes, else (2, K).
        bias_: c, (1,) or (K,).

    Reference: Kull, Silva Filho and Flach, "Beta calibration", AISTATS 2017.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "weights_": attributes.coefficients_check(2, attributes.count_functions, least=0.0),
        "bias_": attributes.coefficients_check(attributes.count_functions),
    }

    def __init__(self, *, input: str = "logits", classes: Any = None) -> None:
        self.input = input
        self.classes = classes

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        log_p, log_q = _logs(logits)
        found = []
        for k in _fitted_classes(logits.shape[1]):
            features = np.stack([log_p[:, k], -log_q[:, k], np.ones(len(logits))], axis=1)
            coefficients = _fit_class(features, labels == k, weights)
            kept = [0, 1, 2]
            while len(kept) > 1 and np.min(coefficients[kept[:-1]]) < 0:
                # a map that falls somewhere: without its most negative part, refitted
                del kept[int(np.argmin(coefficients[kept[:-1]]))]
                coefficients = np.zeros(3)
                coefficients[kept] = _fit_class(features[:, kept], labels == k, weights)
            found.append(coefficients)
        self.weights_, self.bias_ = np.array(found).T[:2], np.array(found).T[2]

    def _head(self, classes: int) -> Head:  # noqa: ARG002
        arrays = {"on_p": self.weights_[0], "on_q": self.weights_[1], "bias": self.bias_}
        return Head(logistic_head, arrays, {}, wide=True)  # log(1 - p) may be tiny, and its factor beyond float32

    def _count_parameters(self) -> int:
        return self.weights_.size + self.bias_.size


def _logs(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log p and log(1 - p) of each class in float64."""
    split = split_logits(logits.astype(np.float64, copy=False), temperature=1.0, xp=np)
    log_p, log_q = log_p_and_q(split, xp=np)
    return log_p, log_q


def _fitted_classes(classes: int) -> range:
    return range(1, 2) if classes == 2 else range(classes)


def _fit_class(features: np.ndarray, positive: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Coefficients of one class against the rest, the constant last, from labels smoothed as Platt proposed."""
    counts = np.ones(len(positive)) if weights is None else weights
    total, own = counts.sum(), counts[positive].sum()
    targets = np.where(positive, (own + 1) / (own + 2), 1 / (total - own + 2))
    # centerd and scaled, so that Newton's steps are well conditioned
    share = counts / total
    center, spread = share @ features, np.sqrt(share @ (features - share @ features) ** 2)
    spread[spread <= 1e-12 * np.abs(center)] = 1.0  # of equal numbers, rounding is all there is
    center[-1], spread[-1] = 0.0, 1.0
    scaled = fit_binary((features - center) / spread, targets, share)
    coefficients = scaled / spread
    coefficients[-1] -= coefficients @ center
    return coefficients
