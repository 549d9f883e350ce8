"""Smooth calibration error against relplot and a kernel sum."""

from __future__ import annotations

import numpy as np
import pytest

from arrays import draw_calibrated
from refocal import metrics
from refocal.metrics.smooth_error import smooth, sum_on_grid

# relplot 1.0.3's smECE of the confidences and labels of `draw_events`
RELPLOT = [
    (500, 1.0, 0, 0.033772439),
    (500, 2.0, 1, 0.177315987),
    (500, 0.5, 2, 0.155537700),
    (5000, 1.0, 3, 0.015689030),
    (5000, 1.2, 4, 0.053360043),
    (50000, 1.0, 5, 0.007016132),
    (200, 3.0, 6, 0.252732349),
]


def draw_events(count, power, seed):
    rng = np.random.default_rng(seed)
    p = rng.random(count)
    return p, (rng.random(count) < p**power).astype(int)


@pytest.mark.parametrize(("count", "power", "seed", "expected"), RELPLOT)
def test_values_of_relplot(count, power, seed, expected):
    p, y = draw_events(count, power, seed)
    assert metrics.smooth_ece(p, y, task="binary") == pytest.approx(expected, abs=1e-6)


def test_smoothing_against_the_kernel_sum():
    """The reflected Gaussian, summed over the images of each place; the cutoff at 1/2 does not matter here."""
    width = 0.05
    places, values = np.array([0.03, 0.4, 0.99]), np.array([1.0, -2.0, 0.5])
    found = smooth(sum_on_grid(places, values, points=1001), bandwidth=width)
    at = np.linspace(0, 1, len(found))
    images = [places, -places, 2 - places]
    kernel = sum(np.exp(-((at[:, None] - image) ** 2) / (2 * width**2)) for image in images)
    np.testing.assert_allclose(found, kernel @ values / (np.sqrt(2 * np.pi) * width), rtol=1e-3, atol=1e-5)


def test_there_is_no_jump_at_the_edge_of_a_bin():
    y = np.array([0, 1] * 50)
    below, above = np.full(100, 0.5), np.full(100, np.nextafter(0.5, 1))
    assert metrics.smooth_ece(below, y, task="binary") == pytest.approx(
        metrics.smooth_ece(above, y, task="binary"), abs=1e-12
    )


def test_limits():
    assert metrics.smooth_ece(np.ones(50), np.zeros(50, dtype=int), task="binary") == pytest.approx(1)
    assert metrics.smooth_ece(np.ones(50), np.ones(50, dtype=int), task="binary") == 0
    probs, labels = draw_calibrated(np.random.default_rng(0), (20_000, 3))
    assert metrics.smooth_ece(probs, labels) < 0.01
