"""How scores rank two classes."""

from __future__ import annotations

import numpy as np


def measure_ranks(scores: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """The AUC of scores (N,) for the rows that are `positive`, and the p-value of an AUC below one half.

    The p-value is one-sided, of the Mann-Whitney test with its normal approximation. Both kinds of rows must occur.
    """
    from scipy.stats import mannwhitneyu

    found = mannwhitneyu(scores[positive], scores[~positive], alternative="less", method="asymptotic")
    pairs = int(positive.sum()) * int((~positive).sum())
    return float(found.statistic / pairs), float(found.pvalue)
