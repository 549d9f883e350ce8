"""How many samples stand behind weighted rows. Rules that count samples read weights as this module says.

Floors such as 1 / (n + 1), penalties that fade with n, and standard errors need a number of samples n. Weights of two
kinds tell it differently:

- Whole numbers count repetitions: a weight of 2 is two equal samples, and n is the sum of the weights.
- All other weights are relative: multiplied by a constant, they mean the same, unless the products are all whole. Then
  n is Kish's effective number, (sum w)^2 / sum w^2: the number of equally weighted samples whose mean is as precise. It
  is N for N equal weights.

Both kinds agree if all weights are 1. A weight of 0 counts as an absent sample in both.

Reference: Kish (1965), Survey Sampling, Sec. 11.7.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_NO_FRACTIONS = 2.0**52  # float64 numbers from here on are whole, whatever they mean


class WeightSums(NamedTuple):
    """Sums over weights that tell the number of samples, also if the weights come in several parts."""

    total: float
    squares: float
    whole: bool  # whether all weights are whole numbers

    @classmethod
    def of(cls, weights: np.ndarray) -> WeightSums:
        """Sum non-negative weights."""
        whole = np.all((weights == np.floor(weights)) & (weights < _NO_FRACTIONS))
        return cls(float(weights.sum()), float(weights @ weights), bool(whole))

    def merge(self, other: WeightSums) -> WeightSums:
        """Add up both sums."""
        return WeightSums(self.total + other.total, self.squares + other.squares, self.whole and other.whole)

    @property
    def samples(self) -> float:
        """The number of samples."""
        return self.total if self.whole else self.total**2 / self.squares


def count_samples(weights: np.ndarray, *, whole: bool | None = None) -> np.ndarray:
    """Scale weights so that their sum is the number of samples. Whole numbers stay as they are.

    Args:
        weights: Non-negative weights (N,).
        whole: Whether they count repetitions; None if they do so exactly if all are whole. Pass it for the weights of
            some rows: it is a property of all rows together.

    Example:
        >>> import numpy as np
        >>> count_samples(np.array([2.0, 1.0, 1.0])).tolist()
        [2.0, 1.0, 1.0]
        >>> count_samples(np.array([0.25, 0.25, 0.25, 0.25])).tolist()
        [1.0, 1.0, 1.0, 1.0]
        >>> count_samples(np.array([2.0, 2.0]), whole=False).tolist()
        [1.0, 1.0]
    """
    sums = WeightSums.of(weights)
    counted = sums.whole if whole is None else whole
    return weights if counted or not sums.total else weights * (sums.total / sums.squares)
