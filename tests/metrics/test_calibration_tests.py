"""The test of calibration against an enumeration of all labels, and its invariances."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import kstest

from arrays import draw_calibrated, sharpen
from reference import loop_calibration_statistics
from refocal import metrics
from refocal.stats.calibrated_sums import combine, find_levels

NAMES = ("temperature", "frequencies", "classes", "bins", "cumulative")
SHARES = np.array([0.25, 0.25, 0.05, 0.3, 0.15])


def enumerate_p_values(probs, labels, *, weights=None, task="multiclass", bins=15):
    """Exact p-values: the statistics of all label vectors, and the probability of those that are as large."""
    rows = np.stack([1 - probs, probs], axis=1) if task == "binary" else probs
    vectors = list(itertools.product(range(rows.shape[1]), repeat=len(rows)))
    chance = np.array([np.prod(rows[np.arange(len(rows)), vector]) for vector in vectors])
    scale = np.ones(len(rows)) if weights is None else weights
    statistics = np.array(
        [loop_calibration_statistics(rows, vector, scale, binary=task == "binary", bins=bins) for vector in vectors]
    )

    def rank(values):
        larger = values[None, :] >= values[:, None] - 1e-9 * np.maximum(1, np.abs(values[:, None]))
        return larger @ chance

    parts = np.stack([rank(column) for column in statistics.T], axis=1)
    together = rank(-np.log(combine(parts, SHARES)))
    here = vectors.index(tuple(int(label) for label in labels))
    return np.append(parts[here], together[here])


def found_p_values(*data, **options):
    found = metrics.calibration_test(*data, **options)
    return np.append(found.parts, found.p_value)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("task", "count", "classes"), [("multiclass", 5, 3), ("multiclass", 7, 2), ("binary", 9, 2)])
def test_p_values_are_those_of_all_labels(task, count, classes, weighted):
    rng = np.random.default_rng(count)
    probs, labels = draw_calibrated(rng, (count, classes), spread=1.5)
    if task == "binary":
        probs = probs[:, 1]
    weights = rng.uniform(0.5, 3.0, count) if weighted else None
    for truth in (labels, rng.integers(0, classes, count)):
        expected = enumerate_p_values(probs, truth, weights=weights, task=task)
        found = found_p_values(probs, truth, sample_weight=weights, task=task, resamples=20_000)
        np.testing.assert_allclose(found[:5], expected[:5], atol=4.5 * 0.5 / np.sqrt(20_000))
        # the parts' own ranks are simulated, too, and many label vectors are close to a tie
        assert found[5] == pytest.approx(expected[5], abs=0.04)


def test_cells_of_the_reference_are_those_of_the_library():
    probs = np.array([0.5, 0.7, 0.9, 0.99])
    assert find_levels(probs).tolist() == [int((np.log(p / (1 - p)) + 16) * 4) for p in probs]


@pytest.mark.thorough
def test_p_values_of_calibrated_models_are_uniform():
    """Kolmogorov-Smirnov test at 1e-3 over calibrated samples: uncertain ones, weighted ones, nearly certain ones."""
    for count, spread, weighted in ((300, 2.0, False), (300, 2.0, True), (1500, 6.0, False)):
        values = []
        for seed in range(150):
            rng = np.random.default_rng(seed)
            probs, labels = draw_calibrated(rng, (count, 4), spread=spread)
            weights = rng.lognormal(0, 1, count) if weighted else None
            values.append(metrics.calibration_test(probs, labels, sample_weight=weights, resamples=100).p_value)
        assert kstest(values, "uniform").pvalue > 1e-3


def biased(probs, size):
    mass = probs * np.exp(
        np.where(np.arange(probs.shape[1]) == 0, size, np.where(np.arange(probs.shape[1]) == 1, -size, 0))
    )
    return mass / mass.sum(axis=1, keepdims=True)


def by_class(probs):
    even = (probs.argmax(axis=1) % 2 == 0)[:, None]
    return np.where(even, sharpen(probs, power=0.6), sharpen(probs, power=1.6))


def alternate(probs):
    top = probs.max(axis=1)
    right = np.clip(top + 0.08 * np.sign(np.sin(40 * top)), 0.01, 0.99)
    return np.where(probs == top[:, None], right[:, None], probs * ((1 - right) / (1 - top))[:, None])


def late(probs):
    top = probs.max(axis=1)
    right = np.where(top > 0.99, top - 0.04, top)
    return np.where(probs == top[:, None], right[:, None], probs * ((1 - right) / (1 - top))[:, None])


@pytest.mark.parametrize(
    ("part", "truth", "spread"),
    [
        ("temperature", lambda probs: sharpen(probs, power=0.85), 2.0),
        ("frequencies", lambda probs: biased(probs, 0.5), 2.0),
        ("classes", by_class, 2.0),
        ("bins", alternate, 3.0),
        ("cumulative", late, 4.0),
    ],
)
def test_each_part_sees_its_error(part, truth, spread):
    rng = np.random.default_rng(0)
    probs, _ = draw_calibrated(rng, (3000, 6), spread=spread)
    labels = (truth(probs).cumsum(axis=1) < rng.random((3000, 1))).sum(axis=1).clip(0, 5)
    found = metrics.calibration_test(probs, labels)
    assert found.p_value < 0.01
    assert getattr(found.parts, part) == min(found.parts) == 1 / 1001
    assert found.parts._fields == NAMES


def test_errors_and_their_mean_are_those_of_ece():
    probs, labels = draw_calibrated(np.random.default_rng(0), (2000, 3))
    sharp = sharpen(probs, power=1.5)
    wrong = metrics.calibration_test(sharp, labels)
    assert wrong.p_value == 1 / 1001
    assert wrong.strongest == "temperature"
    for binning, norm in (("equal_width", "l1"), ("equal_mass", "l2"), ("guo2017", "max"), ("mukhoti2020", "l1")):
        found = metrics.calibration_test(sharp, labels, binning=binning, norm=norm, bins=12)
        expected = metrics.ece(sharp, labels, binning=binning, norm=norm, bins=12)
        assert found.value == pytest.approx(expected, rel=1e-9)
        assert found.expected < 0.7 * found.value
    drawn = [
        metrics.ece(sharp, (sharp.cumsum(axis=1) < rng.random((2000, 1))).sum(axis=1).clip(0, 2))
        for rng in map(np.random.default_rng, range(60))
    ]
    assert wrong.expected == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / np.sqrt(60))


def test_scaled_weights_and_repeated_seeds_change_nothing():
    rng = np.random.default_rng(1)
    probs, labels = draw_calibrated(rng, (500, 3))
    weights = rng.random(500)
    first = metrics.calibration_test(probs, labels, sample_weight=weights, seed=3)
    again = metrics.calibration_test(probs, labels, sample_weight=weights, seed=np.random.default_rng(3))
    assert again == first
    assert metrics.calibration_test(probs, labels, sample_weight=weights, seed=4) != first
    scaled = metrics.calibration_test(probs, labels, sample_weight=1000 * weights, seed=3)
    np.testing.assert_allclose([*scaled.parts, *scaled[:3]], [*first.parts, *first[:3]], rtol=1e-9)
    equal = metrics.calibration_test(probs, labels, sample_weight=np.full(500, 2.0), seed=3)
    np.testing.assert_allclose(equal.parts, metrics.calibration_test(probs, labels, seed=3).parts, atol=0.08)


def test_order_of_rows_and_classes_does_not_matter():
    """Up to the noise of the simulation."""
    rng = np.random.default_rng(2)
    probs, labels = draw_calibrated(rng, (400, 4))
    sharp, weights = sharpen(probs, power=1.15), rng.uniform(1, 2, 400)
    expected = found_p_values(sharp, labels, sample_weight=weights, resamples=5000)
    rows, classes = rng.permutation(400), rng.permutation(4)
    found = found_p_values(sharp[rows], labels[rows], sample_weight=weights[rows], resamples=5000)
    np.testing.assert_allclose(found, expected, atol=0.04)
    renamed = np.argsort(classes)[labels]
    found = found_p_values(sharp[:, classes], renamed, sample_weight=weights, resamples=5000)
    np.testing.assert_allclose(found, expected, atol=0.04)


def test_logits_of_two_columns_give_the_same_as_one():
    """The frequencies and temperatures are the same; the claims differ: the top label's, or y = 1."""
    rng = np.random.default_rng(3)
    logits = 2 * rng.standard_normal(600)
    labels = (rng.random(600) < expit(0.8 * logits)).astype(int)
    one = metrics.calibration_test(logits, labels, input="logits", task="binary", resamples=5000)
    two = metrics.calibration_test(np.stack([0 * logits, logits], axis=1), labels, input="logits", resamples=5000)
    np.testing.assert_allclose(one.parts[:3], two.parts[:3], atol=0.04)


