"""Measures of predictions, also for a network that knows more classes than occur among its samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from refocal import metrics
from refocal_lab.zoo.cards import Entry
from refocal_lab.zoo.measures import FUNCTIONS, LogitPart, read_all_classes, read_parts, scored_classes

_BINS = 15
_CONFIDENT = 0.99


@dataclass(frozen=True, eq=False)
class Scoring:
    """How predictions are measured.

    Mukhoti et al. (2020) measure a Tree LSTM with the classes negative, neutral and positive on sentences that are not
    neutral. The prediction is the likelier of the two remaining classes. Its confidence is its probability under the
    softmax over all three classes, so confidences below 1/2, even near 0, are possible.

    Attributes:
        scored: The classes among which predictions are chosen; None for all.
    """

    scored: np.ndarray | None = None

    def value(self, measure: str, probs: np.ndarray, labels: np.ndarray) -> float:
        """Compute a measure.

        Args:
            measure: One of `refocal_lab.zoo.measures.FUNCTIONS`.
            probs: Probabilities (N, K).
            labels: Class indices (N,).

        Example:
            >>> probs, labels = np.array([[0.1, 0.7, 0.2], [0.6, 0.4, 0.0]]), np.array([2, 0])
            >>> two = Scoring(scored=np.array([0, 2]))
            >>> two.value("error", probs, labels), round(two.value("ece_15", probs, labels), 3)
            (0.0, 0.6)
        """
        if self.scored is None or measure == "nll":
            return FUNCTIONS[measure](probs, labels)
        if measure == "classwise_ece_15":
            return float(np.mean([_ece_of_events(probs[:, k], labels == k) for k in self.scored]))
        confidence, correct = self.events(probs, labels)
        if measure == "error":
            return float(1 - correct.mean())
        is_sure = confidence >= _CONFIDENT
        if measure == "confident_99":
            return float(is_sure.mean())
        if measure == "accuracy_99":
            return float(correct[is_sure].mean()) if is_sure.any() else float("nan")
        return FUNCTIONS[measure](confidence, correct, task="binary")

    def events(self, probs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute confidence and correctness (N,) of the likeliest scored class."""
        assert self.scored is not None
        some = probs[:, self.scored]
        return some.max(axis=1), self.scored[some.argmax(axis=1)] == labels


_ece_of_events = partial(metrics.ece, bins=_BINS, task="binary")


def read_as_published(entry: Entry) -> tuple[LogitPart, LogitPart, Scoring]:
    """Read both parts of an entry with the scoring of Mukhoti et al. (2020), which uses the logits of all classes."""
    if entry.all_classes is None:
        return (*read_parts(entry), Scoring())
    val, test = read_all_classes(entry)
    return val, test, Scoring(scored_classes(test))
