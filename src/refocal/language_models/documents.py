"""Sums over the documents of a text, and confidence intervals with the document as the sample.

The tokens of a document depend on each other, so many tokens of few documents say less than as many independent
tokens. Documents are taken as independent. A mean over tokens is then the ratio of two sums over documents,

    r = sum_d y_d / sum_d n_d,    with variance about  D / (D - 1) sum_d (y_d - r n_d)^2 / (sum_d n_d)^2,

where D documents have n_d tokens each. `benchmarks/results/token_intervals.md` has the coverage of the interval that
Student's distribution with D - 1 degrees of freedom makes of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from refocal.metrics import Interval


class Moments(NamedTuple):
    """The number of documents, the sum (k,) of their vectors, and the sum (k, k) of the products of their entries."""

    documents: int
    total: np.ndarray
    products: np.ndarray

    def compute_interval(self, weights: np.ndarray, *, level: float) -> Interval:
        """Compute the mean over tokens of the entries of the vectors times `weights` (k,), with its limits.

        The first entry of a vector is its number of tokens. The limits are NaN if there is one document.
        """
        value = float(weights @ self.total / self.total[0])
        if self.documents < 2:
            return Interval(value, float("nan"), float("nan"))
        residual = weights.copy()
        residual[0] -= value
        squares = max(0.0, float(residual @ self.products @ residual))
        error = np.sqrt(self.documents / (self.documents - 1) * squares) / self.total[0]
        half = float(scipy.special.stdtrit(self.documents - 1, (1 + level) / 2) * error)
        return Interval(value, value - half, value + half)


class DocumentSums:
    """Vectors (k,) added up by document.

    Documents without a name are complete when they are added, and leave only their moments. Documents with a name may
    be continued, so the vector of each is kept.

    Args:
        size: k. The first entry of a vector is its number of tokens.
    """

    def __init__(self, size: int) -> None:
        self._complete = Moments(0, np.zeros(size), np.zeros((size, size)))
        self._named: dict[int, np.ndarray] = {}

    def add(self, values: np.ndarray, documents: np.ndarray, *, named: bool) -> None:
        """Add the vectors of tokens.

        Args:
            values: Vectors (n, k).
            documents: (n,) the number of the document of each token.
            named: Whether these numbers are names. Otherwise they mean nothing beyond this call.
        """
        numbers, place = np.unique(documents, return_inverse=True)
        sums = np.zeros((len(numbers), values.shape[1]))
        np.add.at(sums, place, values)
        if not named:
            self._complete = _add(self._complete, sums)
            return
        for name, vector in zip(numbers.tolist(), sums, strict=True):
            self._named[name] = self._named[name] + vector if name in self._named else vector

    def merge(self, other: DocumentSums) -> None:
        """Add the sums of another; documents of the same name are one document."""
        count, total, products = other._complete
        mine = self._complete
        self._complete = Moments(mine.documents + count, mine.total + total, mine.products + products)
        for name, vector in other._named.items():
            self._named[name] = self._named[name] + vector if name in self._named else vector

    def compute_moments(self) -> Moments:
        """Compute the moments of all documents."""
        return _add(self._complete, np.array(list(self._named.values()))) if self._named else self._complete


def _add(moments: Moments, sums: np.ndarray) -> Moments:
    """Moments with the vectors (D, k) of further documents."""
    documents, total, products = moments
    return Moments(documents + len(sums), total + sums.sum(axis=0), products + sums.T @ sums)
