"""The parts of the Brier score."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from arrays import draw_calibrated, sharpen
from refocal import metrics
from refocal.stats.isotonic import isotonic_rows


def test_parts_add_up_and_agree_with_isotonic_regression():
    rng = np.random.default_rng(0)
    probs, labels = draw_calibrated(rng, (300, 3))
    probs = sharpen(probs, power=2)
    for weights in (None, rng.random(300)):
        parts = metrics.brier_decomposition(probs, labels, sample_weight=weights)
        assert parts.brier == pytest.approx(metrics.brier(probs, labels, sample_weight=weights), rel=1e-12)
        assert parts.calibration + parts.refinement == pytest.approx(parts.brier, rel=1e-12)
        assert parts.uncertainty - parts.resolution == pytest.approx(parts.refinement, rel=1e-12)
        assert min(parts) >= 0
        refined = 0.0
        for k in range(3):
            hits = (labels == k).astype(float)
            fitted = IsotonicRegression().fit(probs[:, k], hits, sample_weight=weights).predict(probs[:, k])
            refined += np.average((fitted - hits) ** 2, weights=weights)
        assert parts.refinement == pytest.approx(refined, rel=1e-6)


def test_an_increasing_map_changes_only_calibration():
    rng = np.random.default_rng(1)
    p = rng.random(500)
    y = (rng.random(500) < p).astype(int)
    before = metrics.brier_decomposition(p, y, task="binary")
    after = metrics.brier_decomposition(p**3, y, task="binary")
    assert after.refinement == pytest.approx(before.refinement, rel=1e-9)
    assert after.calibration > 3 * before.calibration
    assert before.brier == pytest.approx(metrics.brier(p, y, task="binary"), rel=1e-12)


def test_each_label_of_a_multilabel_task_has_its_own_map():
    rng = np.random.default_rng(2)
    p, y = rng.random((200, 2)), rng.integers(0, 2, (200, 2))
    each = [metrics.brier_decomposition(p[:, k], y[:, k], task="binary") for k in range(2)]
    found = metrics.brier_decomposition(p, y, task="multilabel")
    np.testing.assert_allclose(found, np.mean(each, axis=0), rtol=1e-12)


def test_ties_in_any_order_and_growing_samples():
    p, y = np.repeat([0.2, 0.7], 50), np.array([0, 1, 1, 0, 1] * 20)
    order = np.random.default_rng(3).permutation(100)
    first = metrics.brier_decomposition(p, y, task="binary")
    assert metrics.brier_decomposition(p[order], y[order], task="binary") == pytest.approx(first)
    small, large = (
        metrics.brier_decomposition(*draw_calibrated(np.random.default_rng(4), (count, 3))).calibration
        for count in (200, 20_000)
    )
    assert large < small / 5


def test_each_row_is_fitted_by_itself():
    rng = np.random.default_rng(5)
    values, weights = rng.normal(0, 3, (2, 3, 7)), rng.random((2, 3, 7)) + 0.1
    fitted = isotonic_rows(values, weights)
    for place in np.ndindex(2, 3):
        alone = IsotonicRegression().fit_transform(np.arange(7), values[place], sample_weight=weights[place])
        np.testing.assert_allclose(fitted[place], alone, rtol=1e-9, atol=1e-12)
