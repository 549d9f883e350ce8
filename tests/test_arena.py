"""The calibrator arena: how its experiments are made, measured and counted."""

from __future__ import annotations

import numpy as np
import pytest

from benchmark_files import load
from refocal.calibrators import TemperatureScaling

load("calibrators")
experiments = load("arena_experiments")
methods = load("arena_methods")
tables = load("arena_table")
arena = load("calibrator_arena")


def make_experiment(rng, name, family, classes=3, rows=300):
    logits = 2 * rng.standard_normal((2 * rows, classes))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    scores = 3 * logits
    return experiments.Experiment(name, family, "logits", scores[:rows], labels[:rows], scores[rows:], labels[rows:])


def test_small_classes_are_dropped_and_every_class_is_in_every_part():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2, 3], [200, 100, experiments.FEWEST_OF_CLASS, experiments.FEWEST_OF_CLASS - 1])
    features = np.stack([np.arange(len(labels)), labels], axis=1)[rng.permutation(len(labels))]
    parts = experiments.split_table(features, features[:, 1])
    rows = np.concatenate(parts[::2])
    assert sorted(rows[:, 0]) == list(range(300 + experiments.FEWEST_OF_CLASS))  # each row once, none of class 3
    for x, y in zip(parts[::2], parts[1::2], strict=True):
        np.testing.assert_array_equal(x[:, 1], y)
        assert np.bincount(y, minlength=3).min() >= experiments.FEWEST_IN_PART
    assert [len(part) for part in parts[::2]] == [158, 79, 79]


def test_sets_that_are_too_small_are_left_out():
    rows = experiments.FEWEST_ROWS - 1
    assert experiments.split_table(np.zeros((rows, 1)), np.arange(rows) % 2) is None
    assert experiments.split_table(np.zeros((500, 1)), np.zeros(500, dtype=int)) is None


def test_large_sets_are_cut():
    labels = np.arange(experiments.MOST_ROWS + 1000) % 3
    parts = experiments.split_table(labels[:, None], labels)
    assert sum(len(part) for part in parts[::2]) == experiments.MOST_ROWS


def test_experiments_are_saved_and_loaded_in_the_order_of_families(tmp_path):
    rng = np.random.default_rng(1)
    for name, family in (("zoo--a", "zoo"), ("network--b", "network")):
        made = make_experiment(rng, name, family)
        made.save(tmp_path)
    assert [path.stem for path in experiments.list_cached(tmp_path)] == ["network--b", "zoo--a"]
    read = experiments.load(tmp_path / "network--b.npz")
    assert (read.name, read.family, read.input, read.classes) == ("network--b", "network", "logits", 3)
    np.testing.assert_array_equal(read.scores_test, made.scores_test)
    np.testing.assert_array_equal(read.labels_cal, made.labels_cal)


def test_numbers_are_those_of_the_test_part(tmp_path):
    made = make_experiment(np.random.default_rng(2), "zoo--a", "zoo")
    made.save(tmp_path)
    name, numbers = arena.run_experiment(tmp_path / "zoo--a.npz", ["temperature", "none", "Platt"])
    assert name == "zoo--a"
    assert list(numbers["methods"]) == ["temperature", "none"]  # Platt scaling is for two classes
    probs = TemperatureScaling().fit(made.scores_cal, made.labels_cal).predict_proba(made.scores_test)
    plain = np.exp(made.scores_test) / np.exp(made.scores_test).sum(axis=1, keepdims=True)
    losses = [-np.log([row[label] for row, label in zip(p, made.labels_test, strict=True)]) for p in (probs, plain)]
    found = numbers["methods"]
    assert found["temperature"]["log_loss"] == pytest.approx(losses[0].mean(), rel=1e-9)
    away = losses[1] - losses[0]
    error = away.std(ddof=1) / np.sqrt(len(away))
    against = found["none"]["against"]["temperature"]
    assert against["log_loss"] == pytest.approx([away.mean(), error], rel=1e-9)
    truth = (np.arange(3) == made.labels_test[:, None]).astype(float)
    brier, other = (((p - truth) ** 2).sum() / len(plain) for p in (plain, probs))
    assert found["none"]["brier"] == pytest.approx(brier, rel=1e-9)
    assert against["brier"][0] == pytest.approx(brier - other, rel=1e-6)
    assert found["none"]["accuracy"] == np.mean(made.scores_test.argmax(axis=1) == made.labels_test)


