"""Random parts of a data set: the same rows in every engine, with their weights, and none of them twice."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from data_sets import SIZES, predictions, write
from rich.console import Console

import refocal
from refocal import scale
from refocal.calibrators import PlattScaling, TemperatureScaling
from refocal.predictions import Predictions
from refocal.report.decision_tables import describe_changed, describe_threshold
from refocal.report.table import compare_reports
from refocal.scale.engines import open_engine
from refocal.scale.parts import RowReader, find_files, require_form
from refocal.scale.sampling import Share, choose_sample_size, count_rows, draw_sample
from refocal.scale.selecting import Rows, find_splits, select_and_report


def open_rows(folder, **settings):
    files = find_files(folder / "*.parquet")
    return Rows(files, RowReader(require_form(files), **settings))


def draw(rows, **settings):
    with open_engine() as engine:
        of = count_rows(engine, rows.files, rows.reader)
        return draw_sample(engine, rows.files, rows.reader, of=of, **settings)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_sample_holds_rows_of_the_files_in_order(tmp_path, weighted):
    whole = write(tmp_path, weighted=weighted)
    drawn = draw(open_rows(tmp_path), size=2000, seed=0)
    assert 1800 < len(drawn.labels) < 2200
    place = {row.tobytes(): number for number, row in enumerate(whole.scores)}
    numbers = [place[row.tobytes()] for row in drawn.scores]
    assert numbers == sorted(set(numbers))
    np.testing.assert_array_equal(drawn.labels, whole.labels[numbers])
    if weighted:
        np.testing.assert_array_equal(drawn.sample_weight, whole.sample_weight[numbers])
        assert set(drawn.sample_weight) == {1.0, 2.5}  # rows of weight 0 count nothing
    else:
        assert drawn.sample_weight is None
    per_file = np.histogram(numbers, bins=np.cumsum([0, *SIZES]))[0] / np.maximum(SIZES, 1)
    assert per_file[[0, 3]] == pytest.approx(len(numbers) / sum(SIZES), rel=0.2)


def test_a_seed_gives_the_same_rows_and_another_gives_others(tmp_path):
    write(tmp_path)
    one, same, other = (draw(open_rows(tmp_path), size=500, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.scores, same.scores)
    assert one.scores.shape != other.scores.shape or not np.array_equal(one.scores, other.scores)
    everything = draw(open_rows(tmp_path), size=sum(SIZES), seed=3)
    assert len(everything.labels) == sum(SIZES)


def test_rows_do_not_depend_on_the_blocks_they_are_read_in(tmp_path):
    """Parquet files with other row groups, in another folder, have the same sample."""
    import pyarrow.parquet as pq

    write(tmp_path / "a")
    (tmp_path / "b").mkdir()
    for path in sorted((tmp_path / "a").iterdir()):
        pq.write_table(pq.read_table(path), tmp_path / "b" / path.name, row_group_size=700)
    one, two = (draw(open_rows(tmp_path / name), size=500, seed=0) for name in ("a", "b"))
    np.testing.assert_array_equal(one.scores, two.scores)


def test_parts_divide_the_rows(tmp_path):
    whole = write(tmp_path)
    rows = open_rows(tmp_path)
    fitted, measured = rows.cut(0.3, 1.0, seed=5), rows.cut(0.0, 0.3, seed=5)
    parts = [draw(part, size=10**6, seed=5) for part in (fitted, measured)]
    found = np.concatenate([part.scores for part in parts])
    assert len(parts[1].labels) == pytest.approx(0.3 * len(whole), rel=0.05)
    np.testing.assert_array_equal(np.unique(found, axis=0), np.unique(whole.scores, axis=0))
    small = draw(measured, size=300, seed=5)
    inside = {row.tobytes() for row in parts[1].scores}
    assert 230 < len(small.labels) < 370
    assert all(row.tobytes() in inside for row in small.scores)


@pytest.mark.thorough
def test_a_report_on_a_sample(tmp_path):
    """Measures are those of all rows, limits those of the sample; a sample of all rows gives the usual report."""
    whole = write(tmp_path, weighted=True)
    calibrator = TemperatureScaling().fit(whole.scores, whole.labels)
    sums = scale.evaluate(tmp_path / "*.parquet", calibrator=calibrator)
    found = scale.evaluate(tmp_path / "*.parquet", calibrator=calibrator, sample=1000, seed=2)
    assert (found.samples, found.total_weight) == (sums.samples, sums.total_weight)
    for one, two in ((found.given, sums.given), (found.chosen, sums.chosen)):
        assert {name: one.measures[name].value for name in two.measures} == {
            name: estimate.value for name, estimate in two.measures.items()
        }
        assert one.p_value == one.diagnosis.p_value
        assert two.p_value is None
        assert one.measures["nll"].low < one.measures["nll"].value < one.measures["nll"].high
        assert sum(one.diagram.count) < 0.5 * sums.total_weight
    assert found.verdict.regime == "overconfident"
    assert found.protocol.endswith("chosen at random (seed 2).")
    everything = scale.evaluate(tmp_path / "*.parquet", sample=10**5, source="files")
    kept = whole.take(whole.sample_weight > 0)
    usual = refocal.evaluate(kept.scores, kept.labels, sample_weight=kept.sample_weight, source="files")
    assert everything.to_json() == usual.to_json()


def test_reports_side_by_side_state_their_samples(tmp_path):
    write(tmp_path)
    reports = [scale.evaluate(tmp_path / "*.parquet", sample=500, by_class=False, source=name) for name in "ab"]
    console = Console(file=io.StringIO(), width=200)
    console.print(compare_reports(reports))
    for name, report in zip("ab", reports, strict=True):
        assert f"{name}: {report.protocol}" in " ".join(console.file.getvalue().split())


@pytest.mark.thorough
def test_the_choice_of_a_method_over_files(tmp_path):
    """Small files give the same selection as their rows in memory."""
    whole = write(tmp_path / "val")
    write(tmp_path / "test")
    with open_engine() as engine:
        val, test = (open_rows(tmp_path / name, finite=True) for name in ("val", "test"))
        settings = {"most_rows": 10**5, "seed": 0, "source": "test"}
        selection, report = select_and_report(engine, val, test, {"method": "vector"}, **settings)
        assert find_splits(engine, val.files, val.reader) == ("",)
    usual = refocal.calibrate(whole.scores, whole.labels, method="vector")
    np.testing.assert_array_equal(selection.predict_proba(whole.scores[:50]), usual.predict_proba(whole.scores[:50]))
    expected = usual.report(whole.scores, whole.labels)
    assert report.chosen.measures == expected.chosen.measures
    assert report.protocol == ""


def test_a_choice_on_a_sample_is_stated(tmp_path):
    write(tmp_path / "val")
    predictions(800, 1).write(tmp_path / "test.parquet")
    with open_engine() as engine:
        val, test = open_rows(tmp_path / "val", finite=True), open_rows(tmp_path, finite=True)
        settings = {"most_rows": 1000, "seed": 0, "source": "test"}
        report = select_and_report(engine, val, test, {"method": "temperature"}, **settings)[1]
    assert re.fullmatch(
        r"Methods were chosen and fitted on [\d,]+ of 3,812 rows, temperatures on all\.", report.protocol
    )


def test_two_classes_are_about_the_second_one(tmp_path):
    rng = np.random.default_rng(0)
    log_odds = 3 * rng.standard_normal(5000)
    labels = (rng.random(5000) < 1 / (1 + np.exp(-log_odds / 2))).astype(int)
    Predictions(log_odds, input="logits", labels=labels).write(tmp_path / "a.npz")
    found = scale.evaluate(tmp_path / "a.npz", sample=1000).given.measures
    expected = refocal.evaluate(log_odds, labels).given.measures
    assert list(found)[: len(expected)] == list(expected)
    for name in ("nll", "brier", "ece", "error"):
        assert found[name].value == pytest.approx(expected[name].value)


def test_thresholds_of_a_sample_count_the_rows_of_the_sample(tmp_path):
    """Shares and costs divide by the rows that were drawn, not by those of the file."""
    rng = np.random.default_rng(0)
    log_odds = 3 * rng.standard_normal(5000)
    labels = (rng.random(5000) < 1 / (1 + np.exp(-log_odds / 2))).astype(int)
    path = tmp_path / "a.parquet"
    Predictions(log_odds, input="logits", labels=labels).write(path)
    calibrator = PlattScaling().fit(log_odds, labels)
    report = scale.evaluate(path, calibrator=calibrator, sample=1000, seed=4)
    drawn = draw(open_rows(tmp_path), size=1000, seed=4)
    given = 1 / (1 + np.exp(-drawn.scores))
    chosen = calibrator.predict_proba(drawn.scores)[:, 1]
    found, at = report.thresholds, 79
    assert (report.samples, found.total) == (5000, len(drawn.labels))
    assert found.thresholds[at] == 0.8
    assert found.positives == drawn.labels.sum()
    assert found.flagged_given[at] == np.sum(given >= 0.8)
    assert found.hits_chosen[at] == drawn.labels[chosen >= 0.8].sum()
    changed = int(np.sum((given >= 0.8) != (chosen >= 0.8)))
    assert describe_changed(found, at) == f"{changed} decisions change ({changed / len(given):.1%})."
    missed = found.positives - found.hits_given[at]
    cost = 1000 * (found.flagged_given[at] - found.hits_given[at] + missed / 4) / len(given)
    assert describe_threshold(found, at, "given")["cost"] == f"{cost:.1f}"


def test_sizes_and_settings(tmp_path):
    assert choose_sample_size(10) == 100_000
    assert choose_sample_size(1000) == 20_000
    assert choose_sample_size(10, most_rows=1) == 1000
    assert choose_sample_size(100_000, most_rows=1) == 20
    predictions(30, 0).write(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="sample must be at least 1, got 0"):
        scale.evaluate(tmp_path / "a.npz", sample=0)
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        scale.evaluate(tmp_path / "a.npz", sample=10, seed=-1)
    with pytest.raises(ValueError, match=r"b\.npz has no rows of split 'val' with a positive weight"):
        split = predictions(30, 0)
        replace(split, split=["test"] * 30).write(tmp_path / "b.npz")
        files = find_files(tmp_path / "b.npz")
        with open_engine() as engine:
            count_rows(engine, files, RowReader(require_form(files), split="val"))
    assert Share.of(files, seed=0).cut(0.5, 1.0).cut(0.5, 1.0).low == 0.75
