"""Consistency bands and the calibration test against their distributions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, kstest

from arrays import draw_calibrated, sharpen
from refocal import metrics


def test_bands_at_constant_confidence_are_binomial_quantiles():
    p, y = np.repeat([0.3, 0.8], 200), np.tile([0, 1], 200)
    diagram = metrics.reliability_diagram(p, y, task="binary", bins=10, level=0.9, resamples=20_000)
    np.testing.assert_allclose(diagram.low, binom.ppf(0.05, 200, [0.3, 0.8]) / 200, atol=0.0051)
    np.testing.assert_allclose(diagram.high, binom.ppf(0.95, 200, [0.3, 0.8]) / 200, atol=0.0051)
    assert diagram.samples.tolist() == [200, 200]
    assert diagram.accuracy.tolist() == [0.5, 0.5]


def test_bands_contain_a_calibrated_model():
    """15 bins of 40 calibrated samples with 95 % bands: at least 90 % lie inside (false alarm: below 1e-4)."""
    inside = total = 0
    for seed in range(40):
        probs, labels = draw_calibrated(np.random.default_rng(seed), (3000, 3))
        diagram = metrics.reliability_diagram(probs, labels, resamples=200, binning="equal_mass", seed=seed)
        inside += np.count_nonzero((diagram.low <= diagram.accuracy) & (diagram.accuracy <= diagram.high))
        total += len(diagram.low)
    assert 0.90 * total < inside


def test_p_values_of_calibrated_models_are_uniform_and_of_others_small():
    """Kolmogorov-Smirnov test at 1e-3 over calibrated samples, without and with grouped samples."""
    for count, repeats in ((300, 150), (5000, 60)):
        values = [
            metrics.calibration_test(*draw_calibrated(np.random.default_rng(seed), (count, 3)), resamples=200).p_value
            for seed in range(repeats)
        ]
        assert kstest(values, "uniform").pvalue > 1e-3
    probs, labels = draw_calibrated(np.random.default_rng(0), (2000, 3))
    wrong = metrics.calibration_test(sharpen(probs, power=1.5), labels)
    assert wrong.p_value == 1 / 1001
    assert wrong.value == pytest.approx(metrics.ece(sharpen(probs, power=1.5), labels), rel=1e-9)
    assert wrong.expected < wrong.value / 2
    assert metrics.calibration_test(np.ones(10), np.ones(10, dtype=int), task="binary").p_value == 1


def test_weights_seeds_and_conventions():
    probs, labels = draw_calibrated(np.random.default_rng(1), (500, 3))
    first = metrics.calibration_test(probs, labels, seed=3)
    assert metrics.calibration_test(probs, labels, seed=np.random.default_rng(3)) == first
    assert metrics.calibration_test(probs, labels, seed=4) != first
    weighted = metrics.calibration_test(probs, labels, sample_weight=np.full(500, 2.0), norm="l2")
    assert weighted.value == pytest.approx(metrics.ece(probs, labels, norm="l2"), rel=1e-9)
    for binning in ("guo2017", "mukhoti2020", "torchmetrics"):
        found = metrics.calibration_test(probs, labels, binning=binning).value
        assert found == pytest.approx(metrics.ece(probs, labels, binning=binning), rel=1e-9)
        assert len(metrics.reliability_diagram(probs, labels, binning=binning).samples) <= 16
    with pytest.raises(ValueError, match="resamples must be at least 100, got 10"):
        metrics.calibration_test(probs, labels, resamples=10)
    with pytest.raises(ValueError, match=r"level must lie strictly between 0 and 1, got 1.0"):
        metrics.reliability_diagram(probs, labels, level=1.0)


def test_simulated_errors_that_equal_the_observed_one_count():
    """The error of one sample with confidence 1/2 is 1/2 for either label."""
    for label in (0, 1):
        found = metrics.calibration_test(np.array([0.5]), np.array([label]), task="binary", resamples=100)
        assert (found.value, found.p_value) == (0.5, 1.0)