def test_a_probability_of_0_has_a_finite_log_loss():
    losses = arena.score_rows(np.array([[0.0, 1.0], [0.5, 0.5]]), np.array([0, 0]))
    np.testing.assert_allclose(losses, [-np.log(tables.FLOOR), np.log(2)])


def test_a_fit_that_fails_is_recorded_and_loses():
    made = make_experiment(np.random.default_rng(3), "zoo--a", "zoo")
    numbers, rows = arena.run_method(methods.Method("refocal", lambda *_: 1 / 0), made)
    assert numbers == {"error": "ZeroDivisionError: division by zero"}
    assert rows == {}
    results = [{"methods": {"a": numbers, "b": {"log_loss": 9.0}}}, {"methods": {"a": {"log_loss": 1.0}, "b": numbers}}]
    assert tables.count_wins(results, "a", "b") == "1 of 2"
    assert tables.without_failures(results) == []


def test_differences_within_noise_or_of_rounding_are_not_counted():
    pairs = [[0.3, 0.1], [-0.3, 0.1], [0.1, 0.1], [1e-9, 1e-12]]
    results = [{"methods": {"a": {"against": {"b": {"log_loss": pair}}}}} for pair in pairs]
    assert [tables.count_beyond_noise(results, "a", "b", sign) for sign in (1, -1)] == ["1", "1"]


def test_brier_scores_are_compared_by_family():
    pairs = [[-0.3, 0.1], [-0.1, 0.1], [0.3, 0.1]]
    results = [{"methods": {"a": {"against": {tables.REFERENCE: {"brier": pair}}}}} for pair in pairs]
    rows = tables.brier_rows({"zoo": results, "network": [{"methods": {}}]}, [tables.REFERENCE, "a"])
    assert rows == ["| a | 2 of 3 (1, 1) | – |"]


def test_runs_are_merged_by_experiment_and_method(tmp_path):
    earlier = tmp_path / "earlier.json"
    earlier.write_text(
        '{"x": {"family": "zoo", "methods": {"a": {"log_loss": 1}, "b": {"log_loss": 2}}}}', encoding="utf-8"
    )
    merged = arena.merge([earlier], {"x": {"family": "zoo", "methods": {"b": {"log_loss": 3}}}})
    assert merged == {"x": {"family": "zoo", "methods": {"a": {"log_loss": 1}, "b": {"log_loss": 3}}}}


def test_times_are_also_relative_to_the_rival():
    rows = [
        "| temperature | 0.0010 | 0.0020 | – | 0.0300 | 1.000 |",
        f"| {tables.RIVAL} | 0.0100 | 0.0400 | 0.1000 | 0.0100 | 2.000 |",
    ]
    assert tables.ratio_rows(rows)[0] == "| temperature | 0.10 | 0.05 | – | 3.00 |"
    assert tables.ratio_rows(rows[:1]) == []


def test_methods_that_were_not_run_are_named():
    some = [name for name in methods.METHODS if name != "netcal beta"]
    assert tables.missing_line(some).endswith("did not name them: netcal beta.")
    numbers = {name: {"log_loss": 1.0, "brier": 1.0, "ece": 0.1, "accuracy": 0.5, "seconds": 0.1} for name in some}
    text = tables.render({"x": {"family": "zoo", "classes": 3, "methods": numbers}}, jobs=1)
    for part in (tables.missing_line(some), methods.UNSEEN, methods.TENTH, "| auto, mixture | – | 1.00 | – | – |"):
        assert part in text
