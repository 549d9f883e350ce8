"""Invalid values are rejected by the same rules as arguments and in every format, with their column and row."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refocal.predictions import Predictions, PredictionsError
from rejection import GOOD, HALF, assert_rejected


def test_one_class_of_errors():
    assert issubclass(PredictionsError, ValueError)


def put(array, index, value):
    changed = np.array(array)
    changed[index] = value
    return changed


VALUES = [
    ({"scores": put(GOOD, (1, 0), np.nan)}, r"logits, class 0, row 1: must be finite or -inf \(masked\), got nan"),
    ({"scores": put(GOOD, (2, 1), np.inf)}, r"logits, class 1, row 2: must be finite or -inf \(masked\), got inf"),
    ({"scores": put(GOOD, 1, -np.inf)}, "logits, row 1: must have at least one finite value per row, got only -inf"),
    ({"scores": put(GOOD[:, 0], 1, -np.inf)}, "logits, row 1: must be finite, got -inf"),
    ({"scores": GOOD, "input": "probs"}, r"probs, row 0: must sum to 1, got 3.0 \(are these logits\?\)"),
    ({"scores": put(HALF, 2, [-0.5, 1.5]), "input": "probs"}, "probs, class 0, row 2: must be non-negative.*got -0.5"),
    ({"scores": put(HALF, (1, 1), np.nan), "input": "probs"}, "probs, class 1, row 1: must be non-neg.*NaN, got nan"),
    (
        {"scores": HALF[:, 0] + [0, 0, 0.75], "input": "probs"},
        r"probs, row 2: must lie in \[0, 1\] \(are these logits or percentages\?\), got 1.25",
    ),
    ({"scores": HALF + 1e-3, "input": "probs"}, "probs, row 0: must sum to 1, got 1.002"),
    ({"scores": GOOD.astype(np.int64)}, "logits: must be float16, float32 or float64, got int64"),
    ({"scores": GOOD.astype(np.longdouble)}, "logits: must be float16, float32 or float64, got float128"),
    ({"scores": GOOD[None]}, r"logits: must have shape \(rows, classes\) or \(rows,\), got \(1, 3, 2\)"),
    ({"scores": GOOD[:, :0]}, r"logits: must have shape .* got \(3, 0\)"),
    ({"scores": GOOD[:0]}, "logits: there are no rows"),
    ({"labels": [0, 1, 2]}, "labels, row 2: must be a whole number from 0 to 1, got 2"),
    ({"labels": [0, -1, 1]}, "labels, row 1: must be a whole number from 0 to 1, got -1"),
    ({"labels": [0, 0.5, 1]}, "labels, row 1: must be a whole number from 0 to 1, got 0.5"),
    ({"labels": [0, 1, np.nan]}, "labels, row 2: (must be a whole number from 0 to 1, got nan|the label is missing)"),
    ({"labels": [0, 1]}, r"labels: must have shape \(3,\), one value per row, got \(2,\)"),
    ({"labels": [0j, 1j, 0j]}, "labels: must be numbers, got complex128"),
    ({"sample_weight": [0, -1, 1]}, "sample_weight, row 1: must be non-negative and finite, got -1"),
    ({"sample_weight": [0, 1, np.inf]}, "sample_weight, row 2: must be non-negative and finite, got inf"),
    ({"sample_weight": [[0, 1, 2]]}, r"sample_weight: must have shape \(3,\), one value per row, got \(1, 3\)"),
    ({"split": ["val", "val"]}, r"split: must have shape \(3,\), one value per row, got \(2,\)"),
    ({"split": ["val", "", "val"]}, "split, row 1: must be printable, nonempty text, got ''"),
    ({"split": ["val", "a\nb", "val"]}, r"split, row 1: must be printable, nonempty text, got 'a\\nb'"),
    ({"split": ["val", "\x85", "val"]}, r"split, row 1: must be printable, nonempty text"),
    ({"split": ["val", "\ud800", "val"]}, r"split, row 1: must be printable, nonempty text"),
    ({"split": ["a" * 65] * 3}, "split: must be text of 1 to 64 characters, got <U65"),
    ({"split": [0, 1, 2]}, "split: must be text, got int64"),
    ({"class_names": ("a",)}, r"class_names: must have one name for each of 2 classes, got shape \(1,\)"),
    ({"class_names": ()}, r"class_names: must have one name for each of 2 classes, got shape \(0,\)"),
    ({"class_names": ("a", "a")}, "class_names: must be different, got 'a' twice"),
    ({"class_names": (1, 2)}, "class_names, row 0: must be text of 1 to 256 characters, got 1"),
    ({"class_names": ("a", "b" * 257)}, "class_names, row 1: must be text of 1 to 256 characters, got 'bbb"),
    (
        {"scores": np.full((3, 2), 3e38, dtype=np.float32), "input": "probs"},
        "probs, row 0: must sum to 1, got inf",
    ),
    ({"class_names": ("a", "b\x1b[31m")}, "class_names, row 1: must be printable, nonempty text"),
    ({"input": "scores"}, "input must be 'logits' or 'probs', got 'scores'"),
]


WORDS = [  # labels of files, but not of arrays
    ({"labels": ["a", "b", "c"]}, "labels: must be numbers, got <U1"),
    ({"labels": [True, False, True]}, "labels: must be numbers, got bool"),
]


@pytest.mark.parametrize(("given", "message"), [*VALUES, *WORDS])
def test_values_as_arguments(given, message):
    arguments = {"input": "logits", "scores": GOOD, **given}
    with pytest.raises(PredictionsError, match="^" + message):
        Predictions(arguments.pop("scores"), **arguments)


@pytest.mark.parametrize(("given", "message"), [case for case in VALUES if "input must" not in case[1]])
def test_values_in_npz(given, message, tmp_path):
    arguments = {"input": "logits", "scores": GOOD, **given}
    arrays = {arguments.pop("input"): arguments.pop("scores")}
    for name, value in arguments.items():
        arrays[name.replace("sample_weight", "weights")] = np.asarray(value, dtype=None if len(value) else str)
    np.savez(tmp_path / "a.npz", **arrays)
    message = re.sub("class_names, row .: must be text.*", "class_names: must be text", message)
    assert_rejected(tmp_path / "a.npz", message.replace("sample_weight", "weights"))


def test_rows_are_counted_over_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("refocal.predictions.protocol.BLOCK_SCORES", 16)
    monkeypatch.setattr("refocal.predictions.csv_text.BLOCK_BYTES", 256)
    labels = np.zeros(1000, dtype=np.int64)
    labels[777] = 2
    np.savez(tmp_path / "a.npz", logits=np.zeros((1000, 2)), labels=labels)
    pq.write_table(pa.table({"logits": [[0.0, 0.0]] * 1000, "label": labels}), tmp_path / "a.parquet")
    lines = ["logit_0,logit_1,label", *(f"0,0,{label}" for label in labels)]
    (tmp_path / "a.csv").write_text("\n".join(lines), encoding="utf-8")
    assert_rejected(tmp_path / "a.npz", "labels, row 777: .* got 2")
    assert_rejected(tmp_path / "a.parquet", "label, row 777: .* got 2")
    assert_rejected(tmp_path / "a.csv", r"label, row 777 \(line 779\): .* got 2")
    (tmp_path / "a.csv").write_text("\n".join(lines).replace("0,0,2", "0,zero,2"), encoding="utf-8")
    assert_rejected(tmp_path / "a.csv", r"logit_1, row 777 \(line 779\): must be a number, got 'zero'")