def test_labels_of_a_multilabel_task_have_their_own_frequencies():
    """Two labels are wrong in opposite directions: the frequency of all together is right."""
    rng = np.random.default_rng(4)
    logits = 2 * rng.standard_normal((800, 3))
    labels = (rng.random((800, 3)) < expit(logits + np.array([0.5, -0.5, 0.0]))).astype(int)
    found = metrics.calibration_test(expit(logits), labels, task="multilabel")
    assert found.p_value < 0.01
    assert found.strongest == "frequencies"
    flat = metrics.calibration_test(expit(logits).ravel(), labels.ravel(), task="binary")
    assert flat.parts.frequencies > 0.05
    right = (rng.random((800, 3)) < expit(logits)).astype(int)
    ignored = np.where(rng.random((800, 3)) < 0.2, -1, right)
    for answers in (right, ignored):
        found = metrics.calibration_test(expit(logits), answers, task="multilabel", ignore_index=-1)
        assert found.p_value > 0.05


@pytest.mark.parametrize("input", ["probs", "logits"])
def test_an_impossible_label_has_p_value_0(input):
    probs, labels = draw_calibrated(np.random.default_rng(5), (300, 3))
    probs[7] = [0.4, 0.6, 0.0]
    labels[7] = 2
    with np.errstate(divide="ignore"):
        scores = np.log(probs) if input == "logits" else probs
    found = metrics.calibration_test(scores, labels, input=input)
    assert found.p_value == found.parts.temperature == 0
    assert found.strongest == "temperature"
    labels[7] = 1
    assert metrics.calibration_test(scores, labels, input=input).p_value > 0.01
    weights = np.where(np.arange(300) == 7, 0.0, 1.0)
    labels[7] = 2
    assert metrics.calibration_test(scores, labels, input=input, sample_weight=weights).p_value > 0.01


