"""Confidence intervals of measures of detections, by resampling images.

The detections of one image depend on each other: an object can match one box only, and hard images have many wrong
boxes.
"""

from __future__ import annotations

import numpy as np

from refocal import _check
from refocal.detection.matching import Matches
from refocal.detection.measures import BinnedDetections
from refocal.metrics.defaults import LEVEL, RESAMPLES
from refocal.metrics.measure_record import Interval
from refocal.metrics.norm_intervals import drop_repeated, find_possible_gaps
from refocal.stats.image_means import bound_mean
from refocal.stats.inverted_tests import Direction, Evidence, limits
from refocal.stats.resampling import draw_counts, residual_matrix
from refocal.stats.simulated_sums import ColumnSums

_MOST_SUMS = 1 << 24  # simulated sums that are held at a time
_LEAST_RESAMPLES = 200


def error_interval(
    binned: BinnedDetections, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """D-ECE or LaECE with its confidence limits, by inverting simulated tests.

    Noise biases both measures upward, as it does ECE; `refocal.metrics.interval` describes the remedy. If the true gap
    of bin b is g_b, a sample shows the norm of g_b n_b + e_b, with n_b detections in the bin and noise e_b. Both are
    drawn by resampling images (Poisson bootstrap): e_b is the sum of the residuals, each minus the mean of its bin.
    Outcomes that did not occur are not drawn: 12 right boxes of 12 would show no noise. So the variance of e_b is at
    least that of independent detections whose targets have the mean that g_b says. The noise is enlarged by
    sqrt(n / (n - 1)) for n images and by the spread of Student's distribution, because the variance estimated from few
    images is too small and uncertain.

    Args:
        binned: The detections, from `bin_detections`.
        level: Confidence level.
        resamples: Number of resamples; fewer, but 200 at least, if there are very many bins.
        seed: Seed of the resamples.
    """
    _check.share(level, "level")
    value, images = binned.value(), int(binned.image.max()) + 1
    if images < 2:
        return Interval(value, 0.0, 1.0)
    size = len(binned.group)
    resamples = max(_LEAST_RESAMPLES, min(resamples, _MOST_SUMS // size))
    rng = np.random.default_rng(seed)
    residual = binned.score - binned.target
    count = binned.sum_columns(np.ones(len(residual)))
    centered = residual - (binned.sum_columns(residual) / count)[binned.column]
    place = (binned.image, binned.column)
    own = residual_matrix(*place, centered, (images, size))
    mass = residual_matrix(*place, np.ones(len(residual)), (images, size))
    noise, masses = [], []
    for counts in draw_counts(np.ones(images), resamples=resamples, rng=rng):
        noise.append((own.T @ counts.T).T)
        masses.append((mass.T @ counts.T).T)
    student = np.sqrt(images / rng.chisquare(images - 1, size=(resamples, 1)))  # of both factors
    sums, drawn = student * np.concatenate(noise), np.concatenate(masses)
    variance = images / (images - 1) * np.asarray(own.multiply(own).sum(axis=0)).ravel()
    noise_floor = _NoiseFloor(binned, count)
    more = rng.standard_normal(sums.shape)
    claim = binned.sum_columns(binned.score)
    least = np.maximum(variance, noise_floor.variance(np.zeros(size)))
    columns = ColumnSums(count, count, claim, binned.sum_columns(binned.target), least)
    possible = columns.possible_gaps()

    def direction(gap: np.ndarray) -> Direction:
        def truth(t: float) -> float:
            return float(binned.error(count * possible.bound(t * gap), count))

        def simulate(t: float) -> np.ndarray:
            true = possible.bound(t * gap)
            missing = np.sqrt(np.maximum(0.0, noise_floor.variance(true) - variance))
            return binned.error(true * drawn + sums + missing * more, drawn)

        return Direction(truth, simulate)

    everywhere = np.ones(size)
    pools = binned.group if binned.group[-1] > 0 else None
    evidence = Evidence(
        value,
        [direction(gap) for gap in drop_repeated(find_possible_gaps(columns, pools=pools))],
        [direction(everywhere), direction(-everywhere)],
        1.0,
    )
    return Interval(value, *limits(evidence, level=level))


def mean_interval(
    values: np.ndarray, matches: Matches, *, most: float, is_rate: bool = False, level: float = LEVEL
) -> Interval:
    """A mean over counted detections, (n,), from 0 to `most`, with its limits; see `bound_mean`."""
    image = matches.number_images()[matches.counted]
    sums, sizes = np.bincount(image, weights=values), np.bincount(image)
    return Interval(*bound_mean(sums, sizes, level=level, bounds=(0.0, most), is_rate=is_rate))


class _NoiseFloor:
    """The variance of the summed targets of independent detections, by the true gaps.

    A target from 0 to 1 with mean m has the variance m (1 - m) if it is 0 or 1, and a share of it otherwise. The share
    is the observed one: 1 for right and wrong boxes.
    """

    def __init__(self, binned: BinnedDetections, count: np.ndarray) -> None:
        self._count, self._claim = count, binned.sum_columns(binned.score) / count
        mean = binned.sum_columns(binned.target) / count
        largest = float(count @ (mean * (1 - mean)))
        spread = float(np.sum((binned.target - mean[binned.column]) ** 2))
        self._share = spread / largest if largest > 0 else 1.0

    def variance(self, gap: np.ndarray) -> np.ndarray:
        """The variance in each column, (M,), if the claims exceed the targets by `gap`, (M,)."""
        mean = np.clip(self._claim - gap, 0.0, 1.0)
        return self._share * self._count * mean * (1 - mean)
