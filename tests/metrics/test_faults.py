"""Faults that other packages have had, one per test."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from arrays import draw_calibrated
from refocal import metrics
from refocal.stats.binning import bin_index, bin_sums


def test_confidence_one_is_in_the_last_bin():
    """Gaps of -0.8 at confidence 0.92 and of +1 at confidence 1 cancel in one bin, but not in two."""
    p, y = np.repeat([0.92, 1.0], 10), np.array([1] * 19 + [0])
    assert metrics.ece(p, y, task="binary", bins=10) == pytest.approx(0.2 / 20)
    theirs = float(binary_calibration_error(torch.tensor(p), torch.tensor(y), n_bins=10))
    assert theirs == pytest.approx(1.8 / 20, abs=1e-6)
    assert metrics.ece(p, y, task="binary", bins=10, binning="torchmetrics") == pytest.approx(theirs, abs=1e-6)


def test_confidence_zero_is_not_dropped():
    p, y = np.zeros(4), np.array([0, 1, 0, 1])
    for binning in ("equal_width", "equal_mass", "torchmetrics"):
        assert metrics.ece(p, y, task="binary", binning=binning) == 0.5
    assert metrics.ece(p, y, task="binary", binning="guo2017") == 0


def test_ties_are_not_split_by_the_order_of_samples():
    p = np.repeat([0.6, 0.9], 500)
    y = np.tile([1, 1, 1, 0, 0], 200)
    rng = np.random.default_rng(0)
    values = set()
    for _ in range(5):
        order = rng.permutation(1000)
        values.add(round(metrics.adaptive_ece(p[order], y[order], task="binary", bins=10), 12))
    by_outcome = np.argsort(y, kind="stable")
    values.add(round(metrics.adaptive_ece(p[by_outcome], y[by_outcome], task="binary", bins=10), 12))
    assert values == {0.15}


@pytest.mark.parametrize("binning", ["equal_width", "equal_mass", "guo2017", "torchmetrics", "mukhoti2020"])
@pytest.mark.parametrize("count", [1, 2, 3, 14])
def test_fewer_samples_than_bins(binning, count):
    probs, labels = draw_calibrated(np.random.default_rng(count), (count, 3))
    for norm in ("l1", "l2", "max"):
        assert 0 <= metrics.ece(probs, labels, binning=binning, norm=norm) <= 1
    for measure in (metrics.classwise_ece, metrics.smooth_ece, metrics.thresholded_ece, metrics.aurc):
        assert np.isfinite(measure(probs, labels))
    assert np.isfinite(metrics.ece(probs, labels, debias=True))


def test_counts_do_not_stop_at_two_to_the_24():
    """A float32 counter cannot count past 16,777,216."""
    accumulator = metrics.CalibrationAccumulator(task="binary", bins=10)
    rows = 1 << 21
    half = np.full(rows, 0.5, dtype=np.float32)
    labels = np.zeros(rows, dtype=np.int8)
    for _ in range(9):
        accumulator.update(half, labels)
    summary = accumulator.compute()
    assert summary.samples == 9 * rows > 16_777_216
    assert summary.ece == 0.5
    assert summary.confidence == 0.5
    sums = bin_sums(np.zeros(3, dtype=np.int32), np.full(3, 0.1, dtype=np.float32), np.ones(3, dtype=bool), size=1)
    assert all(part.dtype == np.float64 for part in sums)


def test_logits_inside_the_unit_interval_are_not_read_as_probabilities():
    logits = np.array([[0.9, 0.1, 0.05], [0.2, 0.7, 0.1]])
    with pytest.raises(ValueError, match=r"rows of scores must sum to 1 \(for logits, pass input='logits'\)"):
        metrics.ece(logits, [0, 1])
    softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert metrics.ece(logits, [0, 1], input="logits") == pytest.approx(metrics.ece(softmax, [0, 1]), rel=1e-12)
    theirs = multiclass_calibration_error(torch.tensor(logits), torch.tensor([0, 1]), num_classes=3)
    assert abs(float(theirs) - metrics.ece(softmax, [0, 1])) > 0.1  # torchmetrics guesses


def test_classes_absent_from_the_sample_count():
    """Five columns and labels up to 2: the mean is over five classes."""
    probs, _ = draw_calibrated(np.random.default_rng(1), (300, 5))
    labels = np.random.default_rng(2).integers(0, 3, 300)
    by_class = [metrics.ece(probs[:, k].copy(), (labels == k).astype(int), task="binary") for k in range(5)]
    assert metrics.classwise_ece(probs, labels) == pytest.approx(np.mean(by_class), rel=1e-9)
    assert metrics.classwise_ece(probs, np.zeros(300, dtype=int)) > 0
    assert np.isfinite(metrics.nll(probs, np.zeros(300, dtype=int)))


@pytest.mark.parametrize("bins", [1, 2, 10, 15])
def test_the_number_of_bins_is_the_requested_one(bins):
    p = (np.arange(1000) + 0.5) / 1000
    for binning in ("equal_width", "equal_mass"):
        index, size = bin_index(p, None, bins=bins, binning=binning)
        assert size == bins
        counts = np.bincount(index, minlength=size)
        assert counts.min() >= 1000 // bins
        assert counts.sum() == 1000


def test_edges_are_exact_despite_rounding():
    """0.3 / 0.1 is below 3, so dividing by the width puts edges into the wrong bins."""
    for tenth in range(1, 11):
        index, _ = bin_index(np.array([tenth / 10]), None, bins=10, binning="equal_width")
        assert index.tolist() == [tenth - 1]


def test_the_maximum_error_is_a_gap_not_a_count():
    p, y = np.array([0.95] * 8 + [0.35, 0.31]), np.array([1] * 8 + [1, 0])
    assert metrics.mce(p, y, task="binary", bins=10) == pytest.approx(0.17)
