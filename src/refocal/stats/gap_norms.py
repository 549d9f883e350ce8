"""Calibration errors from sums over bins."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import scipy

from refocal.stats.binning import Bins, PairSums

GapNorm = Literal["l1", "l2", "max"]
NORMS: tuple[GapNorm, ...] = get_args(GapNorm)


def calibration_error(gaps: np.ndarray, samples: np.ndarray, *, norm: GapNorm) -> np.ndarray:
    """The norm of the gaps of bins, from sums over bins on the last axis.

    With gap g_b = (sum of confidence - correct in bin b) / n_b and n samples, "l1" is sum_b (n_b / n) |g_b|, "l2" is
    sqrt(sum_b (n_b / n) g_b^2), and "max" is the largest |g_b|.
    """
    size = np.abs(gaps)
    if norm == "l1":
        return size.sum(axis=-1) / samples.sum(axis=-1)
    mean = np.divide(size, samples, out=np.zeros_like(size), where=samples > 0)
    if norm == "max":
        return mean.max(axis=-1)
    return np.sqrt((size * mean).sum(axis=-1) / samples.sum(axis=-1))


def debiased_squares(bins: Bins, pairs: PairSums) -> np.ndarray:
    """Unbiased estimates of the squared gap of each bin: the mean of r_i r_j over pairs of different samples.

    The estimate is 0 in a bin of one sample, which has no pairs. If the confidence is constant in a bin, this is the
    estimator of Kumar, Liang, Ma (NeurIPS 2019), section 4: g^2 - a (1 - a) / (n - 1), with accuracy a.
    """
    residual = bins.confidence - bins.correct
    pair_weight = bins.samples**2 - pairs.weight
    # With one sample the difference is 0 up to rounding error.
    has_pairs = pair_weight > 1e-9 * bins.samples**2
    return np.divide(residual**2 - pairs.residual, pair_weight, out=np.zeros_like(residual), where=has_pairs)


def debiased_error(bins: Bins, pairs: PairSums, *, norm: GapNorm) -> float:
    """The calibration error minus the plug-in estimate of its bias.

    "l2": the square root of the mean of `debiased_squares`, or 0 if that mean is negative.
    "l1": sum_b (n_b / n) (2 |g_b| - E|G_b|) with G_b ~ N(g_b, v_b), where v_b = g_b^2 - `debiased_squares` is the
    estimated variance of g_b. It can be negative.
    """
    total = bins.samples.sum()
    squares = debiased_squares(bins, pairs)
    if norm == "l2":
        return float(np.sqrt(max(0.0, float(np.sum(bins.samples * squares) / total))))
    gap = np.divide(
        np.abs(bins.confidence - bins.correct), bins.samples, out=np.zeros_like(bins.samples), where=bins.samples > 0
    )
    spread = np.sqrt(np.maximum(0.0, gap**2 - squares))
    ratio = np.divide(gap, spread, out=np.full_like(gap, np.inf), where=spread > 0)
    folded_mean = spread * np.sqrt(2 / np.pi) * np.exp(-(ratio**2) / 2) + gap * (1 - 2 * scipy.special.ndtr(-ratio))
    return float(np.sum(bins.samples * (2 * gap - folded_mean)) / total)
