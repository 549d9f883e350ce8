"""Smooth calibration error: kernel smoothing in place of bins, with a bandwidth that the data choose."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy

from refocal.metrics.inputs import Events, Input, read

Array = Any

# The discretization of relplot 1.0.3, the authors' package: ten halvings of the bandwidth, none below .001; sums on a
# grid of which ten steps or more make a bandwidth, read off at five points or more a bandwidth.
_REFINEMENTS = 10
_NARROWEST = 0.001


class Smoothed(NamedTuple):
    """Smooth ECE, and the bandwidth that it equals."""

    value: float
    bandwidth: float


def smooth_ece(
    scores: Array,
    labels: Array,
    *,
    input: Input = "probs",
    sample_weight: Array = None,
    task: str = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Smooth ECE of the top label: the mean absolute residual after smoothing, without bins to choose.

    With residuals r_i = c_i - [correct], and K_s the Gaussian kernel of width s reflected at 0 and 1,

        smECE_s = integral of |sum_i r_i K_s(t, c_i)| dt / integral of sum_i K_s(t, c_i) dt,

    evaluated at the s that solves smECE_s = s. It is continuous in the predictions, unlike `ece`.

    Args:
        scores: (N, K), (N, K, ...) with classes on axis 1; P(y = 1) for "binary"; (N, L) for "multilabel".
        labels: (N,) or (N, ...) class indices; 0 or 1 for the other tasks, then with the shape of `scores`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight for each label.
        task: As for `ece`.
        ignore_index: Labels with this value do not count.

    Returns:
        The value that relplot's smECE has for the same confidences, to 1e-6.

    Example:
        >>> import numpy as np
        >>> round(smooth_ece(np.array([0.3, 0.6, 0.8]), np.array([0, 1, 1]), task="binary"), 4)
        0.1969

    Reference: Blasiok, Nakkiran: Smooth ECE: principled reliability diagrams via kernel smoothing. ICLR 2024.
    """
    return smoothed(
        read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index).all_events()
    ).value


def smoothed(events: Events) -> Smoothed:
    """Find the bandwidth by bisection."""
    wide, narrow = 1.0, 0.0
    value = error_at(events, wide)
    if value <= wide:
        for _ in range(_REFINEMENTS):
            middle = (wide + narrow) / 2
            found = np.inf if middle < _NARROWEST else error_at(events, middle)
            if middle < found:
                narrow = middle
            else:
                wide, value = middle, found
    return Smoothed(value, wide)


def error_at(events: Events, bandwidth: float) -> float:
    """Smooth ECE at a given bandwidth."""
    confidence, correct, weights = events
    scale = np.ones(len(confidence)) if weights is None else weights
    points = grid_points(bandwidth)
    residual = on_grid(confidence, scale * (confidence - correct.astype(np.float64)), points=points)
    mass = on_grid(confidence, scale, points=points)
    return float(np.sum(np.abs(smooth(residual, bandwidth=bandwidth))) / np.sum(smooth(mass, bandwidth=bandwidth)))


def grid_points(bandwidth: float) -> int:
    """How many points the grid for a bandwidth has."""
    return max(2000, round(20 / bandwidth)) // 2 + 1


def neighbors(confidence: np.ndarray, *, points: int) -> tuple[np.ndarray, np.ndarray]:
    """The grid point at or below each confidence, and the share of the next one."""
    position = confidence.astype(np.float64) * (points - 1)
    lower = np.minimum(position.astype(np.intp), points - 2)
    return lower, position - lower


def on_grid(confidence: np.ndarray, values: np.ndarray, *, points: int) -> np.ndarray:
    """Sums over a grid on [0, 1], each value split between its two neighbors."""
    lower, share = neighbors(confidence, points=points)
    grid = np.bincount(lower, weights=(1 - share) * values, minlength=points)
    grid += np.bincount(lower + 1, weights=share * values, minlength=points)
    return grid


def smooth(grid: np.ndarray, *, bandwidth: float) -> np.ndarray:
    """Convolve the last axis with the Gaussian, cut at +-1/2, the grid reflected at both ends; read off the result."""
    points = grid.shape[-1]
    offset = np.arange(points) / (points - 1) - 0.5
    kernel = np.exp(-(offset**2) / (2 * bandwidth**2)) / (np.sqrt(2 * np.pi) * bandwidth)
    # a reflected grid has this period, so a circular convolution is exact
    period = 2 * (points - 1)
    reflected = np.concatenate([grid, grid[..., -2:0:-1]], axis=-1)
    product = scipy.fft.irfft(scipy.fft.rfft(reflected, axis=-1) * scipy.fft.rfft(kernel, period), period, axis=-1)
    lower, share = neighbors(np.linspace(0, 1, max(200, round(10 / bandwidth))), points=points)
    place = lower + points // 2  # the kernel's center is its entry (m - 1) / 2
    values, following = (np.take(product, at % period, axis=-1) for at in (place, place + 1))
    return values * (1 - share) + following * share
