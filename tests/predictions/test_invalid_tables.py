"""Invalid rows of csv and parquet files are rejected, with their column, row and line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refocal.predictions import ColumnChoice, PredictionsError
from refocal.predictions.checks import Columns
from refocal.predictions.classes import Classes
from refocal.predictions.errors import Place
from refocal.predictions.labels import LabelCoding
from refocal.predictions.protocol import FileSize, OpenFile
from refocal.predictions.reader import check_blocks
from rejection import GOOD, assert_rejected

LIST = 'logits,label\n"[1, 2, 3]",0\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty: line 1 must be a header"),
        ("\n", "the file is empty"),
        ("logit_1,label\n", "there are no rows"),
        ("logit_1,label\n1,0\n1\n", r"row 1 \(line 3\): Expected 2 columns, got 1"),
        ("logit_1,label\n1,0\n1,0,0\n", r"row 1 \(line 3\): Expected 2 columns, got 3"),
        ("logit_1,label\n1,0\n\n1,0\n", r"logit_1, row 1 \(line 3\): must be a number, got ''"),
        ("logit_1,label\n1,0\n1,\n", r"label, row 1 \(line 3\): the label is missing; leave such rows out"),
        ("logit_1,label\n1,0\n1,1\n1,x\n", "label: there are 2 classes, but the labels are 0, 1, x: "),
        ("logit_1,label\n1,0\ncat,0\n", r"logit_1, row 1 \(line 3\): must be a number, got 'cat'"),
        ("logit_1,label\n1,0\nNaN,0\n", r"logit_1, row 1 \(line 3\): must be finite, got nan"),
        ("logit_1,label\n1,0\n0,1.5\n", r"label, row 1 \(line 3\): must be a whole number from 0 to 1, got 1.5"),
        (
            "prob_0,prob_1\n1,0\n0.5,0.6\n",
            r"prob_\.\.\., row 1 \(line 3\): must sum to 1, got 1.1 .*; the columns of the classes are prob_0, prob_1$",
        ),
        ("prob_0,prob_1,prob_2\n25,25,49.9\n", "must sum to 1, got 99.9: divide percentages by 100"),
        ("prob_1,label\n30,1\n", r"must lie in \[0, 1\] .*got 30.0; divide percentages by 100; for logits, choose wit"),
        ("logit_1,label\n1,0\n1,-1\n1,1\n", r"must be a whole number .* got -1; leave out rows without a label"),
        ("0.25,0\n0.5,1\n", "scores are missing: .*; line 1 must be a header with the names of the columns"),
        (
            "prob_0,prob_1\n1,0\n-1,2\n",
            r"prob_0, row 1 \(line 3\): must be .* not NaN, got -1.*; for logits, choose with --logit",
        ),
        ("logit_1,weight\n1,0\n1,-1\n", r"weight, row 1 \(line 3\): must be non-negative and finite, got -1"),
        ('logit_1,split\n1,a\n1,""\n', r"split, row 1 \(line 3\): must be printable, nonempty text"),
        ('logit_1,split\n1,a\n1,"a\nb"\n', r"split, row 1 \(line 3\): must be printable, nonempty text"),
        (f"logit_1,split\n1,a\n1,{'b' * 65}\n", r"split, row 1 \(line 3\): must be printable text of 1 to 64"),
        (b"logit_1,split\n1,a\n1,\xff\n", r"split, row 1 \(line 3\): must be UTF-8 text"),
        (b"logit_\xff\n1\n", "the header must be UTF-8 text, got byte 0xff: save the file as csv in UTF-8"),
        (LIST + '"[1, 2]",0\n', r"logits, row 1 \(line 3\): must have 3 values per row like the rows before, got 2"),
        (LIST + '"[1, 2, b]",0\n', r"logits, row 1 \(line 3\): must be a number, got 'b'"),
        (LIST + '"[1, , 3]",0\n', r"logits, row 1 \(line 3\): must be a number, got ''"),
        (LIST + '"1, 2, 3",0\n', r"logits, row 1 \(line 3\): must be a list \[a, b, ...\], got '1, 2, 3'"),
        ("logits\n[]\n", r"logits, row 0 \(line 2\): must be a number, got ''"),
        ("logits\n1\n[1]\n", r"logits, row 1 \(line 3\): must be a number, got '\[1\]'"),
    ],
)
def test_csv(text, message, tmp_path):
    (tmp_path / "a.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert_rejected(tmp_path / "a.csv", message)


def test_lists_of_csv_and_parquet_keep_their_length_over_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("refocal.predictions.protocol.BLOCK_SCORES", 16)
    monkeypatch.setattr("refocal.predictions.csv_text.BLOCK_BYTES", 256)
    lists = [[1.0, 2.0]] * 200 + [[1.0, 2.0, 3.0]] * 800
    (tmp_path / "a.csv").write_text("\n".join(["logits", *(f'"{row}"' for row in lists)]), encoding="utf-8")
    pq.write_table(pa.table({"logits": lists}), tmp_path / "a.parquet", row_group_size=200)
    assert_rejected(tmp_path / "a.csv", r"logits, row 200 \(line 202\): must have 2 values .* before, got 3")
    assert_rejected(tmp_path / "a.parquet", r"logits, row 200: must have 2 values .* before, got 3")


# Arrow before 26 cannot read a missing list of fixed size: the file is rejected with the message of Arrow
ARROW = int(pa.__version__.split(".")[0])
NO_LIST = "logits, row 1: a value is missing" if ARROW >= 26 else "cannot read.*Expected all lists to be of size=1"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"logits": [[1.0, 2.0], [1.0]]}, "logits, row 1: must have 2 values per row like the rows before, got 1"),
        ({"logits": [[1.0, 2.0], None]}, "logits, row 1: a value is missing"),
        ({"logits": [[1.0, 2.0], [1.0, None]]}, "logits, row 1: a value is missing"),
        ({"logits": pa.array([[1.0], None], pa.list_(pa.float64(), 1))}, NO_LIST),
        ({"logits": pa.array([[], []], pa.list_(pa.float64()))}, "logits, row 0: must have at least one value per row"),
        ({"logits": [["a", "b"]]}, "logits: must be float16, float32 or float64, got string"),
        ({"logits": ["a", "b"]}, "logits: must be float16, float32 or float64, got string"),
        ({"logit_1": [1, 2]}, "logit_1: must be float16, float32 or float64, got int64"),
        ({"logit_1": [1.0, None]}, "logit_1, row 1: a value is missing"),
        ({"logit_1": [1.0, np.nan]}, "logit_1, row 1: must be finite, got nan"),
        ({"logits": [1.0, 2.0], "label": [0, None]}, "label, row 1: the label is missing"),
        (
            {"logits": [1.0, 2.0], "label": ["a"] * 2},
            "label: there are 2 classes, but the labels are a: name the .* --classes",
        ),
        ({"logits": [1.0, 2.0], "label": ["a", "b" * 257]}, "label, row 1: must be printable text of 1 to 256"),
        ({"logits": [1.0, 2.0], "label": [[1], [2]]}, "label, class 0, row 1: must be 0 or 1, got 2"),
        ({"logits": [1.0, 2.0], "split": ["a", None]}, "split, row 1: a value is missing"),
        ({"logits": [1.0, 2.0], "split": ["a", "b" * 65]}, "split, row 1: must be printable text of 1 to 64"),
        ({"logits": [1.0, 2.0], "split": ["a", "b\0"]}, "split, row 1: must be printable text of 1 to 64"),
        ({"logits": [1.0, 2.0], "split": [1, 2]}, "split: must be text, got int64"),
        ({"logits": pa.array([], pa.float64())}, "there are no rows"),
        ({"logits": [[1.0, 2.0], [np.nan, 0.0]]}, "logits, class 0, row 1: must be finite or -inf .*, got nan"),
        ({"probs": [[0.5, 0.5], [0.5, 0.25]]}, "probs, row 1: must sum to 1, got 0.75"),
        ({"logits": [1.0, 2.0], "label": [0, 2]}, "label, row 1: must be a whole number from 0 to 1, got 2"),
        ({"logits": [1.0, 2.0], "label": [0, 0.5]}, "label, row 1: must be a whole number from 0 to 1, got 0.5"),
        ({"logits": [1.0, 2.0], "weight": [0, -1]}, "weight, row 1: must be non-negative and finite, got -1"),
        ({"logits": [1.0, 2.0], "split": ["a", "b\x7f"]}, "split, row 1: must be printable, nonempty text"),
    ],
)
def test_parquet_columns(columns, message, tmp_path):
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert_rejected(tmp_path / "a.parquet", message)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (b"{", "cannot read class_names"),
        (b"[1]", "class_names: must be a JSON list of strings"),
        (b'["a", "b"]', r"class_names: must have one name for each of 3 classes, got shape \(2,\)"),
        (b'["a", "b", "b"]', "class_names: must be different, got 'b' twice"),
    ],
)
def test_class_names_of_parquet(names, message, tmp_path):
    table = pa.table({"logits": [[1.0, 2.0, 3.0]]}).replace_schema_metadata({"refocal.class_names": names})
    pq.write_table(table, tmp_path / "a.parquet")
    assert_rejected(tmp_path / "a.parquet", message)


def test_number_of_rows_differs_from_the_header():
    place = Place(Path("a.parquet"))
    opened = OpenFile("logits", Classes(LabelCoding(2), None), 5, FileSize(5, 3), place, iter([Columns(GOOD)]))
    with pytest.raises(
        PredictionsError, match=r"a\.parquet: contains 3 rows, but its header says 5: the file is damaged"
    ):
        list(check_blocks(opened, ColumnChoice()))
