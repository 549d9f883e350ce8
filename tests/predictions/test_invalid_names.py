"""Unknown, missing and repeated names of arrays and columns are rejected."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rejection import HALF, assert_rejected


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["logits", "probs"], "scores must be logits or probs, got both"),
        (["logits", "y", "target"], "the labels could be in 'y' or 'target': choose with --label, in Python Col"),
        (["Scores"], "scores are missing.* got 'Scores'; choose others with --prob, in Python ColumnChoice"),
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
