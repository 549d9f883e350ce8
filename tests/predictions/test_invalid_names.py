"""Unknown, missing and repeated names of arrays and columns are rejected."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refocal.predictions import Predictions, PredictionsError, PredictionsWarning
from rejection import HALF, assert_rejected


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["logits", "probs"], "scores must be logits or probs, got both"),
        (["logits", "y", "target"], "the labels could be in 'y' or 'target': choose with --label, in Python Col"),
        (["Scores"], "scores are missing.* got 'Scores'; choose others with --prob or --logit, in Python ColumnChoice"),
        (["labels"], "scores are missing: the file must have an array 'logits' or 'probs', got 'labels'"),
        ([], "scores are missing.* got nothing"),
    ],
)
def test_names_of_arrays(names, message, tmp_path):
    np.savez(tmp_path / "a.npz", **{name: HALF for name in names})
    assert_rejected(tmp_path / "a.npz", message)


NAMES = [
    ("logit_0,label", "logit_0 is alone, but scores of one column are those of class 1: call it logit_1 if it is that"),
    ("logit_0,logit_01", "columns logit_... are numbered, but logit_01 is not: choose with --logit, in Python"),
    ("logit_0,logit_2", "numbered from 0 or 1 without gaps, but logit_1 is missing before logit_2; to use them"),
    ("logit_1,logit_3", "numbered from 0 or 1 without gaps, but logit_2 is missing before logit_3"),
    ("logit_2,logit_3", "numbered from 0 or 1 without gaps, but logit_0 is missing before logit_2"),
    ("p_cat,p_dog,prob_cat,prob_dog", "the scores could be in the columns p_... or prob_...: choose with --prob"),
    ("churn_probability,buy_probability", "the scores could be in 'churn_probability' or 'buy_probability'"),
    ("prob_0,prob_1,y,target", "the labels could be in 'y' or 'target': choose with --label"),
    ("logit_0,prob_1", "scores must be logits or probs, got both"),
    ("logits,prob_0", "scores must be logits or probs, got both"),
    ("logits,logit_0", "scores must be in one place, got columns logits and logit_0"),
    ("label,split", "scores are missing: the file must have columns logit_0 .* got 'label', 'split'"),
]


@pytest.mark.parametrize(("names", "message"), [*NAMES, ("logit_0,logit_0", "column 'logit_0' appears twice")])
def test_names_of_csv_columns(names, message, tmp_path):
    (tmp_path / "a.csv").write_text(f"{names}\n0,1\n", encoding="utf-8")
    assert_rejected(tmp_path / "a.csv", message)


@pytest.mark.parametrize(("names", "message"), [*NAMES, ("label,label", "column 'label' appears twice")])
def test_names_of_parquet_columns(names, message, tmp_path):
    columns = names.split(",")
    pq.write_table(pa.table([pa.array([0.0])] * len(columns), names=columns), tmp_path / "a.parquet")
    assert_rejected(tmp_path / "a.parquet", message)


@pytest.mark.parametrize(
    ("names", "listed"),
    [
        ("p_value,churn_probability", "'p_value' or 'churn_probability'"),
        ("p_age,p_value,prob", r"p_\.\.\. or 'prob'"),
        ("logit_scale,prob", "'logit_scale' or 'prob'"),
        ("logit_scale,p_value", "'logit_scale' or 'p_value'"),
        ("prob_yes,churn_probability", "'prob_yes' or 'churn_probability'"),
    ],
)
def test_a_stray_column_beats_no_other(tmp_path, names, listed):
    path = tmp_path / "a.csv"
    path.write_text(f"{names},label\n" + ",".join(["0.5"] * (names.count(",") + 1)) + ",1\n", encoding="utf-8")
    message = rf"a.csv: the scores could be in {listed}: choose with --prob, in Python Col.*, or with logit"
    with pytest.raises(PredictionsError, match=message):
        Predictions.read(path)


@pytest.mark.parametrize(
    "names", ["logit_scale,prob_0,prob_1", "p_value,prob_0,prob_1", "prob_0,prob_1,churn_probability"]
)
def test_numbered_columns_beat_stray_ones(tmp_path, names):
    path = tmp_path / "a.csv"
    path.write_text(f"{names},label\n0.5,0.5,0.5,1\n", encoding="utf-8")
    with pytest.warns(PredictionsWarning, match=r"not used: (?!prob_)\w+$"):
        assert Predictions.read(path).scores.tolist() == [[0.5, 0.5]]
