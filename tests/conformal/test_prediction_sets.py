"""Prediction sets: which classes they hold, and how often they hold the true one."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from sklearn.base import clone

from reference import loop_prediction_sets
from refocal.calibrators import (
    AutoCalibrator,
    FocalPosterior,
    IsotonicCalibration,
    MultilabelCalibrator,
    TemperatureScaling,
    VectorScaling,
)
from refocal.conformal import PredictionSets

KINDS = [
    {"method": "lac"},
    {"method": "aps"},
    {"method": "aps", "randomized": True},
    {"method": "raps", "penalty": 0.05, "penalty_after": 1},
    {"method": "raps", "penalty": 0.05, "penalty_after": 1, "randomized": True},
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))


def draw(rows, classes, *, seed=0, spread=1.5):
    rng = np.random.default_rng(seed)
    logits = spread * rng.standard_normal((rows, classes))
    return logits, np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)


def softmax(logits):
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    return probs / probs.sum(axis=1, keepdims=True)


def covered(sets, labels):
    return sets[np.arange(len(labels)), labels]


@every_kind
@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("classes", [2, 5])
def test_sets_against_the_papers_formulas(kind, by_class, classes):
    logits, labels = draw(300, classes)
    sets = PredictionSets(**kind, coverage=0.85, by_class=by_class, allow_empty=True, seed=3)
    found = sets.fit(logits[:200], labels[:200]).predict_set(logits[200:])
    randomized = kind.get("randomized", False)
    expected = loop_prediction_sets(
        softmax(logits[:200]).tolist(),
        labels[:200].tolist(),
        softmax(logits[200:]).tolist(),
        coverage=0.85,
        by_class=by_class,
        uniform=np.random.default_rng([3, 0]).random(200) if randomized else None,
        new_uniform=np.random.default_rng([3, 1]).random(100) if randomized else None,
        **{name: value for name, value in kind.items() if name != "randomized"},
    )
    np.testing.assert_array_equal(found, expected)


@given(
    st.lists(st.tuples(*[st.integers(0, 3)] * 3, st.integers(0, 2)), min_size=3, max_size=20),
    st.sampled_from(KINDS[:2] + KINDS[3:4]),
    st.sampled_from([0.5, 0.75, 0.9]),
)
def test_ties_against_the_papers_formulas(rows, kind, coverage):
    counts = np.array([row[:3] for row in rows]) + 1.0
    probs, labels = counts / counts.sum(axis=1, keepdims=True), np.array([row[3] for row in rows])
    sets = PredictionSets(**kind, coverage=coverage, allow_empty=True, input="probs", classes=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # too few rows
        found = sets.fit(probs, labels).predict_set(probs)
    expected = loop_prediction_sets(probs.tolist(), labels.tolist(), probs.tolist(), coverage=coverage, **kind)
    np.testing.assert_array_equal(found, expected)


@every_kind
@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.thorough
def test_coverage_holds_over_many_data_sets(kind, by_class):
    """Each data set of 39 rows gets a threshold and one new row, or one per class."""
    rng = np.random.default_rng(1)
    repeats, classes = 1000, 3
    sets = PredictionSets(**kind, coverage=0.9, by_class=by_class, allow_empty=True)
    hits = np.zeros(classes if by_class else 1)
    for repeat in range(repeats):
        # Each class has 39 rows if it has its own threshold.
        labels = np.repeat(np.arange(classes), 40) if by_class else rng.integers(0, classes, 40)
        logits = 1.5 * np.eye(classes)[labels] * [1.0, 2.0, 0.5] + rng.standard_normal((len(labels), classes))
        last = np.arange(classes) * 40 + 39 if by_class else np.array([39])
        rest = np.setdiff1d(np.arange(len(labels)), last)
        sets.set_params(seed=repeat).fit(logits[rest], labels[rest])
        hits += covered(sets.predict_set(logits[last]), labels[last])
    low, high = binom.ppf([1e-5, 1 - 1e-5], repeats, 0.9)
    assert (hits >= low).all(), hits / repeats
    # Without ties, exactly 36 of 40 ranks are covered. The most probable classes are tied if nothing is randomized.
    assert (hits <= high).all() or not (kind["method"] == "lac" or kind.get("randomized")), hits / repeats


@every_kind
def test_sets_grow_with_coverage_and_do_not_depend_on_the_order_of_classes(kind):
    logits, labels = draw(400, 4)
    previous = np.zeros((400, 4), dtype=bool)
    for coverage in (0.3, 0.6, 0.9, 0.99):
        found = PredictionSets(**kind, coverage=coverage, allow_empty=True).fit(logits, labels).predict_set(logits)
        assert (found >= previous).all()
        previous = found
    order = [2, 0, 3, 1]
    moved = PredictionSets(**kind, coverage=0.9).fit(logits[:, order], np.argsort(order)[labels])
    plain = PredictionSets(**kind, coverage=0.9).fit(logits, labels)
    np.testing.assert_array_equal(moved.predict_set(logits[:, order]), plain.predict_set(logits)[:, order])


def test_calibration_rows_are_covered_exactly_as_often_as_their_rank_says():
    logits, labels = draw(199, 5)
    for method in ("lac", "aps"):
        sets = PredictionSets(method=method, coverage=0.9, allow_empty=True).fit(logits, labels)
        assert covered(sets.predict_set(logits), labels).sum() == 180  # ceil(200 * 0.9), and no ties


def test_lac_keeps_classes_of_tiny_probability_apart():
    """Thresholds near 0 and near 1 keep their digits."""
    logits = np.stack([np.zeros(9), np.arange(9) - 40.0], axis=1)
    sets = PredictionSets(coverage=0.8, allow_empty=True).fit(logits, np.ones(9, dtype=int))
    assert covered(sets.predict_set(logits), np.ones(9, dtype=int)).tolist() == [False] + [True] * 8
    aps = PredictionSets(method="aps", coverage=0.8).fit(logits, np.ones(9, dtype=int))
    assert covered(aps.predict_set(logits), np.ones(9, dtype=int)).tolist() == [False] + [True] * 8


def test_empty_sets_get_the_top_class():
    logits, labels = draw(500, 3, spread=4.0)
    empty = PredictionSets(coverage=0.5, allow_empty=True).fit(logits, labels).predict_set(logits)
    filled = PredictionSets(coverage=0.5).fit(logits, labels).predict_set(logits)
    missing = ~empty.any(axis=1)
    assert missing.sum() > 20
    np.testing.assert_array_equal(filled[~missing], empty[~missing])
    np.testing.assert_array_equal(filled[missing], np.eye(3, dtype=bool)[logits[missing].argmax(axis=1)])


@pytest.mark.parametrize("by_class", [False, True])
def test_sets_by_ranks_always_have_the_top_class(by_class):
    logits, labels = draw(500, 3, spread=4.0)
    for options in ({"method": "aps"}, {"method": "raps", "penalty": 0.1, "penalty_after": 0}):
        sets = PredictionSets(**options, coverage=0.5, by_class=by_class, allow_empty=True).fit(logits, labels)
        assert covered(sets.predict_set(logits), logits.argmax(axis=1)).all()


def test_too_few_rows_give_all_classes_and_say_so():
    logits, labels = draw(18, 3)
    with pytest.warns(
        UserWarning, match=r"18 rows are too few, a coverage of 0.95 needs at least 19: every set has all"
    ):
        sets = PredictionSets(coverage=0.95).fit(logits, labels)
    assert sets.predict_set(logits).all()
    assert np.isneginf(sets.thresholds_).all()
    logits, labels = draw(19, 3)
    assert np.isfinite(PredictionSets(coverage=0.95).fit(logits, labels).thresholds_).all()
    for coverage, rows in [(0.9, 9), (0.5, 1), (0.99, 99), (0.8, 4), (2 / 3, 2)]:
        logits, labels = draw(rows, 3)
        assert np.isfinite(PredictionSets(coverage=coverage, classes=3).fit(logits, labels).thresholds_).all()
        if rows > 1:
            with pytest.warns(UserWarning, match=f"needs at least {rows}"):
                PredictionSets(coverage=coverage, classes=3).fit(logits[1:], labels[1:])


def test_classes_with_too_few_rows_are_in_every_set():
    logits, labels = draw(300, 4)
    kept = (labels < 2) | (np.cumsum(labels == 2) * (labels == 2) > 0) & (np.cumsum(labels == 2) <= 5) & (labels == 2)
    text = "2 of 4 classes have too few rows, a coverage of 0.9 needs at least 9 of each: they are in every set"
    with pytest.warns(UserWarning, match=text):
        sets = PredictionSets(by_class=True).fit(logits[kept], labels[kept])
    assert np.isneginf(sets.thresholds_).tolist() == [False, False, True, True]
    found = sets.predict_set(logits)
    assert found[:, 2:].all()
    assert not found[:, :2].all()


def test_each_class_is_covered_by_class():
    """Class 2 has poor scores: sets for all rows rarely hold it, sets by class do."""
    rng = np.random.default_rng(0)
    labels = rng.choice(3, 8000, p=[0.5, 0.45, 0.05])
    logits = 3 * np.eye(3)[labels] * (labels[:, None] < 2) + rng.standard_normal((8000, 3))
    rates = {}
    for by_class in (False, True):
        sets = PredictionSets(by_class=by_class).fit(logits[:4000], labels[:4000])
        hit = covered(sets.predict_set(logits[4000:]), labels[4000:])
        rates[by_class] = [hit[labels[4000:] == k].mean() for k in range(3)]
    assert rates[False][2] < 0.6
    assert min(rates[True]) > 0.84


@every_kind
def test_a_weight_counts_as_repeated_samples(kind):
    logits, labels = draw(100, 3)
    weights = np.random.default_rng(0).integers(0, 4, 100)
    kind = {name: value for name, value in kind.items() if name != "randomized"}
    weighted = PredictionSets(**kind).fit(logits, labels, weights)
    repeated = PredictionSets(**kind).fit(np.repeat(logits, weights, axis=0), np.repeat(labels, weights))
    np.testing.assert_array_equal(weighted.thresholds_, repeated.thresholds_)


@pytest.mark.parametrize("weight", [1.5, 1.50001, 3.0])
def test_relative_weights_of_a_class_never_count_repetitions(weight):
    """Even if they are equal, or whole after scaling: ten rows of equal weight are ten samples."""
    logits, _ = draw(100, 2)
    labels = np.repeat([0, 1], [90, 10])
    weights = np.where(labels == 0, 0.5, weight)
    sets = PredictionSets(input="logits", by_class=True, coverage=0.95)
    with pytest.warns(UserWarning, match="1 of 2 classes have too few rows"):
        relative = sets.fit(logits, labels, weights).thresholds_
    with pytest.warns(UserWarning, match="1 of 2 classes have too few rows"):
        equal = sets.fit(logits, labels).thresholds_
    np.testing.assert_array_equal(relative, equal)


def test_a_class_without_rows_has_no_threshold_with_relative_weights():
    logits, labels = draw(100, 2)
    sets = PredictionSets(input="logits", by_class=True, classes=3)
    with pytest.warns(UserWarning, match="1 of 3 classes have too few rows"):
        sets.fit(np.pad(logits, ((0, 0), (0, 1))), labels, np.linspace(0.5, 1.2, 100))
    assert np.isneginf(sets.thresholds_).tolist() == [False, False, True]


def test_one_column_of_scores_is_for_two_classes():
    rng = np.random.default_rng(0)
    log_odds = 2 * rng.standard_normal(600)
    labels = rng.random(600) < 1 / (1 + np.exp(-log_odds))
    p = 1 / (1 + np.exp(-log_odds))
    column = PredictionSets(coverage=0.95).fit(log_odds, labels)
    found = column.predict_set(log_odds)
    assert found.shape == (600, 2)
    both = PredictionSets(coverage=0.95, input="probs").fit(np.stack([1 - p, p], axis=1), labels)
    np.testing.assert_array_equal(both.predict_set(np.stack([1 - p, p], axis=1)), found)
    alone = PredictionSets(coverage=0.95, input="probs").fit(p, labels)
    np.testing.assert_array_equal(alone.predict_set(p), found)


@pytest.mark.parametrize("method", ["lac", "aps"])
def test_maps_of_two_classes_do_not_change_sets(method):
    """They are increasing functions of each probability. With three classes they change the order across rows."""
    for classes, same in ((2, True), (3, False)):
        logits, labels = draw(800, classes)
        found = [
            PredictionSets(method=method, calibrator=FocalPosterior(gamma=gamma))
            .fit(logits, labels)
            .predict_set(logits)
            for gamma in (0.0, 3.0)
        ]
        assert np.array_equal(*found) is same


def test_names_of_classes():
    logits, labels = draw(200, 3)
    names = np.array(["cat", "dog", "eel"])
    sets = PredictionSets().fit(logits, names[labels])
    assert sets.classes_.tolist() == names.tolist()
    np.testing.assert_array_equal(sets.predict_set(logits), PredictionSets().fit(logits, labels).predict_set(logits))
    assert set(sets.predict(logits)) == set(names)


def test_a_fitted_calibrator_is_used_as_it_is():
    logits, labels = draw(3000, 4)
    calibrator = TemperatureScaling().fit(3 * logits[:1000], labels[:1000])
    sets = PredictionSets(calibrator=calibrator, method="aps").fit(3 * logits[1000:2000], labels[1000:2000])
    assert sets.calibrator_ is calibrator
    plain = PredictionSets(method="aps", input="probs")
    plain.fit(calibrator.predict_proba(3 * logits[1000:2000]), labels[1000:2000])
    new = 3 * logits[2000:]
    np.testing.assert_array_equal(sets.predict_set(new), plain.predict_set(calibrator.predict_proba(new)))
    np.testing.assert_array_equal(sets.predict_proba(new), calibrator.predict_proba(new))
    known = PredictionSets(calibrator=FocalPosterior(gamma=2.0)).fit(logits[:1000], labels[:1000])
    expected = FocalPosterior(gamma=2.0).fit(logits, labels).predict_proba(logits)
    np.testing.assert_array_equal(known.predict_proba(logits), expected)


@pytest.mark.parametrize("calibrator", [TemperatureScaling(), IsotonicCalibration(), AutoCalibrator(cv=3)])
def test_an_unfitted_calibrator_is_fitted_to_other_rows_than_the_threshold(calibrator):
    """The coverage holds even for a calibrator that overfits."""
    logits, labels = draw(500, 3)
    sets = PredictionSets(calibrator=calibrator, tuning_share=0.4, seed=1).fit(logits, labels)
    order = np.random.default_rng([1, 2]).permutation(500)
    tuning, rest = np.sort(order[:200]), np.sort(order[200:])
    by_hand = clone(calibrator).fit(logits[tuning], labels[tuning])
    np.testing.assert_array_equal(by_hand.predict_proba(logits), sets.predict_proba(logits))
    expected = PredictionSets(calibrator=by_hand).fit(logits[rest], labels[rest])
    np.testing.assert_array_equal(expected.thresholds_, sets.thresholds_)
    assert not hasattr(calibrator, "classes_")


def test_the_penalty_is_chosen_on_other_rows_than_the_threshold():
    logits, labels = draw(1000, 20, spread=1.0)
    sets = PredictionSets(method="raps", seed=1).fit(logits, labels)
    order = np.random.default_rng([1, 2]).permutation(1000)
    tuning, rest = np.sort(order[:300]), np.sort(order[300:])
    sizes = {}
    ranks = 1 + (logits > logits[np.arange(1000), labels][:, None]).sum(axis=1)
    after = sorted(ranks[tuning])[int(np.ceil(301 * 0.9)) - 1]
    assert sets.penalty_after_ == after
    for penalty in (0.001, 0.01, 0.1, 0.2, 0.5):
        given_ = PredictionSets(method="raps", penalty=penalty, penalty_after=after)
        given_.fit(logits[tuning], labels[tuning])
        sizes[penalty] = given_.predict_set(logits[tuning]).sum(axis=1).mean()
    assert sets.penalty_ == min(sizes, key=sizes.get)
    final = PredictionSets(method="raps", penalty=sets.penalty_, penalty_after=sets.penalty_after_)
    np.testing.assert_array_equal(final.fit(logits[rest], labels[rest]).thresholds_, sets.thresholds_)
    aps = PredictionSets(method="aps").fit(logits, labels).predict_set(logits)
    assert sets.predict_set(logits).sum() < aps.sum()


def test_random_numbers_of_several_calls():
    logits, labels = draw(400, 5)
    sets = PredictionSets(method="aps", randomized=True).fit(logits, labels)
    np.testing.assert_array_equal(sets.predict_set(logits), sets.predict_set(logits))
    rng = np.random.default_rng([0, 1])
    parts = [sets.predict_set(part, rng=rng) for part in np.array_split(logits, 7)]
    np.testing.assert_array_equal(np.concatenate(parts), sets.predict_set(logits))
    other = clone(sets).set_params(seed=1).fit(logits, labels).predict_set(logits)
    assert (other != sets.predict_set(logits)).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "top"}, "method must be one of"),
        ({"coverage": 1.0}, "coverage must lie strictly between 0 and 1"),
        ({"coverage": 0.0}, "coverage must lie strictly between 0 and 1"),
        ({"coverage": np.nan}, "coverage must lie strictly between 0 and 1"),
        ({"tuning_share": 1.5}, "tuning_share must lie strictly between 0 and 1"),
        ({"by_class": "yes"}, "by_class must be True or False, got 'yes'"),
        ({"allow_empty": 2}, "allow_empty must be True or False, got 2"),
        ({"randomized": True}, "randomized is for method='aps' and method='raps'"),
        ({"penalty": 0.1}, "penalty is for method='raps', got 0.1 with method='lac'"),
        ({"method": "aps", "penalty_after": 2}, "penalty_after is for method='raps', got 2 with method='aps'"),
        ({"method": "raps", "penalty": -1.0}, "penalty must be"),
        ({"method": "raps", "penalty_after": -1}, "penalty_after must be"),
        ({"seed": -1}, "seed must be"),
        ({"input": "scores"}, "input must be"),
        (
            {"calibrator": "temperature"},
            "calibrator must be a calibrator for mutually exclusive classes, got 'temp",
        ),
        ({"calibrator": MultilabelCalibrator()}, "calibrator must be a calibrator for mutually exclusive classes"),
        ({"calibrator": VectorScaling(), "input": "probs"}, "input is for scores without a calibrator: pass input to"),
        ({"calibrator": VectorScaling(), "classes": 3}, "classes is for scores without a calibrator: pass classes to"),
    ],
)
def test_bad_settings_are_rejected(settings, message):
    logits, labels = draw(50, 3)
    with pytest.raises(ValueError, match=message):
        PredictionSets(**settings).fit(logits, labels)


def test_bad_data_are_rejected():
    logits, labels = draw(50, 3)
    fitted = PredictionSets().fit(logits, labels)
    for X, y, message in [
        (np.where(logits > 2, np.nan, logits), labels, "contains NaN"),
        (logits, labels[:9], "X and y must have one row per sample, got 50 and 9 rows"),
        (logits, labels + 5.5, "X has scores of 3 classes, but y has|Unknown label type"),
        (softmax(logits), labels, "probabilities"),
    ]:
        with pytest.raises(ValueError, match=message):
            PredictionSets().fit(X, y)
    with pytest.raises(ValueError, match="contains NaN"):
        fitted.predict_set(np.full((2, 3), np.nan))
    with pytest.raises(ValueError, match="expecting 3 features"):
        fitted.predict_set(np.zeros((2, 4)))
    calibrator = TemperatureScaling().fit(logits, labels)
    with pytest.raises(ValueError, match="labels in y must be among classes, got"):
        PredictionSets(calibrator=calibrator).fit(logits, labels + 1)
    with pytest.raises(ValueError, match="X must have at least 2 rows, to fit or choose something"):
        PredictionSets(method="raps", classes=3).fit(logits[:1], labels[:1])


def test_parameters_are_those_of_scikit_learn():
    sets = PredictionSets(calibrator=TemperatureScaling(), method="aps")
    assert clone(sets).get_params()["calibrator__objective"] == sets.calibrator.objective
