"""Areas under ranking curves against scikit-learn and loops."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics

from arrays import draw_calibrated
from reference import loop_aurc, loop_top
from refocal import metrics


def test_auroc_equals_scikit_learn_with_ties_and_weights():
    rng = np.random.default_rng(0)
    probs, labels = draw_calibrated(rng, (400, 4))
    weights = rng.random(400)
    tied = np.round(probs[:, 0] * 10) / 10
    for scale in (None, weights):
        confidence, correct = loop_top(probs, labels)
        expected = sklearn.metrics.roc_auc_score(correct, confidence, sample_weight=scale)
        assert metrics.auroc(probs, labels, sample_weight=scale) == pytest.approx(expected, rel=1e-9)
        right = (tied >= 0.5) == (labels == 0)
        expected = sklearn.metrics.roc_auc_score(right, np.maximum(tied, 1 - tied), sample_weight=scale)
        found = metrics.auroc(tied, (labels == 0).astype(int), task="binary", sample_weight=scale)
        assert found == pytest.approx(expected, rel=1e-9)


def test_aurc_against_a_loop_with_ties_averaged_over_orders():
    rng = np.random.default_rng(1)
    probs, labels = draw_calibrated(rng, (300, 3))
    confidence, correct = loop_top(probs, labels)
    assert metrics.aurc(probs, labels) == pytest.approx(loop_aurc(confidence, correct), rel=1e-12)
    p, y = np.array([0.9, 0.7, 0.7, 0.7, 0.6]), np.array([1, 1, 0, 1, 0])
    orders = [
        loop_aurc([5, *places, 1], y) for places in ((4, 3, 2), (4, 2, 3), (3, 4, 2), (3, 2, 4), (2, 3, 4), (2, 4, 3))
    ]
    assert metrics.aurc(p, y, task="binary") == pytest.approx(np.mean(orders), rel=1e-12)


def test_a_decision_of_weight_0_is_absent_from_ties():
    p, y, weight = np.array([0.9, 0.7, 0.7, 0.6]), np.array([1, 0, 1, 0]), np.array([1.0, 3.0, 0.0, 2.0])
    kept = weight > 0
    for measure in (metrics.auroc, metrics.aurc):
        alone = measure(p[kept], y[kept], task="binary", sample_weight=weight[kept])
        assert measure(p, y, task="binary", sample_weight=weight) == alone
    weight[1] = 0  # no decision of this confidence is left
    assert metrics.aurc(p, y, task="binary", sample_weight=weight) == pytest.approx(2 / 3 * 2 / 3)


def test_limits():
    assert np.isnan(metrics.auroc(np.array([[0.9, 0.1]]), [0]))
    assert metrics.aurc(np.array([[0.9, 0.1], [0.8, 0.2]]), [0, 0]) == 0
    assert metrics.aurc(np.array([[0.9, 0.1], [0.8, 0.2]]), [1, 1]) == 1
    assert metrics.auroc(np.full((4, 2), 0.5), [0, 1, 0, 1]) == 0.5
