"""What the adapters share: finding a package, and reading the arguments that packages pass to callbacks."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from refocal.boosting.derivatives import Derivatives
    from refocal.boosting.focal import AbstractFocal


def require(package: str) -> Any:
    """Import a package, or raise an error that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        msg = f"{package} is not installed: pip install 'refocal[boosting]'"
        raise ImportError(msg) from error


class Batch(NamedTuple):
    """The rows that a package asks about."""

    labels: np.ndarray
    scores: np.ndarray
    sample_weight: np.ndarray | None

    @classmethod
    def read(cls, first: Any, second: Any, sample_weight: Any) -> Batch:
        """Read the arguments of a callback, which come in two orders.

        `train` passes scores and a data set, which has labels and weights. Scikit-learn's interface passes labels,
        scores and, if there are any, weights.
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
