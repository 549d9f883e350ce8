"""The worst classes and the slices of a report."""

from __future__ import annotations

import numpy as np
import pytest

import refocal
from refocal import metrics
from refocal.report import subgroup_tables
from refocal.report.page import render_page
from refocal.report.subgroups import find_worst_classes, measure_slices, read_slices
from refocal.stats.calibrated_sums import adjust_holm


def draw(rows, classes, *, seed=0, scale=1.5):
    rng = np.random.default_rng(seed)
    logits = scale * rng.standard_normal((rows, classes))
    return logits, np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)


@pytest.mark.thorough
def test_worst_classes_are_ranked_by_ece_with_gap_and_frequency():
    logits, labels = draw(3000, 4)
    logits[:, 2] += 1.5  # class 2 gets too much
    report = refocal.evaluate(logits, labels, class_names=("a", "b", "bad", "d"))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    first = report.worst_classes[0]
    assert (first.column, first.value, first.samples) == ("class", "bad", np.sum(labels == 2))
    errors = [metrics.ece(probs[:, k], labels == k, task="binary") for k in range(4)]
    assert [each.given.ece.value for each in report.worst_classes] == pytest.approx(sorted(errors, reverse=True))
    gap = probs[:, 2].mean() - np.mean(labels == 2)
    assert first.given.gap.value == pytest.approx(gap)
    assert first.given.predicted - first.given.observed == pytest.approx(gap)
    assert 0 < first.given.gap.low < gap < first.given.gap.high
    assert first.chosen is None
    assert first.given.p_value is None


@pytest.mark.thorough
def test_of_a_thousand_classes_ten_are_shown():
    logits, labels = draw(500, 1000, scale=4.0)
    report = refocal.calibrate(logits, labels, method="temperature").report(2 * logits, labels)
    assert len(report.worst_classes) == 10
    assert all(each.chosen is not None for each in report.worst_classes)
    assert "The worst 10 of 1,000 classes" in render_page(report)


@pytest.mark.thorough
def test_gap_intervals_cover_zero_for_calibrated_classes_even_if_rare():
    misses = []
    for seed in range(20):
        logits, labels = draw(400, 6, seed=seed)
        logits -= np.array([0, 0, 0, 0, 2, 4])
        probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        labels = (probs.cumsum(axis=1) < np.random.default_rng(seed).random((400, 1))).sum(axis=1)
        classes = find_worst_classes([probs], labels, None, "abcdef")
        misses += [not each.given.gap.low <= 0 <= each.given.gap.high for each in classes]
    assert np.mean(misses) <= 0.08


def test_two_classes_have_no_worst_class():
    assert refocal.evaluate(*draw(100, 2)).worst_classes == ()


def test_a_slice_is_measured_as_its_rows_alone():
    logits, labels = draw(2000, 3)
    region = np.array(["north", "south"])[np.arange(2000) % 2]
    report = refocal.evaluate(2 * logits, labels, slices={"region": region}, class_names=("x", "y", "z"))
    north, south = report.slices
    assert (north.column, north.value, north.samples) == ("region", "north", 1000)
    alone = refocal.evaluate(2 * logits[::2], labels[::2])
    assert north.given.ece.value == pytest.approx(alone.given.measures["ece"].value)
    assert north.given.observed == pytest.approx(1 - alone.given.measures["error"].value)
    assert 0.0 < south.given.ece.low < south.given.ece.high
    assert north.given.gap.value == pytest.approx(north.given.predicted - north.given.observed)


def test_a_binary_slice_is_about_the_probability_of_class_1():
    rng = np.random.default_rng(1)
    p = rng.random(1000)
    labels = (rng.random(1000) < p).astype(int)
    report = refocal.evaluate(p, labels, input="probs", slices={"half": np.arange(1000) < 500})
    assert [each.value for each in report.slices] == ["False", "True"]
    assert report.slices[1].given.predicted == pytest.approx(p[:500].mean())
    assert report.slices[1].given.observed == pytest.approx(labels[:500].mean())


def test_only_the_miscalibrated_slice_is_found():
    logits, labels = draw(6000, 3)
    group = np.arange(6000) % 6
    scores = np.where((group == 4)[:, None], 3 * logits, logits)
    report = refocal.evaluate(scores, labels, slices={"group": group})
    p_values = {each.value: each.given.p_value for each in report.slices}
    assert p_values["4"] < 0.05
    assert all(p > 0.05 for value, p in p_values.items() if value != "4")


@pytest.mark.thorough
def test_slices_before_and_after_and_all_columns_are_corrected_together():
    logits, labels = draw(1500, 3)
    slices = {"a": np.arange(1500) % 2, "b": np.arange(1500) % 5}
    selection = refocal.calibrate(3 * logits, labels, method="temperature")
    report = selection.report(3 * logits, labels, slices=slices)
    assert [each.column for each in report.slices] == ["a"] * 2 + ["b"] * 5
    smallest = min(report.slices, key=lambda each: each.given.p_value)
    rows = slices[smallest.column] == int(smallest.value)
    alone = refocal.evaluate(3 * logits[rows], labels[rows], slices={"one": np.zeros(np.count_nonzero(rows))})
    assert smallest.given.p_value == pytest.approx(7 * alone.slices[0].given.p_value)  # the first of seven
    assert all(each.chosen.ece.value < each.given.ece.value for each in report.slices)


