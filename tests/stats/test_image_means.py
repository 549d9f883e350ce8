"""Limits of means over images: against textbook formulas, and in limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from refocal.stats.image_means import bound_mean

LEVEL = 0.9
WIDE = (-np.inf, np.inf)


def test_equal_images_give_students_interval():
    rng = np.random.default_rng(0)
    means = rng.gamma(2.0, size=12)
    found = bound_mean(50 * means, np.full(12, 50.0), level=LEVEL, bounds=WIDE)
    expected = stats.t.interval(LEVEL, 11, loc=means.mean(), scale=stats.sem(means))
    assert found == pytest.approx((means.mean(), *expected))


def test_unequal_images_give_the_jackknife_of_a_ratio():
    """Two estimates of one standard error: they agree up to terms of order 1 / n."""
    rng = np.random.default_rng(1)
    pixels = rng.integers(50, 150, 400).astype(float)
    sums = pixels * rng.gamma(2.0, size=400)
    left_out = [np.delete(sums, i).sum() / np.delete(pixels, i).sum() for i in range(400)]
    error = math.sqrt(399 / 400 * np.sum((left_out - np.mean(left_out)) ** 2))
    found = bound_mean(sums, pixels, level=LEVEL, bounds=WIDE)
    assert (found[2] - found[1]) / 2 == pytest.approx(stats.t.ppf(0.95, 399) * error, rel=0.01)
    padded = bound_mean(np.append(sums, 0.0), np.append(pixels, 0.0), level=LEVEL, bounds=WIDE)
    assert padded == found  # an image without pixels does not count


def test_one_pixel_per_image_gives_wilsons_interval_of_samples():
    right = np.arange(400) < 300
    found = bound_mean(right.astype(float), np.ones(400), level=0.95, bounds=(0, 1), is_rate=True)
    expected = stats.binomtest(300, 400).proportion_ci(0.95, method="wilson")
    assert found[1:] == pytest.approx(tuple(expected), abs=1e-3)


@pytest.mark.parametrize(("sums", "value"), [(np.zeros(8), 0.0), (np.full(8, 100.0), 1.0)])
def test_a_rate_of_0_or_1_counts_images(sums, value):
    found = bound_mean(sums, np.full(8, 100.0), level=0.95, bounds=(0, 1), is_rate=True)
    assert found[0] == value
    assert found[2] - found[1] == pytest.approx(0.41, abs=0.01)  # t^2 / (n + t^2)


def test_bounds_and_few_images():
    assert bound_mean(np.array([1.0, 9.0]), np.full(2, 10.0), level=0.95, bounds=(0, 1))[1:] == (0, 1)
    assert bound_mean(np.array([5.0]), np.array([10.0]), level=0.95, bounds=(0, 2)) == (0.5, 0, 2)
    nothing = bound_mean(np.zeros(3), np.zeros(3), level=0.95, bounds=(0, 2))
    assert math.isnan(nothing[0])
    assert nothing[1:] == (0, 2)
    infinite = bound_mean(np.array([np.inf, 1.0]), np.ones(2), level=0.95, bounds=(0, np.inf))
    assert infinite == (np.inf, np.inf, np.inf)
    same = bound_mean(np.full(5, 9.0), np.full(5, 10.0), level=0.95, bounds=(0, 1), is_rate=True)
    assert same[1] < 0.9 < same[2]  # images that agree are not more than their pixels
