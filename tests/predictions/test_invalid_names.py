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
        (["logits", "label"], "unknown array 'label'; did you mean 'labels'?"),
        (["Logits"], "unknown array 'Logits'; did you mean 'logits'?"),
        (["logits", "zebra"], r"unknown array 'zebra' \(known: logits, probs, labels"),
        (["labels"], "scores are missing: the file must have an array 'logits' or 'probs', got 'labels'"),
        ([], "scores are missing.* got nothing"),
    ],
)
def test_names_of_arrays(names, message, tmp_path):
    np.savez(tmp_path / "a.npz", **{name: HALF for name in names})
    assert_rejected(tmp_path / "a.npz", message)


NAMES = [
    ("logit_0,logit_1,lable", "unknown column 'lable'; did you mean 'label'?"),
    ("logit_0,logit1", r"unknown column 'logit1'; did you mean 'logits'?"),
    ("logit_0,logit_01", "unknown column 'logit_01'; did you mean 'logit_0'?"),
    ("logit_0, logit_1", "unknown column ' logit_1'; did you mean 'logit_1'?"),
    ("Prob_0,Prob_1", "unknown column 'Prob_0'; did you mean 'prob_0'?"),
    ("logit_0,zebra", r"unknown column 'zebra' \(known: logits, probs, logit_0, prob_0, label, split, weight\)"),
    ("logit_0,logit_2", "numbered from 0 without gaps, but logit_1 is missing before logit_2"),
    ("logit_1,logit_2", "numbered from 0 without gaps, but logit_0 is missing before logit_1"),
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