def test_weights_count_as_repeated_rows():
    logits, labels = draw(300, 3)
    weight = np.random.default_rng(0).integers(1, 4, size=300)
    group = np.arange(300) % 2
    weighted = refocal.evaluate(logits, labels, sample_weight=weight, slices={"g": group})
    repeated = refocal.evaluate(
        np.repeat(logits, weight, axis=0), np.repeat(labels, weight), slices={"g": np.repeat(group, weight)}
    )
    pairs = [(weighted.slices, repeated.slices), (weighted.worst_classes, repeated.worst_classes)]
    for one, other in (pair for both in pairs for pair in zip(*both, strict=True)):
        assert one.given.predicted == pytest.approx(other.given.predicted)
        assert one.given.ece.value == pytest.approx(other.given.ece.value)


def test_a_small_slice_has_neither_interval_nor_test():
    logits, labels = draw(100, 3)
    report = refocal.evaluate(logits, labels, slices={"g": np.arange(100) < 3})
    small = report.slices[1]
    assert small.samples == 3
    assert (small.given.ece.low, small.given.ece.high, small.given.p_value) == (None, None, None)
    shown = render_page(report).partition("<main")[2].partition("<script")[0]
    assert "nan" not in shown.replace("data-value='nan'", "")


def list_slices(column):
    """The values of a column with their numbers of rows, in the order of a report."""
    rows = len(column)
    columns = read_slices({"g": column}, rows)
    found = measure_slices([np.full((rows, 2), 0.5)], np.zeros(rows, int), None, columns)
    return [(each.value, each.samples) for each in found]


def test_missing_values_are_one_slice_which_comes_last():
    assert list_slices(np.array([None, "a", float("nan"), "", np.float32("nan")], dtype=object)) == [
        ("a", 1),
        ("(missing)", 4),
    ]


def test_missing_values_of_frames_are_a_slice():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    arrow = pytest.importorskip("pyarrow")
    whole = [("2", 1), ("10", 1), ("(missing)", 1)]
    for column in (
        pandas.Series([10, None, 2], dtype="Int64"),
        pandas.Series([10, None, 2]),  # floats with NaN
        pandas.Series([10, pandas.NA, 2], dtype=object),
        polars.Series([10, None, 2]),
        arrow.array([10, None, 2]),
    ):
        assert list_slices(column) == whole
    text = [("a", 2), ("(missing)", 1)]
    for column in (
        pandas.Series(["a", None, "a"], dtype="category"),
        pandas.Series(["a", None, "a"]),
        ["a", None, "a"],
    ):
        assert list_slices(column) == text
    days = ["2026-01-31", None, "2026-01-31"]
    for column in (pandas.Series(pandas.to_datetime(days)), np.array(days, dtype="datetime64[ns]")):
        assert list_slices(column) == [("2026-01-31 00:00:00", 2), ("(missing)", 1)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([10, 9, 100], ["9", "10", "100"]),
        (["10", "9", "100"], ["9", "10", "100"]),  # as read from csv
        ([0.5, -1.0, 2.0], ["-1", "0.5", "2"]),
        (["b", "10", "9"], ["10", "9", "b"]),
        (["nan", "10", "9"], ["10", "9", "nan"]),
        ([True, False], ["False", "True"]),
    ],
)
def test_numbers_are_sorted_by_size_and_other_values_as_text(values, expected):
    assert [value for value, _ in list_slices(values)] == expected


@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
def test_slices_can_be_a_frame(package):
    library = pytest.importorskip(package)
    make = library.table if package == "pyarrow" else library.DataFrame
    columns = read_slices(make({"a": [1, 2], "b": ["x", "y"]}), 2)
    assert {name: texts.tolist() for name, texts in columns.items()} == {"a": ["1", "2"], "b": ["x", "y"]}


def test_holm_rejects_what_the_stepwise_procedure_rejects():
    p_values = np.random.default_rng(0).random(20) ** 3
    steps = [adjust_holm(np.array(p_values))[i] <= 0.05 for i in range(20)]
    order = np.argsort(p_values)
    rejected = np.zeros(20, dtype=bool)
    for rank, index in enumerate(order):
        if p_values[index] > 0.05 / (20 - rank):
            break
        rejected[index] = True
    assert steps == rejected.tolist()
    assert len(adjust_holm(np.array([]))) == 0


def test_wrong_slices_are_refused():
    logits, labels = draw(200, 3)
    with pytest.raises(ValueError, match=r"slices\['g'\] must have one value for each of 200 rows, got shape \(3,\)"):
        refocal.evaluate(logits, labels, slices={"g": [1, 2, 3]})
    with pytest.raises(ValueError, match=r"slices\['g'\] must have one value for each of 2 rows, got shape \(2, 1\)"):
        read_slices({"g": [[1], [2]]}, 2)
    with pytest.raises(TypeError, match="slices must be a dictionary of columns or a frame, got list"):
        read_slices([1, 2], 2)
    with pytest.raises(TypeError, match=r"slices\['g'\] must not be a masked array"):
        read_slices({"g": np.ma.array([1, 2], mask=[True, False])}, 2)
    with pytest.raises(ValueError, match=r"slices\['g'\] must have at most 100 different values, got 200: group them"):
        refocal.evaluate(logits, labels, slices={"g": np.arange(200)})


def test_the_worst_of_many_classes_are_partly_chance():
    rng = np.random.default_rng(0)
    report = refocal.evaluate(rng.normal(size=(300, 12)), rng.integers(0, 12, 300))
    assert "They were chosen for a large ECE, so part of it is chance." in subgroup_tables.build_worst_classes(report)
    assert subgroup_tables._points(-0.00001) == "0.00"
    assert subgroup_tables._points(-0.012) == "−1.20"
