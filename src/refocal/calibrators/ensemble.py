"""Ensemble temperature scaling: a mixture of calibrated, original and uniform probabilities."""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike

from refocal._check import Input
from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head
from refocal.calibrators.fit.logistic import fit_mixture
from refocal.calibrators.fit.maximum_likelihood import fit_temperature
from refocal.calibrators.fit.temperature_likelihood import LabeledLogits
from refocal.maps.heads import mixture_head
from refocal.stats.proper_scores import log_scores


@final
class EnsembleTemperatureScaling(Calibrator):
    """Mix temperature-scaled, original and uniform probabilities. Predicted classes do not change.

    Choose it if temperature scaling is not flexible enough, for example because some labels are wrong and no
    prediction should come close to 1.

    The map is w_1 softmax(z / T) + w_2 softmax(z) + w_3 / K for logits z, with weights w >= 0 that sum to 1. T is the
    maximum-likelihood temperature. The weights then maximize the likelihood for this T, which is a convex problem.

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
        self.temperature_ = 1 / fit_temperature(data).beta
        rows = logits.astype(np.float64, copy=False)
        parts = [
            np.exp(-log_scores(mixture_head(rows, part, temperature=self.temperature_, log=False, xp=np), labels))
            for part in np.eye(3)
        ]
        self.weights_ = fit_mixture(np.stack(parts, axis=1), data.share)
        if self.weights_[2] == 1:  # then T is at its bound: nearly uniform, but it keeps the order of the classes
            self.weights_ = np.array([1.0, 0.0, 0.0])

    def _head(self, classes: int) -> Head:  # noqa: ARG002
        return Head(mixture_head, {"weights": self.weights_}, {"temperature": self.temperature_})

    def _count_parameters(self) -> int:
        return 3
