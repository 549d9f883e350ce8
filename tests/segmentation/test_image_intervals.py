"""Intervals over images: against those of samples, in limits, and by how often they cover."""

from __future__ import annotations

import math

import numpy as np
import pytest

from refocal import metrics
from refocal.segmentation.image_intervals import error_interval
from refocal.stats.binning import Bins


def bound(residuals, pixels, bins, *, seed=0, **settings):
    rng = np.random.default_rng(seed)
    return error_interval(residuals, pixels, bins, level=0.95, resamples=300, rng=rng, **settings)


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


@pytest.mark.parametrize("images", [2, 5, 40])
def test_images_without_errors_do_not_rule_out_images_with_errors(images):
    """A share of all images that shows up in none of them with probability 2.5%."""
    pixels = np.full(images, 100.0)
    total = np.array([0.0, 100.0 * images])
    found = bound(np.zeros((images, 2)), pixels, Bins(total, total, total))
    assert (found.value, found.low) == (0, 0)
    assert (1 - found.high) ** images == pytest.approx(0.025)


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
