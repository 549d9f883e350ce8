"""Intervals and tests for means of per-sample scores, by the central limit theorem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from refocal.metrics.inputs import ArrayLike
from refocal.metrics.means import SampleScores, kl_scores, mean
from refocal.metrics.measure_record import Interval, PairedTest, Request


@dataclass(frozen=True)
class MeanMethod:
    """The central limit theorem for means, and Wilson's interval for rates.

    Attributes:
        score: From a request and the scores of a model to one score per sample, and the weights.
        is_rate: Whether the scores are 0 or 1.
    """

    score: Callable[[Request, ArrayLike], SampleScores]
    is_rate: bool = False

    def interval(self, request: Request, scores: ArrayLike, *, level: float) -> Interval:
        """The mean with its confidence limits."""
        return mean_interval(*self.score(request, scores), level=level, is_rate=self.is_rate)

    def paired_test(self, request: Request, first: ArrayLike, second: ArrayLike) -> PairedTest:
        """Test the mean of the differences between the contributions of each sample to both means."""
        return _test_means(self.score(request, first), self.score(request, second))


def sample_scores(function: Callable[..., SampleScores], **fixed: Any) -> Callable[[Request, ArrayLike], SampleScores]:
    """A `score` that reads the sample and calls `function` with it and the settings of the measure."""

    def score(request: Request, scores: ArrayLike) -> SampleScores:
        return function(request.read(scores), **request.settings, **fixed)

    return score


def kl_sample_scores(request: Request, scores: ArrayLike) -> SampleScores:
    """The `score` of `kl_to_posterior`, which has a posterior in place of labels."""
    return kl_scores(scores, request.labels, request.common["sample_weight"], input=request.common["input"])


def mean_interval(values: np.ndarray, weights: np.ndarray | None, *, level: float, is_rate: bool = False) -> Interval:
    """The mean of one score per sample (N,) with its confidence limits; the scores of a rate are 0 or 1."""
    center = mean(values, weights)
    limits = _rate_limits if is_rate else _mean_limits
    return Interval(center, *limits(center, values, weights, level=level))


def _mean_limits(center: float, values: np.ndarray, weights: np.ndarray | None, *, level: float) -> tuple[float, float]:
    z = float(scipy.special.ndtri((1 + level) / 2))
    half = z * _standard_error(_contributions(values, center, weights)) if np.isfinite(center) else 0.0
    return center - half, center + half


def _rate_limits(center: float, values: np.ndarray, weights: np.ndarray | None, *, level: float) -> tuple[float, float]:
    """Wilson's interval with the effective number of samples. Unlike the normal one, it has a length at rate 0."""
    z = float(scipy.special.ndtri((1 + level) / 2))
    if np.isnan(center):  # the accuracy of no samples
        return 0.0, 1.0
    count = len(values) if weights is None else float(weights.sum() ** 2 / np.sum(weights**2))
    middle = (center + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(center * (1 - center) / count + z**2 / (4 * count**2))
    return float(max(0.0, middle - half)), float(min(1.0, middle + half))


def _test_means(first: SampleScores, second: SampleScores) -> PairedTest:
    (one, one_weights), (two, two_weights) = first, second
    a, b = mean(one, one_weights), mean(two, two_weights)
    # If both scores of a sample are infinite, it says nothing about the difference.
    tied = np.isinf(one) & (one == two)
    one, two = np.where(tied, 0.0, one), np.where(tied, 0.0, two)
    centers = mean(one, one_weights), mean(two, two_weights)
    if not all(map(np.isfinite, centers)):  # one model gave probability 0 to a true class and the other did not
        return PairedTest(a, b, float("nan") if np.isnan(centers).any() else float(centers[0] == centers[1]))
    difference = _contributions(one, centers[0], one_weights) - _contributions(two, centers[1], two_weights)
    center, spread = centers[0] - centers[1], _standard_error(difference)
    return PairedTest(a, b, 2 * float(scipy.special.ndtr(-abs(center) / spread)) if spread > 0 else float(center == 0))


def _contributions(values: np.ndarray, center: float, weights: np.ndarray | None) -> np.ndarray:
    """Values whose plain mean is the weighted mean `center`, and whose deviations are the influence of each sample."""
    if weights is None:
        return values
    used = weights > 0
    moved = np.full(len(values), center)
    moved[used] += weights[used] / weights.mean() * (values[used] - center)
    return moved


def _standard_error(values: np.ndarray) -> float:
    if len(values) < 2:
        msg = "an interval or test needs two samples or more, got 1"
        raise ValueError(msg)
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))
