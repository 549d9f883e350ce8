"""Means over samples against scikit-learn, loops and limits."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
from scipy.special import log_softmax, softmax

from arrays import draw_calibrated
from refocal import metrics
from refocal.stats.proper_scores import brier_scores, softmax_and_scores, truth_of_logits


def test_proper_scores_equal_scikit_learn():
    rng = np.random.default_rng(0)
    probs, labels = draw_calibrated(rng, (500, 4))
    weights = rng.random(500)
    classes = list(range(4))
    for scale in (None, weights):
        expected = sklearn.metrics.log_loss(labels, probs, sample_weight=scale, labels=classes)
        assert metrics.nll(probs, labels, sample_weight=scale) == pytest.approx(expected, rel=1e-12)
        expected = sklearn.metrics.brier_score_loss(labels, probs, sample_weight=scale, labels=classes)
        assert metrics.brier(probs, labels, sample_weight=scale) == pytest.approx(expected, rel=1e-12)
        expected = 1 - sklearn.metrics.accuracy_score(labels, probs.argmax(axis=1), sample_weight=scale)
        assert metrics.error(probs, labels, sample_weight=scale) == pytest.approx(expected, rel=1e-12)


def test_the_binary_brier_score_is_half_of_the_two_class_one():
    rng = np.random.default_rng(1)
    probs, labels = draw_calibrated(rng, (300, 2))
    binary = metrics.brier(probs[:, 1], labels, task="binary")
    assert binary == pytest.approx(sklearn.metrics.brier_score_loss(labels, probs[:, 1]), rel=1e-12)
    assert metrics.brier(probs, labels) == pytest.approx(2 * binary, rel=1e-12)


def test_scores_against_loops():
    rng = np.random.default_rng(2)
    probs, labels = draw_calibrated(rng, (100, 3))
    posterior, _ = draw_calibrated(rng, (100, 3))
    focal = np.mean([-((1 - row[y]) ** 1.5) * np.log(row[y]) for row, y in zip(probs, labels, strict=True)])
    assert metrics.focal_score(probs, labels, gamma=1.5) == pytest.approx(focal, rel=1e-12)
    assert metrics.focal_score(probs, labels, gamma=0) == pytest.approx(metrics.nll(probs, labels), rel=1e-12)
    kl = np.mean(
        [sum(t * np.log(t / p) for t, p in zip(a, b, strict=True)) for a, b in zip(posterior, probs, strict=True)]
    )
    assert metrics.kl_to_posterior(probs, posterior) == pytest.approx(kl, rel=1e-12)
    inside = probs.max(axis=1) >= 0.8
    share = metrics.confidence_share(probs, labels, threshold=0.8)
    assert share.share == pytest.approx(inside.mean())
    assert share.accuracy == pytest.approx((probs.argmax(axis=1) == labels)[inside].mean())
    nobody = metrics.confidence_share(np.array([[0.5, 0.5]]), [0])
    assert nobody.share == 0
    assert np.isnan(nobody.accuracy)


@pytest.mark.parametrize("task", ["multiclass", "binary"])
def test_logits_give_the_same_as_their_probabilities(task):
    rng = np.random.default_rng(3)
    logits = 3 * rng.standard_normal((200, 4))
    labels = rng.integers(0, 4, 200)
    probs = softmax(logits, axis=1)
    if task == "binary":
        logits, labels = logits[:, 0], labels % 2
        probs = 1 / (1 + np.exp(-logits))
    for name, settings in (("nll", {}), ("brier", {}), ("focal_score", {"gamma": 2.0}), ("ece", {})):
        from_logits = getattr(metrics, name)(logits, labels, input="logits", task=task, **settings)
        assert from_logits == pytest.approx(getattr(metrics, name)(probs, labels, task=task, **settings), rel=1e-9)


def test_nothing_saturates_from_logits():
    logits = np.array([[60.0, 0.0, -5.0]])
    assert metrics.nll(logits, [0], input="logits") == pytest.approx(np.exp(-60) + np.exp(-65), rel=1e-12)
    exact = (np.exp(-60) + np.exp(-65)) ** 3
    assert metrics.focal_score(logits, [0], gamma=2.0, input="logits") == pytest.approx(exact, rel=1e-12)
    assert metrics.nll(np.array([800.0]), [0], task="binary", input="logits") == pytest.approx(800.0)
    posterior = np.array([[0.5, 0.5]])
    expected = np.sum(posterior * (np.log(posterior) - log_softmax([[2000.0, 0.0]], axis=1)))
    assert metrics.kl_to_posterior(np.array([[2000.0, 0.0]]), posterior, input="logits") == pytest.approx(expected)
    masked = np.array([[0.0, -np.inf]])
    assert metrics.kl_to_posterior(masked, np.array([[1.0, 0.0]]), input="logits") == 0


def test_impossible_labels_cost_infinity_unless_their_weight_is_0():
    probs = np.array([[1.0, 0.0], [0.5, 0.5]])
    assert metrics.nll(probs, [1, 0]) == np.inf
    assert metrics.nll(probs, [1, 0], sample_weight=[0.0, 1.0]) == pytest.approx(np.log(2))
    assert metrics.kl_to_posterior(probs, np.array([[0.5, 0.5], [0.5, 0.5]])) == np.inf


def test_ties_go_to_the_first_class():
    probs = np.array([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]])
    wide = np.concatenate([probs, np.zeros((2, 40))], axis=1)
    for rows in (probs, wide):
        assert metrics.error(rows, [0, 1]) == 0
        assert metrics.error(rows, [1, 2]) == 1


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: metrics.focal_score(p, [0], gamma=-1), ValueError, "gamma must be greater than -1"),
        (lambda p: metrics.confidence_share(p, [0], threshold=1), ValueError, "threshold must lie strictly between"),
        (lambda p: metrics.kl_to_posterior(p, p[:, :1]), ValueError, "scores and posterior must have the same shape"),
        (lambda p: metrics.kl_to_posterior(p, 2 * p), ValueError, "rows of posterior must sum to 1"),
        (
            lambda p: metrics.kl_to_posterior(p[0], p[0]),
            ValueError,
            r"scores and posterior must have shape \(N, classes\), got \(2,\)",
        ),
    ],
)
def test_bad_settings(call, error, message):
    with pytest.raises(error, match=message):
        call(np.array([[0.5, 0.5]]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax_and_scores_agree_with_the_separate_functions(dtype):
    rng = np.random.default_rng(5)
    logits = (5 * rng.standard_normal((400, 6))).astype(dtype)
    logits[:20] *= 200  # saturated
    logits[20:40, 3] = -np.inf  # masked
    logits[40:60] = 1.5  # tied
    labels = rng.integers(0, 6, 400)
    before = logits.copy()
    probs, log_p, squares = softmax_and_scores(logits, labels)
    np.testing.assert_array_equal(logits, before)
    np.testing.assert_allclose(probs, softmax(logits.astype(np.float64), axis=1), rtol=1e-12)
    np.testing.assert_allclose(log_p, truth_of_logits(logits, labels)[0], rtol=1e-14)
    np.testing.assert_allclose(squares, brier_scores(probs, labels), rtol=1e-12, atol=1e-19)  # 1 - p is rounded


def test_scores_of_logits_do_not_saturate():
    logits = np.array([[30.0, 0.0], [0.0, 800.0], [0.0, 40.0], [1e-12, 0.0]])
    _, log_p, squares = softmax_and_scores(logits, np.array([0, 1, 0, 1]))
    np.testing.assert_allclose(log_p[:3], [-np.exp(-30.0), 0.0, -40.0], rtol=1e-12)
    assert log_p[3] == pytest.approx(-np.log(2), rel=1e-12)
    np.testing.assert_allclose(squares[:3], [2 * np.exp(-60.0), 0.0, 2.0], rtol=1e-12)
