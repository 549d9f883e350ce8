"""Confidence limits for sums over pixels: images are the sample, and the pixels of an image depend on each other.

All sums are over the pixels of all images, so an image counts by its number of pixels. The noise is what differs
between images; nothing is assumed about the pixels within one.
"""

from __future__ import annotations

import math

import numpy as np

from refocal.metrics.measure_record import Interval
from refocal.metrics.norm_intervals import drop_repeated, find_possible_gaps
from refocal.stats.binning import Bins
from refocal.stats.inverted_tests import Direction, Evidence, limits
from refocal.stats.resampling import draw_counts
from refocal.stats.simulated_sums import ColumnSums

_ROUNDING = 1e-6  # of a mean residual, if every pixel is as sure as can be, and right


def error_interval(
    residuals: np.ndarray,
    pixels: np.ndarray,
    bins: Bins,
    *,
    classes: int = 1,
    level: float,
    resamples: int,
    rng: np.random.Generator,
) -> Interval:
    """The ECE of all pixels with limits by inverted tests, as `refocal.metrics.interval` has them for samples.

    Noise makes an ECE too large, and a bootstrap of it even larger. So the limits are the true errors for which an
    estimate as large, or as small, as the observed one is not too rare. If s are the true sums per pixel, image i adds
    r_i - n_i s to the noise, with its residuals r_i and its number of pixels n_i. A bootstrap of images weighs these
    contributions by Poisson counts. They are enlarged by sqrt(n / (n - 1)) and by the spread of Student's distribution,
    because the variance estimated from few images is too small and uncertain.

    Args:
        residuals: Sums of confidence - correct of each image and bin, (n, M).
        pixels: The number of pixels of each image, (n,). Images without pixels do not count.
        bins: The sums (M,) over all images.
        classes: The error is the mean over this number of equally long groups of bins.
        level: Confidence level.
        resamples: Number of resamples.
        rng: Generator.
    """
    residuals, pixels = residuals[pixels > 0] / classes, pixels[pixels > 0]
    images, total = len(pixels), float(pixels.sum())
    if images == 0:
        return Interval(math.nan, 0.0, 1.0)
    mean = residuals.sum(axis=0) / total
    value = float(np.abs(mean).sum())
    if images == 1:
        return Interval(value, 0.0, 1.0)
    if np.abs(residuals).sum() <= _ROUNDING * total:
        # Images that are all alike do not tell the noise. If a share s of all images had errors, n images would show
        # none with probability (1 - s)^n. The error is at most s.
        return Interval(value, 0.0, 1 - ((1 - level) / 2) ** (1 / images))
    spread = images / (images - 1)
    deviations = residuals - pixels[:, None] * mean
    weight, claim, hits = (part / (classes * total) for part in bins)
    variance = spread * np.square(deviations).sum(axis=0) / total**2
    columns = ColumnSums(weight, weight / total, claim, hits, variance)
    possible = columns.possible_gaps()
    parts = [
        ((counts - 1) @ deviations, (counts - 1) @ pixels)
        for counts in draw_counts(pixels, resamples=resamples, rng=rng)
    ]
    student = np.sqrt(spread * (images - 1) / rng.chisquare(images - 1, size=(resamples, 1))) / total
    noise, size = (student * np.concatenate(part).reshape(resamples, -1) for part in zip(*parts, strict=True))

    def direction(gap: np.ndarray) -> Direction:
        def sums(t: float) -> np.ndarray:
            return columns.weight * possible.bound(t * gap)

        def simulate(t: float) -> np.ndarray:
            truth = sums(t)
            drawn: np.ndarray = np.abs(truth + (noise + size * (mean - truth))).sum(axis=1)
            return drawn

        return Direction(lambda t: float(np.abs(sums(t)).sum()), simulate)

    groups = None if classes == 1 else np.repeat(np.arange(classes), residuals.shape[1] // classes)
    everywhere = np.ones(len(mean))
    evidence = Evidence(
        value,
        [direction(gap) for gap in drop_repeated(find_possible_gaps(columns, pools=groups))],
        [direction(everywhere), direction(-everywhere)],
        1.0,
    )
    return Interval(value, *limits(evidence, level=level))
