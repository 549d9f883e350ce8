"""What `diagnose` finds, against exact distributions and plain loops over the samples."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import special, stats

from arrays import draw_calibrated, sharpen
from refocal import metrics
from refocal.metrics.diagnosis import correct_together
from refocal.metrics.inputs import Events
from refocal.metrics.reliability import find_ece_p_value

EDGES = [0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0]


def exact_p_value(claims, hits):
    """Twice the smaller tail of the number of hits, by convolution."""
    mass = np.ones(1)
    for claim in claims:
        mass = np.convolve(mass, [1 - claim, claim])
    return min(1.0, 2 * min(mass[hits:].sum(), mass[: hits + 1].sum()))


def binary(count=400, *, power=1.4, seed=0):
    rng = np.random.default_rng(seed)
    claims = rng.random(count)
    return claims, (rng.random(count) < claims**power).astype(int)


def p_values(found):
    return {check.name: check.p_value for check in found.checks}


def undo_holm(adjusted):
    """The p-values before Holm's method, unless it raised them to a smaller one's."""
    ordered = sorted(adjusted.items(), key=lambda pair: pair[1])
    return {name: p / (len(ordered) - place) for place, (name, p) in enumerate(ordered)}


def test_frequency_of_a_binary_task_against_its_exact_distribution():
    claims, labels = binary()
    found = metrics.diagnose(claims, labels, task="binary")
    assert p_values(found).keys() == {"frequencies", "probabilities", "bins"}
    expected = exact_p_value(claims, labels.sum())
    assert undo_holm(p_values(found))["frequencies"] == pytest.approx(expected, rel=0.05)
    assert found.p_value == min(p_values(found).values())
    assert found.predicted == pytest.approx(claims.mean())
    assert found.observed == pytest.approx(labels.mean())


def test_test_of_ece_draws_labels():
    rng = np.random.default_rng(1)
    claims = rng.random(2000)
    side = np.where(np.floor(15 * claims) % 2, 1, -1)
    labels = (rng.random(2000) < np.clip(claims + 0.12 * side, 0, 1)).astype(int)
    weights = rng.uniform(0.5, 2, 2000)
    for sample_weight in (None, weights):
        found = metrics.diagnose(claims, labels, task="binary", sample_weight=sample_weight)
        expected = find_ece_p_value(Events(claims, labels, sample_weight))
        assert found.failed("bins").p_value == pytest.approx(3 * expected)
        assert found.failed("frequencies") is None


def test_confidence_and_frequencies_of_classes_against_their_exact_distributions():
    rng = np.random.default_rng(2)
    probs = np.tile([0.5, 0.3, 0.2], (60, 1))  # one claim: all groups of samples hold all of them
    labels = np.repeat([0, 1, 2], [42, 14, 4])
    rng.shuffle(labels)
    found = metrics.diagnose(probs, labels)
    assert p_values(found).keys() == {"confidence", "frequencies", "classes", "bins"}
    by_class = [exact_p_value(probs[:, k], (labels == k).sum()) for k in range(3)]
    combined = stats.cauchy.sf(np.mean(stats.cauchy.isf(by_class)))
    before = undo_holm(p_values(found))
    assert before["frequencies"] == pytest.approx(combined, rel=0.07)
    # at each scale one group holds all samples, so that equal p-values are combined
    assert before["confidence"] == pytest.approx(by_class[0], rel=0.07)


def test_classes_that_fail_are_named_with_their_frequencies():
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.ones(6), 6000)
    truth = probs * np.array([1, 1, 0.5, 1, 1.6, 1])
    truth /= truth.sum(axis=1, keepdims=True)
    labels = (rng.random((6000, 1)) > np.cumsum(truth, axis=1)[:, :-1]).sum(axis=1)
    found = metrics.diagnose(probs, labels).failed("frequencies")
    assert [gap.index for gap in found.classes[:2]] == [2, 4]
    residuals = [
        ((labels == k).sum() - probs[:, k].sum()) / np.sqrt((probs[:, k] * (1 - probs[:, k])).sum()) for k in range(6)
    ]
    alone = 2 * stats.norm.sf(np.abs(residuals))
    order = np.argsort(alone)
    holm = np.maximum.accumulate(alone[order] * np.arange(6, 0, -1))
    assert [gap.index for gap in found.classes] == [k for k, p in zip(order, holm, strict=True) if p <= 0.05]
    for gap in found.classes:
        assert gap.predicted == pytest.approx(probs[:, gap.index].mean())
        assert gap.observed == pytest.approx((labels == gap.index).mean())
        assert gap.p_value <= 0.05
        assert gap.range == worst_range(probs[:, gap.index], labels == gap.index)


def worst_range(claims, outcomes):
    """The range whose residual sum is the least likely, found by another way to its p-value: its own `diagnose`."""
    best = None
    for low, high in itertools.pairwise(EDGES):
        inside = (claims > low if low else claims >= low) & (claims <= high)
        if not inside.any():
            continue
        own = metrics.diagnose(claims[inside], outcomes[inside], task="binary").range
        if best is None or own.p_value < best.p_value:
            best = own
            assert (own.low, own.high) == (low, high)
            assert own.predicted == pytest.approx(claims[inside].mean())
            assert own.observed == pytest.approx(outcomes[inside].mean())
    return best


def test_the_worst_range_has_the_smallest_exact_p_value():
    rng = np.random.default_rng(4)
    claims = rng.beta(0.5, 0.5, 600)
    labels = (rng.random(600) < np.where(claims > 0.9, claims - 0.12, claims)).astype(int)
    found = metrics.diagnose(claims, labels, task="binary").range
    exact = {}
    for low, high in itertools.pairwise(EDGES):
        inside = (claims > low if low else claims >= low) & (claims <= high)
        exact[low, high] = exact_p_value(claims[inside], labels[inside].sum())
    assert (found.low, found.high) == min(exact, key=exact.get)
    assert found.p_value == pytest.approx(min(exact.values()), rel=0.1)


def test_ranges_hold_their_upper_end():
    claims = np.repeat([0.0, 0.01, 0.1, 0.3, 1.0], 50)
    labels = np.tile([0, 1], 125)
    found = metrics.diagnose(claims[50:100], labels[50:100], task="binary").range
    assert (found.low, found.high, found.predicted, found.observed) == (0.0, 0.01, pytest.approx(0.01), 0.5)
    found = metrics.diagnose(claims[150:200], labels[150:200], task="binary").range
    assert (found.low, found.high) == (0.1, 0.3)
    assert metrics.diagnose(claims[:50], labels[:50], task="binary").range.low == 0.0


def test_of_two_impossible_ranges_the_one_with_the_larger_gap_is_the_worst():
    claims = np.repeat([0.0, 1.0], 50)
    few = np.concatenate([np.arange(50) < 10, np.arange(50) < 20])  # 10 of 0 came true, 30 of 1 came false
    found = metrics.diagnose(claims, few, task="binary").range
    assert (found.low, found.predicted, found.observed, found.p_value) == (0.99, 1.0, 0.4, 0.0)
    many = ~few[::-1]
    found = metrics.diagnose(claims, many, task="binary").range
    assert (found.low, found.high, found.predicted, found.observed) == (0.0, 0.01, 0.0, 0.6)


def test_a_class_that_is_ruled_out_and_never_occurs_raises_no_alarm():
    probs, labels = draw_calibrated(np.random.default_rng(10), (400, 3))
    found = metrics.diagnose(np.concatenate([probs, np.zeros((400, 1))], axis=1), labels)
    assert found.p_value > 0.05
    assert found.failed("frequencies") is None


def test_a_certain_claim_that_came_false_is_seen_beside_tiny_claims():
    probs = np.array([[1.0, 0, 0], [1e-30, 1, 0], [1, 1e-40, 0], [1, 0, 0]])
    frequencies = metrics.diagnose(probs, [0, 2, 0, 0]).checks[1]
    assert (frequencies.name, frequencies.p_value) == ("frequencies", 0)
    assert {gap.index for gap in frequencies.classes} == {1, 2}


def test_slope_is_that_of_the_residuals_over_the_claims():
    rng = np.random.default_rng(5)
    claims = rng.choice([0.1, 0.35, 0.6, 0.85], 2000)  # few values, so that the levels round nothing
    labels = (rng.random(2000) < 0.5 + 0.6 * (claims - 0.5)).astype(int)
    weights = rng.choice([1.0, 2.0], 2000)
    variance = weights**2 * claims * (1 - claims)
    away = claims - np.average(claims, weights=variance)
    expected = (away * weights * (labels - claims)).sum() / np.sqrt((away**2 * variance).sum())
    found = metrics.diagnose(claims, labels, task="binary", sample_weight=weights).slope
    assert found == pytest.approx(expected, rel=1e-9)
    assert found < -5
    assert metrics.diagnose(np.full(50, 0.3), labels[:50], task="binary").slope == 0


def test_detectable_errors_of_one_claim():
    count, claim, weights = 500, 0.3, np.repeat([1.0, 3.0], 250)
    claims, labels = np.full(count, claim), np.arange(count) % 10 < 3
    level = 0.05 / 3
    # each scale has one group with all samples; the finest one has the smallest level
    limit = special.ndtri(1 - 0.8 * level / (2 * 4 * 8)) + special.ndtri(0.95)
    deviation = np.sqrt(claim * (1 - claim) / count)
    found = metrics.diagnose(claims, labels, task="binary")
    assert found.detectable == pytest.approx(limit * deviation)
    frequency = special.ndtri(1 - level / 2) + special.ndtri(0.95)
    assert found.detectable_frequency == pytest.approx(frequency * deviation)
    larger = np.sqrt((weights**2).sum() * claim * (1 - claim)) / weights.sum()
    found = metrics.diagnose(claims, labels, task="binary", sample_weight=weights)
    assert found.detectable_frequency == pytest.approx(frequency * larger)


def test_detectable_frequency_of_classes_is_that_of_the_class_with_the_largest_variance():
    probs, labels = draw_calibrated(np.random.default_rng(6), (900, 4))
    variance = (probs * (1 - probs)).sum(axis=0).max()
    limit = special.ndtri(1 - 0.05 / 4 / (2 * 4)) + special.ndtri(0.95)
    found = metrics.diagnose(probs, labels)
    assert found.detectable_frequency == pytest.approx(limit * np.sqrt(variance) / 900, rel=0.01)  # levels round


def test_claims_of_certainty_that_all_came_true_hide_an_error_rate():
    labels = np.arange(60) % 2
    found = metrics.diagnose(labels.astype(float), labels, task="binary")
    assert found.p_value == 1
    unseen = 1 - 0.05 ** (1 / 60)
    assert found.detectable == pytest.approx(unseen)
    assert found.detectable_frequency == pytest.approx(unseen)


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_rows_of_weight_0_and_ignored_rows_do_not_count(task):
    probs, labels = draw_calibrated(np.random.default_rng(7), (300, 4))
    scores = sharpen(probs, power=2.0)
    if task == "binary":
        scores, labels = scores[:, 0], (labels == 0).astype(int)
    kept = np.arange(300) % 3 != 0
    expected = metrics.diagnose(scores[kept], labels[kept], task=task)
    ignored = metrics.diagnose(scores, np.where(kept, labels, -7), task=task, ignore_index=-7)
    assert ignored == expected
    weighted = metrics.diagnose(scores, labels, task=task, sample_weight=kept.astype(float))
    for name, p_value in p_values(expected).items():
        if name != "bins":  # resampled
            assert p_values(weighted)[name] == pytest.approx(p_value)
    assert weighted.detectable == pytest.approx(expected.detectable)
    assert weighted.slope == pytest.approx(expected.slope)


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_logits_give_the_same_as_their_probabilities(task):
    probs, labels = draw_calibrated(np.random.default_rng(8), (300, 4))
    scores, logits = probs, np.log(probs)
    if task == "binary":
        scores, labels, logits = probs[:, 0], (labels == 0).astype(int), special.logit(probs[:, 0])
    found = metrics.diagnose(logits, labels, input="logits", task=task)
    expected = metrics.diagnose(scores, labels, task=task)
    assert p_values(found) == pytest.approx(p_values(expected), rel=1e-6)


def test_only_the_five_worst_classes_have_a_range():
    rng = np.random.default_rng(9)
    probs = rng.dirichlet(np.ones(8), 8000)
    truth = probs * np.array([0.3, 0.3, 0.3, 0.3, 3.0, 3.0, 3.0, 3.0])
    truth /= truth.sum(axis=1, keepdims=True)
    labels = (rng.random((8000, 1)) > np.cumsum(truth, axis=1)[:, :-1]).sum(axis=1)
    found = metrics.diagnose(probs, labels).failed("classes")
    assert len(found.classes) == 8
    assert [gap.range is None for gap in found.classes] == [False] * 5 + [True] * 3
    assert [gap.p_value for gap in found.classes] == sorted(gap.p_value for gap in found.classes)


def test_labels_of_a_multi_label_task_are_diagnosed_one_by_one():
    with pytest.raises(ValueError, match="diagnose the labels of a multi-label task one by one"):
        metrics.diagnose(np.full((4, 2), 0.5), np.eye(4, 2, dtype=int), task="multilabel")


@pytest.mark.parametrize(("among", "error"), [(0, ValueError), (1.5, TypeError)])
def test_the_number_of_diagnoses_is_checked_first(among, error):
    with pytest.raises(error, match="among must be"):
        metrics.diagnose(np.array([2.0]), np.array([0]), task="binary", among=among)


def test_several_diagnoses_are_corrected_for_their_number():
    several = [metrics.diagnose(*binary(power=power), task="binary") for power in (1.3, 1.0, 1.1)]
    several.append(metrics.diagnose(np.array([0.0, 0.5]), np.array([1, 0]), task="binary"))  # p = 0
    corrected = correct_together(several)
    order = np.argsort([found.p_value for found in several])
    expected, least = {}, 0.0
    for place, index in enumerate(order):  # Holm's method, step by step
        least = expected[index] = max(least, min(1.0, (4 - place) * several[index].p_value))
    for index, (found, before) in enumerate(zip(corrected, several, strict=True)):
        assert found.p_value == pytest.approx(expected[index])
        factor = expected[index] / before.p_value if before.p_value else 1.0
        for check, old in zip(found.checks, before.checks, strict=True):
            assert check.p_value == pytest.approx(min(1.0, factor * old.p_value))
        assert found.range.p_value == pytest.approx(min(1.0, factor * before.range.p_value))


def test_among_many_diagnoses_larger_errors_go_unseen():
    one, many = (metrics.diagnose(*binary(power=1.0), task="binary", among=among) for among in (1, 40))
    assert p_values(many) == p_values(one)
    ratio = (special.ndtri(1 - 0.05 / 3 / 80) + special.ndtri(0.95)) / (
        special.ndtri(1 - 0.05 / 3 / 2) + special.ndtri(0.95)
    )
    assert many.detectable_frequency == pytest.approx(ratio * one.detectable_frequency)
