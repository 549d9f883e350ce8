"""Venn-Abers calibration, beside two isotonic regressions for each new score."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from labeled_logits import draw_calibrated

from reference import refit_venn_abers
from refocal.calibrators import IsotonicCalibration, VennAbersCalibration
from refocal.calibrators.venn_abers import fit_with_one


def check_against_oracle(scores, labels, places, weights=None):
    calibrator = VennAbersCalibration(input="logits", classes=[0, 1]).fit(scores, labels, weights)
    found = calibrator.predict_interval(places)
    expected = np.array([refit_venn_abers(scores, labels, place, weights) for place in places])
    np.testing.assert_allclose(found[:, 1], expected, atol=1e-9)
    np.testing.assert_allclose(found[:, 0], 1 - expected[:, ::-1], atol=1e-9)
    low, high = expected.T
    np.testing.assert_allclose(calibrator.predict_proba(places)[:, 1], high / (1 - low + high), atol=1e-9)


def list_places(scores):
    """Every score, a place between each two, and places beyond both ends."""
    distinct = np.unique(np.asarray(scores, dtype=float))
    return np.concatenate([distinct, (distinct[1:] + distinct[:-1]) / 2, [distinct[0] - 2, distinct[-1] + 2]])


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=1, max_size=25))
def test_every_place_against_two_isotonic_regressions(pairs):
    """Few distinct scores, so there are ties, and new scores that equal old ones."""
    scores, labels = np.array([pair[0] for pair in pairs]) / 2, np.array([pair[1] for pair in pairs]).astype(int)
    check_against_oracle(scores, labels, list_places(scores))


@pytest.mark.parametrize("seed", range(5))
def test_continuous_scores_against_two_isotonic_regressions(seed):
    rng = np.random.default_rng(seed)
    scores = 2 * rng.standard_normal(150)
    labels = (rng.random(150) < 1 / (1 + np.exp(-scores))).astype(int)
    check_against_oracle(scores, labels, list_places(scores))
    weights = rng.choice([0.3, 1.0, 2.5], 150)
    counted = weights * weights.sum() / (weights**2).sum()  # what the weight of the new score, 1, is relative to
    check_against_oracle(scores, labels, list_places(scores)[::5], counted)
    scaled, plain = (VennAbersCalibration().fit(scores, labels, w).predict_interval(scores) for w in (weights, counted))
    np.testing.assert_allclose(scaled, plain, rtol=1e-12)


def test_a_weight_counts_as_repeated_samples():
    rng = np.random.default_rng(0)
    scores, labels, weights = rng.standard_normal(80), rng.integers(0, 2, 80), rng.integers(0, 4, 80)
    weighted = VennAbersCalibration().fit(scores, labels, weights)
    repeated = VennAbersCalibration().fit(np.repeat(scores, weights), np.repeat(labels, weights))
    places = list_places(scores)
    np.testing.assert_array_equal(weighted.predict_interval(places), repeated.predict_interval(places))


def test_fits_with_one_more_sample_by_hand():
    # 0 1 0 1: a further 1 before the first 0 pools with it; before the 1, with "1 0"; and so on.
    np.testing.assert_allclose(fit_with_one(np.ones(4), np.array([0, 1, 0, 1])), [1 / 2, 2 / 3, 2 / 3, 1])
    # The ones on the left pool with a further 1, because the zeros on the right are more.
    np.testing.assert_allclose(fit_with_one(np.array([100, 100]), np.array([100, 0])), [101 / 201, 101 / 201])


def test_scores_that_come_back_keep_their_interval():
    """Equal rows give log-odds that differ by rounding if another class comes first."""
    rng = np.random.default_rng(1)
    rows = 3 * rng.standard_normal((40, 3))
    labels = np.arange(40) % 3
    calibrator = VennAbersCalibration().fit(rows, labels)
    order = [2, 0, 1]
    moved = VennAbersCalibration().fit(rows[:, order], np.argsort(order)[labels])
    found = calibrator.predict_interval(rows)
    np.testing.assert_allclose(moved.predict_interval(rows[:, order]), found[:, order], atol=1e-12)
    np.testing.assert_allclose(calibrator.predict_interval(rows + 100), found, atol=1e-12)


def test_several_classes_are_one_against_the_rest():
    logits, labels = draw_calibrated(120, 4)
    calibrator = VennAbersCalibration().fit(logits, labels)
    intervals = calibrator.predict_interval(logits)
    assert intervals.shape == (120, 4, 2)
    shifted = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for k in range(4):
        log_odds = shifted[:, k] - np.log1p(-np.exp(shifted[:, k]))
        alone = VennAbersCalibration().fit(log_odds, labels == k)
        np.testing.assert_allclose(intervals[:, k], alone.predict_interval(log_odds)[:, 1], atol=1e-12)
    low, high = intervals[..., 0], intervals[..., 1]
    single = high / (1 - low + high)
    np.testing.assert_allclose(calibrator.predict_proba(logits), single / single.sum(axis=1, keepdims=True))


def test_the_interval_holds_the_isotonic_fit_and_shrinks_with_samples():
    widths = []
    for rows in (200, 2000, 20_000):
        rng = np.random.default_rng(rows)
        scores = 2 * rng.standard_normal(rows)
        labels = rng.random(rows) < 1 / (1 + np.exp(-scores))
        calibrator = VennAbersCalibration().fit(scores, labels)
        low, high = calibrator.predict_interval(scores)[:, 1].T
        assert (low < high).all()
        assert (low >= 0).all()
        assert (high <= 1).all()
        fit = IsotonicCalibration().fit(scores, labels).predict_proba(scores)[:, 1]
        assert ((fit > low - 1 / rows) & (fit < high + 1 / rows)).all()
        probs = calibrator.predict_proba(scores)[:, 1]
        assert ((probs > low) & (probs < high)).all()
        widths.append(np.mean(high - low))
    assert widths[0] > 2 * widths[1] > 4 * widths[2]


@pytest.mark.thorough
def test_one_of_the_two_ends_is_calibrated():
    """The average of p_y, the end of the interval that belongs to the true label, is the rate of label 1."""
    rng = np.random.default_rng(0)
    found, came = [], []
    for _ in range(4000):
        scores = rng.integers(0, 3, 7).astype(float)  # very few samples: isotonic regression alone is far off
        labels = rng.random(7) < 0.1 + 0.3 * scores
        calibrator = VennAbersCalibration(input="logits", classes=[False, True]).fit(scores[:6], labels[:6])
        low, high = calibrator.predict_interval(scores[6:])[0, 1]
        found.append(high if labels[6] else low)
        came.append(labels[6])
    found, came = np.array(found), np.array(came)
    gap = found - came
    assert abs(gap.mean()) < 4 * gap.std() / np.sqrt(len(gap))
    for value in (0.5, 2 / 3, 0.75, 1.0):  # frequent values of p_y
        chosen = np.abs(found - value) < 1e-12
        assert chosen.sum() > 40
        error = np.sqrt(max(value * (1 - value), 1e-4) / chosen.sum())
        assert abs(came[chosen].mean() - value) < 4 * error, value


def test_scores_far_outside():
    calibrator = VennAbersCalibration().fit([-1.0, 0.0, 1.0, 2.0], [0, 1, 0, 1])
    np.testing.assert_allclose(calibrator.predict_interval([-1e9, 1e9])[:, 1], [[0, 0.5], [0.5, 1]])
    with pytest.raises(ValueError, match="expecting 1 features"):
        calibrator.predict_interval(np.zeros((3, 3)))
