"""The arguments that LightGBM and XGBoost pass to objectives and metrics, read in one form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from refocal.boosting.derivatives import Derivatives
    from refocal.boosting.focal import AbstractFocal


class Batch(NamedTuple):
    """The rows that a package asks about."""

    labels: np.ndarray
    scores: np.ndarray
    sample_weight: np.ndarray | None

    @classmethod
    def read(cls, first: Any, second: Any, sample_weight: Any) -> Batch:
        """Read the arguments of a callback, which come in two orders.

        Args:
            first: Raw scores from `train`, labels from an estimator of the scikit-learn interface.
            second: The data set from `train`, which has labels and weights; raw scores from an estimator.
            sample_weight: Weights from an estimator, if there are any.
        """
        if hasattr(second, "get_label"):
            weight = second.get_weight()
            # LightGBM has None without weights, XGBoost an empty array
            return cls(second.get_label(), first, None if weight is None or not len(weight) else weight)
        return cls(first, second, sample_weight)

    def differentiate(self, focal: AbstractFocal) -> Derivatives:
        """Compute the derivatives of a focal loss."""
        return focal.differentiate(self.labels, self.scores, sample_weight=self.sample_weight)

    def loss(self, focal: AbstractFocal) -> float:
        """Compute the mean focal loss."""
        return focal.loss(self.labels, self.scores, sample_weight=self.sample_weight)
