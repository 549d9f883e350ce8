"""Columns beside the scores are kept, and written again."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from test_real_files import CHURN, read, save

from refocal.predictions import (
    ColumnChoice,
    Predictions,
    PredictionsError,
    PredictionsReader,
    PredictionsWarning,
    PredictionsWriter,
)


@pytest.fixture(params=[".csv", ".parquet"])
def path(request, tmp_path):
    return tmp_path / f"a{request.param}"


def test_columns_are_carried(path, tmp_path):
    save(path, {"id": ["007", "8", "9", "a,b"], **CHURN, "split": ["val", "val", "test", "val"]})
    columns = ColumnChoice(label="churned", prob="churn_probability", classes=("no", "yes"))
    found = Predictions.read(path, columns=columns, carry=True).select("val").take(np.array([2, 0]))
    for suffix in (".csv", ".parquet"):
        found.write(tmp_path / f"b{suffix}")
    with open(tmp_path / "b.csv", encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [
            ["id", "customer_id", "churned", "age", "split", "prob_yes"],
            ["a,b", "x", "no", "9", "val", "0.75"],
            ["007", "007", "no", "20", "val", "0.25"],
        ]
    table = pq.read_table(tmp_path / "b.parquet")
    assert table.column_names == ["id", "customer_id", "churned", "age", "split", "prob_yes"]
    assert table["prob_yes"].to_pylist() == [0.75, 0.25]
    with pytest.warns(PredictionsWarning, match="npz cannot hold other columns; not written: id, customer_id, age"):
        found.write(tmp_path / "b.npz")
    assert Predictions.read(tmp_path / "b.npz").class_names == ("no", "yes")


def test_carried_blocks_and_wholes_agree(path, tmp_path, monkeypatch):
    monkeypatch.setattr("refocal.predictions.protocol.BLOCK_SCORES", 16)
    monkeypatch.setattr("refocal.predictions.csv_text.BLOCK_BYTES", 256)
    rows = 300
    columns = {"id": [f"{k:04d}" for k in range(rows)], "prob_0": np.full(rows, 0.25), "prob_1": np.full(rows, 0.75)}
    save(path, {**columns, "weight": ["0.10"] * rows if path.suffix == ".csv" else [0.1] * rows, "label": [1] * rows})
    out = tmp_path / f"b{path.suffix}"
    choice = ColumnChoice(label="label", prob="prob_*")
    with PredictionsReader(path, columns=choice, carry=True) as blocks, PredictionsWriter(out) as writer:
        for block in blocks:
            writer.write(block)
    Predictions.read(path, columns=choice, carry=True).write(other := tmp_path / f"c{path.suffix}")
    one, two = (Predictions.read(file, columns=choice, carry=True) for file in (out, other))
    assert one.carried.table.equals(two.carried.table)
    assert one.carried.table["id"].to_pylist() == columns["id"]
    np.testing.assert_array_equal(one.sample_weight, 0.1)
    if path.suffix == ".csv":
        assert one.carried.table["weight"].to_pylist() == ["0.10"] * rows


def test_text_of_several_lines(tmp_path, monkeypatch):
    monkeypatch.setattr("refocal.predictions.csv_text.BLOCK_BYTES", 300)
    notes = ['a\nlonger "text", of\nlines' * (1 + k % 3) for k in range(200)]
    columns = {"note": notes, "probs": np.full(200, 0.5), "label": ["no", "yes"] * 100}
    path = save(tmp_path / "a.csv", columns)
    found = read(path, "not used: note; classes: no, yes")
    assert found.labels.tolist() == [0, 1] * 100
    choice = ColumnChoice(classes=("no", "yes"), label="label", prob="probs")
    assert Predictions.read(path, columns=choice, carry=True).carried.table["note"].to_pylist() == notes
    save(path, {**columns, "label": ["no", "yes"] * 99 + ["no", "maybe"]})
    with pytest.raises(
        PredictionsError, match=r"a.csv, label, row 199: must be one of the classes"
    ):  # of no known line
        Predictions.read(path, columns=choice)


def test_columns_that_cannot_be_carried(tmp_path):
    source = save(tmp_path / "a.parquet", {"logit_a": [0.5], "logit_b": [0.5], "prob_c": [0.5], "tags": [["x"]]})
    choice = ColumnChoice(label=None, logit="logit_*", ignore="tags")
    with pytest.warns(PredictionsWarning, match="kept as they are: prob_c"):
        found = Predictions.read(source, columns=choice, carry=True)
    with pytest.raises(
        PredictionsError, match=r"column 'prob_c' is there already: rename it, or leave it out with --ig"
    ):
        Predictions(np.array([[0.5, 0.5]]), input="probs", class_names=("c", "d"), carried=found.carried).write(
            tmp_path / "b.csv"
        )
    with pytest.warns(PredictionsWarning, match="kept as they are: prob_c, tags"):
        found = Predictions.read(source, columns=ColumnChoice(logit="logit_*"), carry=True)
    with pytest.raises(
        PredictionsError, match=r"column 'tags' holds list<.*>, which csv cannot: leave it out with --ig"
    ):
        found.write(tmp_path / "b.csv")
    assert [file.name for file in Path(tmp_path).iterdir()] == ["a.parquet"]


def test_some_columns_are_carried(path):
    save(path, CHURN)
    choice = ColumnChoice(label="churned")
    with pytest.warns(PredictionsWarning, match="churn_probability; not used: customer_id; classes: no, yes"):
        found = Predictions.read(path, columns=choice, carry=["age", "unknown"])
    assert set(found.carried.table.column_names) == {"churned", "age"}
    assert found.carried.others == ("customer_id", "age")


def test_lists_in_a_column_of_another_name(tmp_path):
    """Two values per row: the name of the column is not that of the second class."""
    path = save(tmp_path / "a.parquet", {"prob_x": [[0.25, 0.75], [0.5, 0.5]]})
    with pytest.warns(PredictionsWarning, match="prob_x"):
        Predictions.read(path, carry=True).write(tmp_path / "b.csv")
    assert (tmp_path / "b.csv").read_text(encoding="utf-8").splitlines()[0] == "prob_0,prob_1"
