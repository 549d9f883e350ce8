"""Kernel calibration errors against sums over all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from arrays import draw_calibrated
from reference import loop_kernel_error, loop_top
from refocal import metrics


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("width", [5.0, 0.4, 0.01, 1e-4])
def test_top_label_against_all_pairs(width, unbiased):
    rng = np.random.default_rng(0)
    probs, labels = draw_calibrated(rng, (60, 3))
    confidence, correct = (np.array(part, dtype=float) for part in loop_top(probs, labels))
    for weights in (None, rng.random(60)):
        expected = loop_kernel_error(
            confidence[:, None], (confidence - correct)[:, None], width=width, unbiased=unbiased, weights=weights
        )
        found = metrics.kernel_calibration_error(
            probs, labels, kernel_width=width, unbiased=unbiased, sample_weight=weights
        )
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("unbiased", [False, True])
def test_all_classes_against_all_pairs(unbiased):
    probs, labels = draw_calibrated(np.random.default_rng(1), (40, 4))
    expected = loop_kernel_error(probs, probs - np.eye(4)[labels], width=0.7, unbiased=unbiased)
    found = metrics.kernel_calibration_error(probs, labels, kernel_width=0.7, unbiased=unbiased, classes="all")
    assert found == pytest.approx(expected, rel=1e-9)


def test_it_is_the_mmce_loss():
    torch = pytest.importorskip("torch")
    from refocal.losses import mmce_loss

    logits = 2 * np.random.default_rng(2).standard_normal((100, 5))
    labels = np.random.default_rng(3).integers(0, 5, 100)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = float(mmce_loss(torch.tensor(logits), torch.tensor(labels)))
    assert metrics.kernel_calibration_error(probs, labels) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("classes", ["top", "all"])
def test_unbiased_estimate_has_mean_zero_for_calibrated_labels(classes):
    """The mean over 400 samples of 50 is within 4 standard errors of 0 (false alarm: 6e-5); the biased root is not."""
    values, roots = [], []
    for seed in range(400):
        probs, labels = draw_calibrated(np.random.default_rng(seed), (50, 3))
        values.append(metrics.kernel_calibration_error(probs, labels, unbiased=True, classes=classes))
        roots.append(metrics.kernel_calibration_error(probs, labels, classes=classes))
    assert abs(np.mean(values)) < 4 * np.std(values) / 20
    assert np.mean(np.square(roots)) > 10 * np.std(values) / 20


def test_bad_settings():
    with pytest.raises(ValueError, match="unbiased=True needs two samples or more of positive weight, got 1"):
        metrics.kernel_calibration_error(np.array([[0.5, 0.5]]), [0], unbiased=True)
    with pytest.raises(ValueError, match="kernel_width must be positive and finite, got 0"):
        metrics.kernel_calibration_error(np.array([[0.5, 0.5]]), [0], kernel_width=0)
    with pytest.raises(ValueError, match="classes must be one of 'top', 'all', got 'some'"):
        metrics.kernel_calibration_error(np.array([[0.5, 0.5]]), [0], classes="some")
