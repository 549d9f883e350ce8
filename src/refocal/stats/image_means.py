"""Confidence limits for means over the parts of images, such as pixels or boxes.

Images are the sample; nothing is assumed about the parts of an image, which depend on each other. An image counts by
its number of parts.
"""

from __future__ import annotations

import math

import numpy as np
import scipy


def bound_mean(
    sums: np.ndarray, sizes: np.ndarray, *, level: float, bounds: tuple[float, float], is_rate: bool = False
) -> tuple[float, float, float]:
    """The mean over all parts with Student's limits, from the sum and the number of parts of each image.

    Args:
        sums: (n,).
        sizes: (n,). Images without parts do not count.
        level: Confidence level.
        bounds: The smallest and the largest possible mean.
        is_rate: Whether the values are 0 or 1. Then the limits are Wilson's, for the number of independent parts whose
            mean has the same standard error, but not more than there are; for one part per image if all are equal.

    Returns:
        The mean, its lower limit and its upper limit.
    """
    sums, sizes = sums[sizes > 0], sizes[sizes > 0]
    images, total = len(sizes), float(sizes.sum())
    mean = float(sums.sum() / total) if images else math.nan
    if images < 2 or not math.isfinite(mean):  # the difference between images is unknown, or the mean is infinite
        return (mean, mean, mean) if math.isinf(mean) else (mean, *bounds)
    quantile = float(scipy.special.stdtrit(images - 1, (1 + level) / 2))
    deviations = sums - mean * sizes
    error = math.sqrt(images / (images - 1) * float(deviations @ deviations)) / total
    center, half = mean, quantile * error
    if is_rate:
        count = images if mean in (0, 1) else mean * (1 - mean) / max(error**2, mean * (1 - mean) / total)
        shrink = 1 + quantile**2 / count
        center = (mean + quantile**2 / (2 * count)) / shrink
        half = quantile / shrink * math.sqrt(mean * (1 - mean) / count + quantile**2 / (4 * count**2))
    return mean, max(bounds[0], center - half), min(bounds[1], center + half)