def test_certain_claims():
    ones = np.ones(10, dtype=int)
    found = metrics.calibration_test(np.ones(10), ones, task="binary")
    assert (found.p_value, min(found.parts), found.value, found.expected) == (1, 1, 0, 0)
    assert metrics.calibration_test(np.ones(10), np.arange(10) > 0, task="binary").p_value == 0
    # far beyond what a float can hold as a probability, but not impossible
    wrong = metrics.calibration_test(np.full(10, 1000.0), 1 - ones, input="logits", task="binary")
    assert wrong.p_value == 1 / 1001


def test_one_row_and_one_class():
    """Either label of a claim of 1/2 is as likely; of a claim of 0.99, the other label is not."""
    for label in (0, 1):
        found = metrics.calibration_test(np.array([0.5]), np.array([label]), task="binary", resamples=100)
        assert (found.value, found.p_value) == (0.5, 1.0)
    rare = metrics.calibration_test(np.array([[0.99, 0.01]]), np.array([1]), resamples=2000)
    assert rare.p_value == pytest.approx(0.01, abs=0.01)
    probs, _ = draw_calibrated(np.random.default_rng(6), (100, 3))
    assert metrics.calibration_test(probs, np.zeros(100, dtype=int)).p_value == 1 / 1001


@pytest.mark.thorough
def test_many_uncertain_rows_are_drawn_in_pieces():
    rng = np.random.default_rng(7)
    claims = rng.random(60_000)
    right = metrics.calibration_test(claims, rng.random(60_000) < claims, task="binary")
    assert right.p_value > 0.05
    wrong = metrics.calibration_test(claims, rng.random(60_000) < claims**1.1, task="binary")
    assert wrong.p_value == 1 / 1001


def test_wrong_arguments():
    probs, labels = draw_calibrated(np.random.default_rng(1), (50, 3))
    with pytest.raises(ValueError, match="resamples must be at least 100, got 10"):
        metrics.calibration_test(probs, labels, resamples=10)
    with pytest.raises(ValueError, match=r"norm must be one of 'l1', 'l2', 'max', got 'l3'"):
        metrics.calibration_test(probs, labels, norm="l3")
    with pytest.raises(ValueError, match="bins must be at least 1, got 0"):
        metrics.calibration_test(probs, labels, bins=0)
    with pytest.raises(ValueError, match="binning must be one of 'equal_width'"):
        metrics.calibration_test(probs, labels, binning="wide")
    with pytest.raises(ValueError, match="sample_weight must not all be 0"):
        metrics.calibration_test(probs, labels, sample_weight=np.zeros(50))
