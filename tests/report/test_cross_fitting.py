"""One set of data: each row is measured by calibrators that were not fitted to it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

import refocal
from refocal.calibrators import TemperatureScaling
from refocal.report import build_table, cross_calibrate, hold_out, render_page


def draw(rows, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    logits = 2 * rng.standard_normal((rows, classes))
    return 3 * logits, np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)


@pytest.mark.parametrize("weighted", [False, True])
def test_each_row_is_measured_by_a_fit_to_other_rows(weighted):
    logits, labels = draw(1000)
    weights = np.random.default_rng(1).choice([0.5, 2.0], 1000) if weighted else None
    found = cross_calibrate(logits, labels, method="temperature", sample_weight=weights, folds=4, seed=7)
    expected = np.empty((1000, 3))
    for test in np.array_split(np.random.default_rng(7).permutation(1000), 4):
        train = np.delete(np.arange(1000), test)
        some = None if weights is None else weights[train]
        expected[test] = TemperatureScaling().fit(logits[train], labels[train], some).predict_proba(logits[test])
    np.testing.assert_allclose(found.probs, expected)
    measured = refocal.evaluate(expected, labels, input="probs", sample_weight=weights)
    assert found.report.chosen.measures["nll"] == measured.given.measures["nll"]
    whole = TemperatureScaling().fit(logits, labels, weights)
    assert found.selection.chosen.calibrator.temperature_ == whole.temperature_
    np.testing.assert_array_equal(found.selection.predict_proba(logits), whole.predict_proba(logits))
    given = refocal.evaluate(logits, labels, sample_weight=weights).given
    assert found.report.given.measures == given.measures
    assert found.report.given.p_value == given.p_value


def test_it_sees_the_overfitting_that_a_fit_to_the_same_rows_hides():
    logits, labels = draw(300, 10)
    found = cross_calibrate(logits, labels, method="isotonic")
    same_rows = refocal.evaluate(found.selection.predict_proba(logits), labels, input="probs").given
    measured = found.report.chosen.measures["nll"]
    assert measured.value > same_rows.measures["nll"].value + 0.03


def test_the_protocol_is_stated():
    logits, labels = draw(200)
    report = cross_calibrate(logits, labels, method="temperature").report
    sentence = "Cross-fitting in 5 folds: each row is measured by calibrators that were fitted to the other folds."
    assert report.protocol.startswith(sentence)
    assert "fitted to all 200 rows" in report.protocol
    console = Console(file=io.StringIO(), width=400)
    console.print(build_table(report))
    assert sentence in console.file.getvalue()
    assert sentence in render_page(report)
    assert refocal.calibrate(logits, labels, method="temperature").report(logits, labels).protocol == ""


def test_one_column_and_rare_classes():
    rng = np.random.default_rng(0)
    log_odds = 3 * rng.standard_normal(300)
    outcome = (rng.random(300) < 1 / (1 + np.exp(-log_odds))).astype(int)
    assert cross_calibrate(log_odds, outcome, method="temperature").probs.shape == (300, 2)
    logits, labels = draw(300, 4)
    labels = np.where(labels == 3, 0, labels)
    labels[5] = 3  # the only one of its class: one fold has it, the fits to the others have not
    assert np.isfinite(cross_calibrate(logits, labels, method="vector").probs).all()


def test_rows_held_out():
    rows = hold_out(1000, 0.3, seed=3)
    assert (len(rows.fitted), len(rows.measured)) == (700, 300)
    np.testing.assert_array_equal(np.sort(np.concatenate([rows.fitted, rows.measured])), np.arange(1000))
    np.testing.assert_array_equal(rows.measured, hold_out(1000, 0.3, seed=3).measured)
    assert not np.array_equal(rows.measured, hold_out(1000, 0.3, seed=4).measured)
    assert "Measured on 300 rows held out at random, 30% of all (seed 3)" in rows.protocol


def test_settings_are_checked_before_any_fit(monkeypatch):
    monkeypatch.setattr("refocal.report.selection._fit", lambda *_: pytest.fail("fitted"))
    logits, labels = draw(50)
    with pytest.raises(ValueError, match=r"slices\['site'\] must have one value for each of 50 rows"):
        cross_calibrate(logits, labels, slices={"site": [1, 2]})
    with pytest.raises(ValueError, match=r"costs must have shape \(\d+, \d+\)"):
        cross_calibrate(logits, labels, costs=[[0.0]])
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        cross_calibrate(logits, labels, seed=-1)
    with pytest.raises(ValueError, match="folds must be 2 to 50, got 1"):
        cross_calibrate(logits, labels, method="temperature", folds=1)
    with pytest.raises(TypeError, match=r"seed must be a whole number, at least 0, got 0\.5"):
        cross_calibrate(logits, labels, method="temperature", seed=0.5)
    with pytest.raises(ValueError, match="holdout must lie strictly between 0 and 1, got 1"):
        hold_out(10, 1)
    with pytest.raises(ValueError, match=r"holdout must leave rows on both sides, got 0\.01 of 10 rows"):
        hold_out(10, 0.01)
