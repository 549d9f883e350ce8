"""Sums over drawn labels against plain loops and exact moments."""

from __future__ import annotations

import numpy as np
import pytest

from arrays import draw_calibrated
from refocal.stats import label_sums
from refocal.stats.label_sums import PredictedRows, sum_labels


def rows_of(probs, labels, *, weights=None, cells=4):
    count = len(labels)
    with np.errstate(divide="ignore"):
        log_probs = np.log(probs)
    top = probs.argmax(axis=1)
    cell = np.minimum((probs.max(axis=1) * cells).astype(int), cells - 1)
    scale = np.ones(count) if weights is None else weights
    return PredictedRows(probs, log_probs, labels, scale, top, np.zeros(count, dtype=int), cell)


def loop(rows, labels, *, cells=4):
    """The residual sums of these labels, row by row."""
    classes = rows.probs.shape[1]
    temperature, frequency, hits = np.zeros(classes), np.zeros(classes), np.zeros(cells)
    for p, y, w, claimed, cell in zip(rows.probs, labels, rows.weights, rows.claimed, rows.cell, strict=True):
        mean = sum(a * np.log(a) for a in p if a > 0)
        temperature[p.argmax()] += w * (np.log(p[y]) - mean)
        for k in range(classes):
            frequency[k] += w * ((y == k) - p[k])
        hits[cell] += w * ((y == claimed) - p[claimed])
    return np.concatenate([temperature, frequency, hits])


def draw(rows, *, resamples, seed=0, cells=4, **options):
    misses = float((1 - rows.probs.max(axis=1)).sum())
    settings = {"misses": misses, "effective": len(rows.labels), "count": len(rows.labels), **options}
    rng = np.random.default_rng(seed)
    classes = rows.probs.shape[1]
    return sum_labels([rows], groups=classes, cells=cells, resamples=resamples, rng=rng, **settings)


def example(count=40, classes=5, seed=0):
    rng = np.random.default_rng(seed)
    probs, labels = draw_calibrated(rng, (count, classes))
    return rows_of(probs, labels, weights=rng.uniform(0.5, 2.0, count))


def test_observed_sums_are_those_of_a_loop():
    rows = example()
    np.testing.assert_allclose(draw(rows, resamples=2).observed, loop(rows, rows.labels), rtol=1e-12, atol=1e-12)


def test_moments_are_those_of_all_labels():
    rows = example(count=6, classes=3)
    found = draw(rows, resamples=2)
    second, fourth = np.zeros(10), np.zeros(10)
    for i in range(6):
        one = PredictedRows(*(part[i : i + 1] for part in rows))
        for y in range(3):
            value = loop(one, [y])
            second += rows.probs[i, y] * value**2
            fourth += rows.probs[i, y] * value**4
    np.testing.assert_allclose(found.variance, second, rtol=1e-12)
    np.testing.assert_allclose(found.fourth, fourth, rtol=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 7, 10])
def test_drawn_labels_have_the_predicted_probabilities(classes):
    """One row: its frequency sums tell the label. A class of probability 0 is never drawn."""
    probs = np.random.default_rng(classes).dirichlet(np.ones(classes), 1)
    probs[0, 0] = 0.0
    probs /= probs.sum()
    found = draw(rows_of(probs, np.array([1])), resamples=20_000)
    labels = (found.simulated[:, found.frequency] + probs).argmax(axis=1)
    shares = np.bincount(labels, minlength=classes) / 20_000
    assert shares[0] == 0
    np.testing.assert_allclose(shares, probs[0], atol=4.5 * 0.5 / np.sqrt(20_000))
    expected = np.array([loop(rows_of(probs, np.array([1])), [y]) for y in labels[:50]])
    np.testing.assert_allclose(found.simulated[:50], expected, atol=1e-12)


def test_means_and_covariances_of_drawn_sums():
    rows = example()
    found = draw(rows, resamples=20_000).simulated
    variance = draw(rows, resamples=2).variance
    used = variance > 0
    assert np.all(np.abs(found.mean(axis=0))[used] < 4.5 * np.sqrt(variance[used] / 20_000))
    np.testing.assert_allclose(found.var(axis=0)[used], variance[used], rtol=0.2)
    # frequencies: the covariance of two classes is -sum of w^2 p_j p_k
    frequency = found[:, 5:10]
    expected = -(rows.weights**2 * rows.probs[:, 0] * rows.probs[:, 1]).sum()
    assert np.cov(frequency.T)[0, 1] == pytest.approx(expected, abs=0.1 * np.sqrt(variance[5] * variance[6]))


def test_pieces_keep_means_and_variances(monkeypatch):
    """Labels of pieces that are drawn 64 times each have the same means, variances and correlations."""
    rows = example(count=2000)
    monkeypatch.setattr(label_sums, "_MOST_MISSES", 1.0)
    monkeypatch.setattr(label_sums, "_MANY_SAMPLES", 100)
    found = draw(rows, resamples=5000)
    used = found.variance > 0
    deviation = np.sqrt(found.variance[used])
    assert np.all(np.abs(found.simulated[:, used].mean(axis=0)) < 0.08 * deviation)
    np.testing.assert_allclose(found.simulated[:, used].std(axis=0), deviation, rtol=0.06)
    many = found.variance > 10  # sums of one or two rows are drawn too rarely
    monkeypatch.setattr(label_sums, "_MOST_MISSES", 1e9)
    whole = draw(rows, resamples=5000)
    expected = np.corrcoef(whole.simulated[:, many].T)
    np.testing.assert_allclose(np.corrcoef(found.simulated[:, many].T), expected, atol=0.12)
    monkeypatch.setattr(label_sums, "_MOST_MISSES", 1.0)
    np.testing.assert_allclose(found.observed, loop(rows, rows.labels), rtol=1e-9, atol=1e-9)
    exact = draw(rows, resamples=100, effective=50)  # too few effective samples to draw pieces
    monkeypatch.undo()
    np.testing.assert_array_equal(exact.simulated, draw(rows, resamples=100).simulated)


def test_an_impossible_label_is_noticed_unless_its_weight_is_0():
    probs = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    for weights, possible in (([1.0, 1.0], False), ([0.0, 1.0], True)):
        rows = rows_of(probs, np.array([2, 2]), weights=np.array(weights))
        found = draw(rows, resamples=10)
        assert found.possible == possible
        assert np.isfinite(found.observed).all()
