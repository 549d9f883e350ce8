"""Intervals over images: against textbook formulas, in limits, and by how often they cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from refocal import metrics
from refocal.segmentation.image_intervals import error_interval, mean_interval
from refocal.stats.binning import Bins

LEVEL = 0.9
WIDE = (-np.inf, np.inf)


def bound(residuals, pixels, bins, *, seed=0, **settings):
    rng = np.random.default_rng(seed)
    return error_interval(residuals, pixels, bins, level=0.95, resamples=300, rng=rng, **settings)


def test_equal_images_give_students_interval():
    rng = np.random.default_rng(0)
    means = rng.gamma(2.0, size=12)
    found = mean_interval(50 * means, np.full(12, 50.0), level=LEVEL, bounds=WIDE)
    expected = stats.t.interval(LEVEL, 11, loc=means.mean(), scale=stats.sem(means))
    assert found == pytest.approx((means.mean(), *expected))


def test_unequal_images_give_the_jackknife_of_a_ratio():
    """Two estimates of one standard error: they agree up to terms of order 1 / n."""
    rng = np.random.default_rng(1)
    pixels = rng.integers(50, 150, 400).astype(float)
    sums = pixels * rng.gamma(2.0, size=400)
    left_out = [np.delete(sums, i).sum() / np.delete(pixels, i).sum() for i in range(400)]
    error = math.sqrt(399 / 400 * np.sum((left_out - np.mean(left_out)) ** 2))
    found = mean_interval(sums, pixels, level=LEVEL, bounds=WIDE)
    assert (found.high - found.low) / 2 == pytest.approx(stats.t.ppf(0.95, 399) * error, rel=0.01)
    padded = mean_interval(np.append(sums, 0.0), np.append(pixels, 0.0), level=LEVEL, bounds=WIDE)
    assert padded == found  # an image without pixels does not count


def test_one_pixel_per_image_gives_wilsons_interval_of_samples():
    right = np.arange(400) < 300
    found = mean_interval(right.astype(float), np.ones(400), level=0.95, bounds=(0, 1), is_rate=True)
    expected = stats.binomtest(300, 400).proportion_ci(0.95, method="wilson")
    assert found[1:] == pytest.approx(tuple(expected), abs=1e-3)


@pytest.mark.parametrize(("sums", "value"), [(np.zeros(8), 0.0), (np.full(8, 100.0), 1.0)])
def test_a_rate_of_0_or_1_counts_images(sums, value):
    found = mean_interval(sums, np.full(8, 100.0), level=0.95, bounds=(0, 1), is_rate=True)
    assert found.value == value
    assert found.high - found.low == pytest.approx(0.41, abs=0.01)  # t^2 / (n + t^2)


def test_bounds_and_few_images():
    assert mean_interval(np.array([1.0, 9.0]), np.full(2, 10.0), level=0.95, bounds=(0, 1))[1:] == (0, 1)
    assert mean_interval(np.array([5.0]), np.array([10.0]), level=0.95, bounds=(0, 2)) == (0.5, 0, 2)
    nothing = mean_interval(np.zeros(3), np.zeros(3), level=0.95, bounds=(0, 2))
    assert math.isnan(nothing.value)
    assert nothing[1:] == (0, 2)
    infinite = mean_interval(np.array([np.inf, 1.0]), np.ones(2), level=0.95, bounds=(0, np.inf))
    assert infinite == (np.inf, np.inf, np.inf)
    same = mean_interval(np.full(5, 9.0), np.full(5, 10.0), level=0.95, bounds=(0, 1), is_rate=True)
    assert same.low < 0.9 < same.high  # images that agree are not more than their pixels


def test_one_pixel_per_image_gives_the_interval_of_samples():
    rng = np.random.default_rng(2)
    claim = 0.5 + 0.5 * rng.beta(2, 1, 3000)
    hit = rng.random(3000) < claim - 0.1
    index = np.minimum(14, np.ceil(claim * 15).astype(int) - 1)
    residuals = np.zeros((3000, 15))
    residuals[np.arange(3000), index] = claim - hit
    sums = [np.bincount(index, weights=part, minlength=15) for part in (np.ones(3000), claim, hit)]
    found = bound(residuals, np.ones(3000), Bins(*sums))
    expected = metrics.interval(metrics.ece, claim, hit.astype(int), task="binary", resamples=300)
    assert found.value == pytest.approx(expected.value)
    assert found[1:] == pytest.approx(expected[1:], abs=0.006)


def draw_sums(rng, images, gaps, *, spread):
    """Draw residuals of images with 100 pixels in 5 bins; the gap of each bin differs between images by `spread`."""
    pixels = rng.multinomial(100, [0.1, 0.1, 0.2, 0.2, 0.4], size=images).astype(float)
    claim = np.array([0.55, 0.65, 0.75, 0.85, 0.95])
    common = 0.7 * rng.standard_normal((images, 1)) + 0.7 * rng.standard_normal((images, 5))
    residuals = pixels * (gaps + spread * common)
    total = pixels.sum(axis=0)
    return residuals, pixels.sum(axis=1), Bins(total, total * claim, total * claim - residuals.sum(axis=0))


@pytest.mark.parametrize("images", [10, 40])
@pytest.mark.parametrize("gap", [0.0, 0.06])
def test_intervals_cover(images, gap):
    """See benchmarks/segmentation_intervals.py for the coverage on images."""
    gaps = np.array([0, 1, 1, -1, 1]) * gap
    truth = gap * 0.9
    found = [bound(*draw_sums(np.random.default_rng(seed), images, gaps, spread=0.1), seed=seed) for seed in range(100)]
    covered = np.mean([each.low <= truth <= each.high for each in found])
    assert covered >= 0.88
    assert np.mean([each.value for each in found]) > truth  # the bias that the limits correct


def test_more_images_give_shorter_intervals():
    lengths = []
    for images in (10, 40, 160):
        found = bound(*draw_sums(np.random.default_rng(0), images, np.full(5, 0.06), spread=0.1))
        lengths.append(found.high - found.low)
    assert lengths[0] > 1.4 * lengths[1] > 1.4 * 1.4 * lengths[2]


def test_groups_of_bins_are_averaged():
    residuals, pixels, bins = draw_sums(np.random.default_rng(0), 30, np.full(5, 0.06), spread=0.1)
    one = bound(residuals, pixels, bins)
    two = bound(np.tile(residuals, 2), pixels, Bins(*(np.tile(part, 2) for part in bins)), classes=2)
    assert two.value == pytest.approx(one.value)
    # the same gap in each class is another truth that is tried, and only widens
    assert one.low - 0.01 < two.low <= one.low * (1 + 1e-9)
    assert one.high * (1 - 1e-9) <= two.high < one.high + 0.01


def test_few_images_give_the_widest_limits():
    residuals, pixels, bins = draw_sums(np.random.default_rng(0), 1, np.full(5, 0.06), spread=0.1)
    found = bound(residuals, pixels, bins)
    assert found.value == pytest.approx(np.abs(residuals).sum() / 100)
    assert found[1:] == (0.0, 1.0)
    empty = bound(0 * residuals, 0 * pixels, Bins(*(0 * part for part in bins)))
    assert math.isnan(empty.value)
    assert empty[1:] == (0.0, 1.0)
