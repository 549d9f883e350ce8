"""The checked data of a multi-label task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from refocal._check import Input
from refocal.calibrators.multilabel_data import name_columns, read_event_labels, read_event_scores
from refocal.calibrators.training_data import check_sample_weight
from refocal.report.evaluation import name_classes
from refocal.report.measure import TestData


class Events(NamedTuple):
    """Checked data of all classes."""

    scores: np.ndarray  # (N, K)
    labels: np.ndarray  # (N, K)
    weights: np.ndarray | None  # (N,)
    names: tuple[str, ...]
    input: Input

    @classmethod
    def of(cls, scores: Any, labels: Any, weights: Any, *, names: Sequence[str] | None, input: Input | None) -> Events:
        """Check scores (N, K), labels (N, K) and weights (N,) or None, from any container."""
        named = name_columns(names, scores, labels)
        array, kind = read_event_scores(scores, "scores", input=input, names=named)
        answers = read_event_labels(labels, array.shape, named, "labels")
        weight = check_sample_weight(weights, len(array))
        return cls(array, answers, weight, name_classes(named, array.shape[1]), kind)

    def select(self, index: int) -> TestData:
        """The data of one class."""
        name = self.names[index]
        return TestData(self.scores[:, index], self.labels[:, index], self.weights, (f"not {name}", name))

    def count_events(self) -> np.ndarray:
        """Count the positives of each class, or its negatives if these are fewer, among rows with a weight."""
        labels = self.labels if self.weights is None else self.labels[self.weights > 0]
        positives = labels.sum(axis=0, dtype=np.int64)
        return np.minimum(positives, len(labels) - positives)

    def describe_class(self, index: int) -> str:
        """Name a class and its place among the others, for a description of progress."""
        return f"{self.names[index]} (class {index + 1:,} of {len(self.names):,})"
