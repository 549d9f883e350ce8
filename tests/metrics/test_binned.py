"""Binned calibration errors against loops, other packages and closed forms."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import norm as norm_distribution
from sklearn.calibration import calibration_curve
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from arrays import draw_calibrated, random_simplex, sharpen
from reference import loop_ece, loop_top
from refocal import metrics
from refocal.stats.binning import (
    bin_index,
    bin_sums,
    equal_mass_bins,
    equal_width_bins,
    mass_index_of_counts,
    pair_sums,
    width_index,
)
from refocal.stats.gap_norms import debiased_squares

events = st.integers(1, 60).flatmap(
    lambda n: st.tuples(
        hnp.arrays(np.float64, n, elements=st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.2, 0.28, 0.6, 1.0]))),
        hnp.arrays(np.int64, n, elements=st.integers(0, 1)),
    )
)


@settings(max_examples=100, deadline=None)
@given(events, st.sampled_from(["l1", "l2", "max"]), st.integers(1, 30))
def test_ece_equals_the_loop(given_events, norm, bins):
    p, y = given_events
    assert metrics.ece(p, y, task="binary", bins=bins, norm=norm) == pytest.approx(
        loop_ece(p, y, bins=bins, norm=norm), rel=1e-9, abs=1e-12
    )


@settings(max_examples=60, deadline=None)
@given(events, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(given_events, random):
    p, y = given_events
    order = list(range(len(p)))
    random.shuffle(order)
    for binning in ("equal_width", "equal_mass", "torchmetrics", "guo2017"):
        first = metrics.ece(p, y, task="binary", binning=binning)
        assert metrics.ece(p[order], y[order], task="binary", binning=binning) == pytest.approx(first, abs=1e-12)


def test_top_label_with_weights_against_loops():
    rng = np.random.default_rng(0)
    for classes in (2, 5, 24, 25, 60):
        probs, labels = draw_calibrated(rng, (300, classes))
        weights = rng.random(300)
        confidence, correct = loop_top(probs, labels)
        for norm in ("l1", "l2", "max"):
            expected = loop_ece(confidence, correct, norm=norm, weights=weights)
            assert metrics.ece(probs, labels, norm=norm, sample_weight=weights) == pytest.approx(expected, rel=1e-9)
        assert metrics.mce(probs, labels) == metrics.ece(probs, labels, norm="max")


def test_classwise_error_against_loops():
    rng = np.random.default_rng(1)
    probs, labels = draw_calibrated(rng, (200, 4))
    weights = rng.random(200)
    by_class = [loop_ece(probs[:, k], labels == k, weights=weights) for k in range(4)]
    assert metrics.classwise_ece(probs, labels, sample_weight=weights) == pytest.approx(np.mean(by_class), rel=1e-9)
    summed = metrics.classwise_ece(probs, labels, sample_weight=weights, reduction="sum")
    assert summed == pytest.approx(np.sum(by_class), rel=1e-9)
    by_mass = [
        metrics.ece(np.ascontiguousarray(probs[:, k]), (labels == k).astype(int), task="binary", binning="equal_mass")
        for k in range(4)
    ]
    assert metrics.classwise_ece(probs, labels, binning="equal_mass") == pytest.approx(np.mean(by_mass), rel=1e-9)
    kept = [loop_ece(probs[probs[:, k] > 0.1, k], (labels == k)[probs[:, k] > 0.1], bins=10) for k in range(4)]
    thresholded = metrics.thresholded_ece(probs, labels, threshold=0.1, bins=10, binning="equal_width")
    assert thresholded == pytest.approx(np.mean(kept), rel=1e-9)
    assert metrics.thresholded_ece(np.full((2, 200), 0.005), [0, 1]) == 0


def test_top_k_error_against_a_loop():
    rng = np.random.default_rng(2)
    probs, labels = draw_calibrated(rng, (200, 6))
    order = np.argsort(-probs, axis=1)[:, :3]
    confidence = [row[top].sum() for row, top in zip(probs, order, strict=True)]
    expected = loop_ece(np.minimum(confidence, 1), [y in top for y, top in zip(labels, order, strict=True)])
    assert metrics.top_k_ece(probs, labels, k=3) == pytest.approx(expected, rel=1e-9)
    assert metrics.top_k_ece(probs, labels, k=1) == pytest.approx(metrics.ece(probs, labels), rel=1e-12)
    assert metrics.top_k_ece(probs, labels, k=6) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_torchmetrics_convention_gives_its_numbers(norm):
    rng = np.random.default_rng(3)
    probs = random_simplex(rng, (500, 4), spread=4.0).astype(np.float32)
    probs[:40] = np.eye(4, dtype=np.float32)[rng.integers(0, 4, 40)]  # torchmetrics has a separate bin for confidence 1
    labels = rng.integers(0, 4, 500)
    theirs = multiclass_calibration_error(
        torch.tensor(probs), torch.tensor(labels), num_classes=4, n_bins=15, norm=norm
    )
    ours = metrics.ece(probs, labels, binning="torchmetrics", norm=norm)
    assert ours == pytest.approx(float(theirs), abs=2e-6)
    theirs = binary_calibration_error(torch.tensor(probs[:, 0]), torch.tensor(labels % 2), n_bins=10, norm=norm)
    ours = metrics.ece(probs[:, 0], labels % 2, task="binary", bins=10, binning="torchmetrics", norm=norm)
    assert ours == pytest.approx(float(theirs), abs=2e-6)


def test_guo_convention_drops_confidence_zero():
    p, y = np.array([0.0, 0.0, 0.3, 1.0]), np.array([1, 1, 0, 1])
    assert metrics.ece(p, y, task="binary", binning="guo2017") == pytest.approx(0.3 / 4)
    assert metrics.ece(p, y, task="binary") == pytest.approx((2 + 0.3) / 4)
    # The edges are those of torch.linspace in float32.
    for bins in range(1, 64):
        edges = torch.linspace(0, 1, bins + 1).numpy()
        for shifted, expected in ((edges[1:], range(bins)), (np.nextafter(edges[:-1], np.float32(1)), range(bins))):
            index, _ = bin_index(shifted, None, bins=bins, binning="guo2017")
            assert index.tolist() == list(expected)


def test_mukhoti_convention_against_a_loop():
    rng = np.random.default_rng(4)
    p = rng.random(101)
    y = (rng.random(101) < p).astype(int)
    ordered = np.sort(p)
    edges = np.interp(np.linspace(0, 101, 16), np.arange(101), ordered)
    expected = sum(abs(np.sum((p - y)[(p > low) & (p <= high)])) for low, high in pairwise(edges))
    found = metrics.adaptive_ece(p, y, task="binary", binning="mukhoti2020")
    assert found == pytest.approx(expected / 101, rel=1e-9)
    index, size = bin_index(p, None, bins=15, binning="mukhoti2020")
    assert np.flatnonzero(index == size - 1).tolist() == [int(p.argmin())]  # the least confident sample is dropped


def test_equal_width_bins_agree_with_scikit_learn():
    rng = np.random.default_rng(5)
    p = np.concatenate([rng.random(400), [0.0, 0.2, 0.4, 1.0]])
    y = (rng.random(404) < p).astype(int)
    frequency, mean = calibration_curve(y, p, n_bins=5)
    diagram = metrics.reliability_diagram(p, y, task="binary", bins=5, resamples=100)
    np.testing.assert_allclose(diagram.accuracy, frequency)
    np.testing.assert_allclose(diagram.confidence, mean)


def test_edges_belong_to_the_bin_below():
    for bins in (5, 10, 15, 25, 100):
        edges = np.arange(1, bins + 1) / bins
        assert width_index(edges, bins=bins).tolist() == list(range(bins))
        above = np.nextafter(edges[:-1], 1)
        assert width_index(above, bins=bins).tolist() == list(range(1, bins))
    assert width_index(np.array([0.0, 5e-324, 1.0]), bins=10).tolist() == [0, 0, 9]


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_calibration_error_decreases_like_one_over_the_root_of_n(norm):
    """For calibrated labels the gap of every bin is noise, so four times the samples halve the error.

    A mean over 60 seeds has a relative standard error below .03 for each size, so a false alarm beyond .85 ... 1.15 has
    a probability below 1e-3.
    """
    means = []
    for count in (1000, 4000):
        values = [
            metrics.ece(*draw_calibrated(np.random.default_rng(seed), (count, 3)), norm=norm) for seed in range(60)
        ]
        means.append(np.mean(values))
    assert means[0] / means[1] == pytest.approx(2, rel=0.15)


def test_debiased_squares_are_unbiased():
    """Monte Carlo over 4,000 samples of 60: the mean is within 4 standard errors (false alarm: 6e-5 per bin)."""
    rng = np.random.default_rng(6)
    p = rng.random((4000, 60))
    y = rng.random(p.shape) < np.clip(p + 0.1, 0, 1)
    estimates = np.full((len(p), 4), np.nan)
    for row, (one, hits) in enumerate(zip(p, y, strict=True)):
        index = width_index(one, bins=4)
        sums = bin_sums(index, one, hits, size=4)
        squares = debiased_squares(sums, pair_sums(index, one, hits, None, size=4))
        estimates[row] = np.where(sums.samples > 1, squares, np.nan)
    grid = (np.arange(100_000) + 0.5) / 100_000
    gap = np.clip(grid + 0.1, 0, 1) - grid
    truth = [gap[width_index(grid, bins=4) == b].mean() ** 2 for b in range(4)]
    errors = (np.nanmean(estimates, axis=0) - truth) / (np.nanstd(estimates, axis=0) / np.sqrt(len(p)))
    assert np.all(np.abs(errors) < 4)


def test_debiasing_at_constant_confidence_is_the_formula_of_kumar():
    y = np.array([1, 1, 0, 1, 0, 1, 1, 1, 0, 1])
    p = np.full(10, 0.9)
    accuracy = y.mean()
    square = (0.9 - accuracy) ** 2 - accuracy * (1 - accuracy) / 9
    found = metrics.ece(p, y, task="binary", norm="l2", debias=True)
    assert found == pytest.approx(np.sqrt(square), rel=1e-12)
    doubled = metrics.ece(p, y, task="binary", norm="l2", debias=True, sample_weight=np.full(10, 2.0))
    assert doubled == pytest.approx(found, rel=1e-12)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_debiasing_does_not_depend_on_the_unit_of_weights(norm):
    rng = np.random.default_rng(0)
    p, weights = rng.random(200), rng.random(200)
    y = (rng.random(200) < p**2).astype(int)
    found = [
        metrics.ece(p, y, task="binary", norm=norm, debias=True, sample_weight=unit * weights)
        for unit in (1e-12, 1.0, 1e12)
    ]
    assert found == pytest.approx([found[1]] * 3, rel=1e-9)


def test_debiased_error_of_single_samples():
    """A bin of one sample has no pairs, so G ~ N(g, g^2), and the mean of |G| has a closed form."""
    folded = np.sqrt(2 / np.pi) * np.exp(-0.5) + 1 - 2 * norm_distribution.cdf(-1)
    p, y = np.array([0.05, 0.3, 0.95]), np.array([1, 0, 1])
    expected = np.mean(np.abs(p - y)) * (2 - folded)
    assert metrics.ece(p, y, task="binary", debias=True) == pytest.approx(expected, rel=1e-12)
    assert metrics.ece(p, y, task="binary", debias=True, norm="l2") == 0


def test_float32_is_summed_in_float64():
    rng = np.random.default_rng(0)
    probs, labels = draw_calibrated(rng, (20_000, 4))
    single = probs.astype(np.float32)
    for measure in (metrics.classwise_ece, metrics.ece, metrics.brier):
        assert measure(single, labels) == pytest.approx(measure(single.astype(np.float64), labels), rel=1e-12)


def test_the_error_of_bins_equals_the_loop():
    rng = np.random.default_rng(8)
    p = rng.random(300)
    y = rng.random(300) < p**2
    assert equal_width_bins(p, y, bins=9).expected_calibration_error == pytest.approx(loop_ece(p, y, bins=9), rel=1e-12)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_dropped_samples_have_no_bias_to_subtract(norm):
    rng = np.random.default_rng(0)
    p = rng.uniform(0.01, 1, 400)
    y = (rng.random(400) < p**2).astype(int)
    settings = {"task": "binary", "binning": "guo2017", "norm": norm, "debias": True}
    kept = metrics.ece(p, y, **settings)
    dropped = metrics.ece(np.append(p, np.zeros(400)), np.append(y, [0, 1] * 200), **settings)
    # 400 samples of confidence 0 count only in n.
    assert dropped == pytest.approx(kept / 2 if norm == "l1" else kept / np.sqrt(2), rel=1e-9)


def test_debiasing_reduces_the_bias():
    """Over 200 calibrated samples of 500, l1 loses more than a third of its bias; a large error does not change."""
    plain, debiased = [], []
    for seed in range(200):
        probs, labels = draw_calibrated(np.random.default_rng(seed), (500, 3))
        plain.append(metrics.ece(probs, labels))
        debiased.append(metrics.ece(probs, labels, debias=True))
    assert abs(np.mean(debiased)) < 0.66 * np.mean(plain)
    probs, labels = draw_calibrated(np.random.default_rng(0), (20_000, 3))
    wrong = sharpen(probs, power=1.5)
    assert metrics.ece(wrong, labels, debias=True) == pytest.approx(metrics.ece(wrong, labels), rel=0.02)


def test_bins_accept_frequencies_and_outcomes():
    sums = equal_width_bins(np.array([0.1, 0.9, 0.9]), np.array([0.25, 0.5, 1.0]), bins=2)
    assert sums.correct.tolist() == [0.25, 1.5]
    assert sums.samples.tolist() == [1, 2]


def test_equal_mass_bins_hold_equal_shares_and_keep_ties():
    rng = np.random.default_rng(7)
    p = rng.random(1000)
    sums = equal_mass_bins(p, p > 0.5, bins=8)
    assert sums.samples.tolist() == [125] * 8
    tied = np.repeat([0.3, 0.6, 0.9], [10, 80, 10])
    assert equal_mass_bins(tied, tied > 0.5, bins=4).samples.tolist() == [90, 0, 0, 10]
    weighted = metrics.ece(p, (p > 0.5).astype(int), task="binary", binning="equal_mass", sample_weight=np.ones(1000))
    assert weighted == pytest.approx(metrics.ece(p, (p > 0.5).astype(int), task="binary", binning="equal_mass"))


def test_cells_of_a_histogram_fall_into_the_bins_of_their_samples():
    """If a share ends exactly at a cell, the cell is in the lower bin, as for weighted samples."""
    assert mass_index_of_counts(np.array([5, 5, 5, 5]), bins=2).tolist() == [0, 0, 1, 1]
    assert mass_index_of_counts(np.array([1, 1, 8, 0, 2]), bins=3).tolist() == [0, 0, 0, 2, 2]
    p, counts = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), np.array([3, 3, 1, 2, 2, 1])
    samples = np.repeat(p, counts)
    for bins in (2, 3, 4, 6):
        expected, _ = bin_index(samples, None, bins=bins, binning="equal_mass")
        weighted, _ = bin_index(p, 0.1 * counts, bins=bins, binning="equal_mass")
        cells = mass_index_of_counts(counts, bins=bins)
        assert np.repeat(cells, counts).tolist() == np.repeat(weighted, counts).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("settings_", "error", "message"),
    [
        ({"bins": 0}, ValueError, "bins must be at least 1, got 0"),
        ({"bins": 2.5}, TypeError, "bins must be a whole number, at least 1, got 2.5"),
        ({"bins": True}, TypeError, "bins must be a whole number"),
        ({"norm": "l3"}, ValueError, "norm must be one of 'l1', 'l2', 'max', got 'l3'"),
        ({"binning": "equal"}, ValueError, "binning must be one of 'equal_width', .*got 'equal'"),
        ({"norm": "max", "debias": True}, ValueError, "debias must be False for norm='max'"),
    ],
)
def test_bad_settings(settings_, error, message):
    with pytest.raises(error, match=message):
        metrics.ece(np.array([[0.5, 0.5]]), [0], **settings_)
    with pytest.raises(ValueError, match="binning must be one of 'equal_mass', 'mukhoti2020', got 'equal_width'"):
        metrics.adaptive_ece(np.array([[0.5, 0.5]]), [0], binning="equal_width")
    with pytest.raises(ValueError, match="k must be 1 to 2, got 3"):
        metrics.top_k_ece(np.array([[0.5, 0.5]]), [0], k=3)
    with pytest.raises(ValueError, match="reduction must be one of 'mean', 'sum', got 'max'"):
        metrics.classwise_ece(np.array([[0.5, 0.5]]), [0], reduction="max")
    with pytest.raises(ValueError, match="bins must be at least 1, got 0"):  # even if no probability is that large
        metrics.thresholded_ece(np.array([[0.5, 0.5]]), [0], threshold=0.9, bins=0)
