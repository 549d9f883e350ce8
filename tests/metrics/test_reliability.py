"""Consistency bands and the test of ECE against their distributions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, kstest

from arrays import draw_calibrated, sharpen
from refocal import metrics
from refocal.metrics.inputs import read
from refocal.metrics.reliability import find_ece_p_value


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


def test_p_values_of_ece_are_uniform_for_calibrated_models_and_small_for_others():
    """Kolmogorov-Smirnov test at 1e-3 over calibrated samples, without and with grouped samples."""
    for count, repeats in ((300, 150), (5000, 60)):
        values = [
            find_ece_p_value(top_events(*draw_calibrated(np.random.default_rng(seed), (count, 3))), resamples=200)
            for seed in range(repeats)
        ]
        assert kstest(values, "uniform").pvalue > 1e-3
    probs, labels = draw_calibrated(np.random.default_rng(0), (2000, 3))
    assert find_ece_p_value(top_events(sharpen(probs, power=1.5), labels)) == 1 / 1001
    assert find_ece_p_value(top_events(np.eye(3), np.arange(3))) == 1


def top_events(probs, labels):
    return read(probs, labels).all_events()


def test_simulated_errors_that_equal_the_observed_one_count():
    """The error of one sample with confidence 1/2 is 1/2 for either label."""
    for label in (0, 1):
        assert find_ece_p_value(read(np.array([0.5]), np.array([label]), task="binary").all_events()) == 1


def test_conventions_and_wrong_arguments():
    probs, labels = draw_calibrated(np.random.default_rng(1), (500, 3))
    for binning in ("guo2017", "mukhoti2020", "torchmetrics"):
        assert len(metrics.reliability_diagram(probs, labels, binning=binning).samples) <= 16
    with pytest.raises(ValueError, match=r"level must lie strictly between 0 and 1, got 1.0"):
        metrics.reliability_diagram(probs, labels, level=1.0)
    with pytest.raises(ValueError, match="resamples must be at least 100, got 10"):
        metrics.reliability_diagram(probs, labels, resamples=10)
