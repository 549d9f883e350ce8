"""Smooth calibration error: kernel smoothing instead of bins, with a bandwidth chosen from the data."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy

from refocal._check import Input
from refocal.metrics.inputs import ArrayLike, Events, Task, read

# The discretization of relplot 1.0.3, the authors' package: ten halvings of the bandwidth, none below 0.001; sums on a
# grid with at least ten steps per bandwidth, evaluated at five or more points per bandwidth.
_REFINEMENTS = 10
_NARROWEST = 0.001


class SmoothError(NamedTuple):
    """Smooth ECE and its bandwidth, which solves value = bandwidth."""

    value: float
    bandwidth: float


def smooth_ece(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Smooth ECE of the top label: the mean absolute residual after smoothing.

    There are no bins to choose, and the value is continuous in the predictions.

    With residuals r_i = c_i - [correct], and K_s the Gaussian kernel of width s reflected at 0 and 1,

        smECE_s = integral of |sum_i r_i K_s(t, c_i)| dt / integral of sum_i K_s(t, c_i) dt,

    evaluated at the s that solves smECE_s = s.

    Args:
        scores: (N, K), or (N, K, ...) with classes on axis 1; one score for P(y = 1) for "binary"; (N, L) for
            "multilabel".
        labels: (N,) or (N, ...) class indices; 0 or 1 for the other tasks, with the shape of `scores`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight per label.
        task: As for `ece`.
        ignore_index: Labels with this value do not count.

    Returns:
        The value of relplot's smECE for the same confidences, to 1e-6.

    Example:
        >>> import numpy as np
        >>> round(smooth_ece(np.array([0.3, 0.6, 0.8]), np.array([0, 1, 1]), task="binary"), 4)
        0.1969

    Reference: Blasiok, Nakkiran: Smooth ECE: principled reliability diagrams via kernel smoothing. ICLR 2024.
    """
    return find_smooth_error(
        read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index).all_events()
    ).value


def find_smooth_error(events: Events) -> SmoothError:
    """Find the bandwidth by bisection."""
    wide, narrow = 1.0, 0.0
    value = bandwidth_error(events, wide)
    if value <= wide:
        for _ in range(_REFINEMENTS):
            middle = (wide + narrow) / 2
            at_middle = np.inf if middle < _NARROWEST else bandwidth_error(events, middle)
            if middle < at_middle:
                narrow = middle
            else:
                wide, value = middle, at_middle
    return SmoothError(value, wide)


def round_up(bandwidth: np.ndarray) -> np.ndarray:
    """The bandwidths that `find_smooth_error` tries last, at or just above the given ones."""
    steps = 2**_REFINEMENTS
    least = math.ceil(_NARROWEST * steps)
    found: np.ndarray = np.clip(np.ceil(bandwidth * steps * (1 - 1e-9)), least, steps) / steps
    return found


def bandwidth_error(events: Events, bandwidth: float) -> float:
    """Smooth ECE at a given bandwidth."""
    confidence, scale = events.confidence, events.scale
    points = grid_points(bandwidth)
    residual = sum_on_grid(confidence, scale * (confidence - events.correct.astype(np.float64)), points=points)
    mass = sum_on_grid(confidence, scale, points=points)
    return float(np.sum(np.abs(smooth(residual, bandwidth=bandwidth))) / np.sum(smooth(mass, bandwidth=bandwidth)))


def grid_points(bandwidth: float) -> int:
    """The number of grid points for a bandwidth."""
    return max(2000, round(20 / bandwidth)) // 2 + 1


def neighbors(confidence: np.ndarray, *, points: int) -> tuple[np.ndarray, np.ndarray]:
    """The grid point at or below each confidence, and the share that goes to the next one."""
    position = confidence.astype(np.float64) * (points - 1)
    lower = np.minimum(position.astype(np.intp), points - 2)
    return lower, position - lower


def sum_on_grid(confidence: np.ndarray, values: np.ndarray, *, points: int) -> np.ndarray:
    """Sums on a grid over [0, 1]; each value is split between its two neighbors."""
    lower, share = neighbors(confidence, points=points)
    grid = np.bincount(lower, weights=(1 - share) * values, minlength=points)
    grid += np.bincount(lower + 1, weights=share * values, minlength=points)
    return grid


def smooth(grid: np.ndarray, *, bandwidth: float) -> np.ndarray:
    """Convolve the last axis with the Gaussian, cut off at +-1/2, and resample the result.

    The grid is reflected at both ends.
    """
    points = grid.shape[-1]
    offset = np.arange(points) / (points - 1) - 0.5
    kernel = np.exp(-(offset**2) / (2 * bandwidth**2)) / (np.sqrt(2 * np.pi) * bandwidth)
    # A reflected grid has this period, so the circular convolution is exact.
    period = 2 * (points - 1)
    reflected = np.concatenate([grid, grid[..., -2:0:-1]], axis=-1)
    product = scipy.fft.irfft(scipy.fft.rfft(reflected, axis=-1) * scipy.fft.rfft(kernel, period), period, axis=-1)
    lower, share = neighbors(np.linspace(0, 1, max(200, round(10 / bandwidth))), points=points)
    place = lower + points // 2  # the center of the kernel is its entry (points - 1) / 2
    values, following = (np.take(product, at % period, axis=-1) for at in (place, place + 1))
    return values * (1 - share) + following * share
