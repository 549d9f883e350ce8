"""Decisions by a threshold and by costs."""

from __future__ import annotations

import numpy as np
import pytest

import refocal
from refocal.report.decision_tables import describe_changed, describe_threshold
from refocal.report.decisions import read_costs, sweep_thresholds, weigh_costs
from refocal.report.page import render_page


@pytest.fixture(scope="module")
def binary():
    rng = np.random.default_rng(0)
    p = rng.beta(0.5, 2, size=4000)
    return p, (rng.random(4000) < p / 2).astype(int)  # twice too high


def test_threshold_counts_are_those_of_a_loop(binary):
    p, labels = binary
    after = p / 2
    found = sweep_thresholds([np.stack([1 - p, p], axis=1), np.stack([1 - after, after], axis=1)], labels, None)
    assert found.thresholds[0] == 0.01
    assert found.thresholds[-1] == 0.99
    assert found.positives == labels.sum()
    for index in (0, 9, 49, 98):
        threshold = found.thresholds[index]
        assert found.flagged_given[index] == np.sum(p >= threshold)
        assert found.hits_given[index] == np.sum(labels[p >= threshold])
        assert found.flagged_chosen[index] == np.sum(after >= threshold)
        assert found.hits_chosen[index] == np.sum(labels[after >= threshold])
        assert found.changed[index] == np.sum((p >= threshold) != (after >= threshold))


def test_weights_count_as_repeated_rows(binary):
    p, labels = (part[:300] for part in binary)
    probs = np.stack([1 - p, p], axis=1)
    weight = np.random.default_rng(0).integers(1, 4, size=300)
    repeated = np.repeat(probs, weight, axis=0)
    assert sweep_thresholds([probs], labels, weight) == sweep_thresholds([repeated], np.repeat(labels, weight), None)
    costs = np.array([[0.0, 1.0], [5.0, 0.0]])
    one, other = (
        weigh_costs([probs], labels, weight, costs),
        weigh_costs([repeated], np.repeat(labels, weight), None, costs),
    )
    assert one.given.promised == pytest.approx(other.given.promised)
    assert one.given.actual.value == pytest.approx(other.given.actual.value)


def test_calibration_makes_costs_what_they_promise_and_smaller(binary):
    p, labels = binary
    selection = refocal.calibrate(p[:2000], labels[:2000], input="probs", method="isotonic")
    report = selection.report(p[2000:], labels[2000:], costs=[[0, 1], [4, 0]])
    costs = report.costs
    assert costs.costs == ((0.0, 1.0), (4.0, 0.0))
    assert costs.chosen.actual.low <= costs.chosen.promised <= costs.chosen.actual.high
    assert costs.chosen.actual.value < costs.given.actual.value
    before, after = p[2000:] >= 0.2, selection.predict_proba(p[2000:])[:, 1] >= 0.2
    assert costs.changed == pytest.approx(np.mean(before != after), abs=2e-3)
    page = render_page(report)
    assert f"{100 * costs.changed:.2f}% of the decisions change." in page
    assert f"<td>{costs.given.promised:.4f}</td>" in page


def test_costs_of_errors_are_the_error_rate():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(4), size=500)
    labels = rng.integers(0, 4, size=500)
    report = refocal.evaluate(probs, labels, input="probs", costs=1 - np.eye(4))
    assert report.costs.given.actual.value == pytest.approx(report.given.measures["error"].value)
    assert report.costs.given.promised == pytest.approx(1 - probs.max(axis=1).mean())
    assert (report.costs.chosen, report.costs.changed) == (None, 0.0)
    assert report.thresholds is None


def test_the_page_shows_the_decisions_at_one_half(binary):
    p, labels = binary
    report = refocal.evaluate(p, labels, input="probs", class_names=("stays", "<i>leaves</i>"))
    page = render_page(report)
    flagged = np.sum(p >= 0.5)
    assert f"<td id='decision-given-flagged'>{flagged:,}</td>" in page
    assert "decision-chosen" not in page.partition("<script")[0]
    assert "<bdi>&lt;i&gt;leaves&lt;/i&gt;</bdi> is at least the threshold" in page


def test_numbers_in_words():
    probs = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8]])
    found = sweep_thresholds([probs, probs[:, ::-1]], np.array([0, 0, 1]), None)
    assert describe_threshold(found, 49, "given") == {
        "flagged": "2",
        "precision": "50.0%",
        "recall": "100.0%",
        "alarms": "1",
        "missed": "0",
        "cost": "333.3",
    }
    assert describe_threshold(found, 98, "given")["precision"] == "–"
    assert describe_changed(found, 49) == "3 decisions change (100.0%)."
    assert found.total == 3
    assert describe_changed(found, 98) == "No decision changes."
    assert describe_changed(found, 84) == "1 decision changes (33.3%)."


@pytest.mark.parametrize(
    ("costs", "error", "message"),
    [
        ([[0, 1]], ValueError, r"costs must have shape \(2, 2\), one row per class, got shape \(1, 2\)"),
        ([0, 1], ValueError, r"got shape \(2,\)"),
        (5, ValueError, r"got shape \(\)"),
        ([], ValueError, r"got shape \(0,\)"),
        ([[0, 1], [2]], ValueError, "costs must be an array or nested lists of equal lengths"),
        ([["a", "b"], ["c", "d"]], TypeError, "costs must be real numbers, got <U1"),
        ([[0, 1j], [1, 0]], TypeError, "costs must be real numbers, got complex128"),
        ([[0, None], [1, 0]], ValueError, "costs must not have missing values, got None in row 0"),
        ([[0, np.inf], [1, 0]], ValueError, "costs must be finite, got inf for class 0 and decision 1"),
        ([[0, 1], [np.nan, 0]], ValueError, "costs must be finite, got nan for class 1 and decision 0"),
        ("0 1", TypeError, "costs must be a list, an array, a tensor, a frame or a series, got str"),
        ({"a": 1}, TypeError, "costs must be a list, .* got dict"),
        (np.ma.array(np.eye(2), mask=np.eye(2)), TypeError, "costs must not be a masked array"),
    ],
)
def test_wrong_costs_are_refused(costs, error, message):
    with pytest.raises(error, match=message):
        read_costs(costs, 2)


def test_wrong_costs_are_refused_before_any_measure(binary):
    with pytest.raises(ValueError, match=r"costs must have shape \(2, 2\)"):
        refocal.evaluate(*binary, input="probs", costs=1 - np.eye(3))


def test_costs_may_be_negative():
    """A right decision may earn something."""
    assert read_costs([[-1, 2], [0, True]], 2).tolist() == [[-1.0, 2.0], [0.0, 1.0]]
    assert read_costs(None, 2) is None
