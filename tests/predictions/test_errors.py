"""Every error names the file, the column and the row."""

from __future__ import annotations

import io
import re
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refocal.predictions import Predictions, PredictionsError, PredictionsReader, PredictionsWriter
from refocal.predictions.checks import Columns
from refocal.predictions.errors import Place
from refocal.predictions.protocol import Size, Source
from refocal.predictions.reader import checked_blocks

GOOD = np.array([[2.0, 1.0], [0.5, 1.5], [1.0, 0.0]])
HALF = np.full((3, 2), 0.5)


def rejected(path, message):
    """Reading whole and in blocks gives the error, with the path before it."""
    expected = re.compile(re.escape(str(path)) + ".*" + message, re.DOTALL)
    with pytest.raises(PredictionsError, match=expected):
        Predictions.read(path)
    with pytest.raises(PredictionsError, match=expected), PredictionsReader(path) as blocks:
        list(blocks)


def put(array, index, value):
    changed = np.array(array)
    changed[index] = value
    return changed


def test_one_class_of_errors():
    assert issubclass(PredictionsError, ValueError)


# Values, as arguments: the rules are the same in every format

VALUES = [
    ({"scores": put(GOOD, (1, 0), np.nan)}, r"logits, class 0, row 1: must be finite or -inf \(masked\), got nan"),
    ({"scores": put(GOOD, (2, 1), np.inf)}, r"logits, class 1, row 2: must be finite or -inf \(masked\), got inf"),
    ({"scores": put(GOOD, 1, -np.inf)}, "logits, row 1: must have one finite value a row, got -inf only"),
    ({"scores": put(GOOD[:, 0], 1, -np.inf)}, "logits, row 1: must be finite, got -inf"),
    ({"scores": GOOD, "input": "probs"}, r"probs, row 0: must sum to 1 a row, got 3.0"),
    ({"scores": put(HALF, 2, [-0.5, 1.5]), "input": "probs"}, "probs, class 0, row 2: must be non-negative.*got -0.5"),
    ({"scores": put(HALF, (1, 1), np.nan), "input": "probs"}, "probs, class 1, row 1: must be non-neg.*NaN, got nan"),
    ({"scores": HALF[:, 0] + [0, 0, 0.75], "input": "probs"}, r"probs, row 2: must lie in \[0, 1\], got 1.25"),
    ({"scores": HALF + 1e-3, "input": "probs"}, "probs, row 0: must sum to 1 a row, got 1.002"),
    ({"scores": GOOD.astype(np.int64)}, "logits: must be float16, float32 or float64, got int64"),
    ({"scores": GOOD.astype(np.longdouble)}, "logits: must be float16, float32 or float64, got float128"),
    ({"scores": GOOD[None]}, r"logits: must have shape \(rows, classes\) or \(rows,\), got \(1, 3, 2\)"),
    ({"scores": GOOD[:, :0]}, r"logits: must have shape .* got \(3, 0\)"),
    ({"scores": GOOD[:0]}, "logits: there are no rows"),
    ({"labels": [0, 1, 2]}, "labels, row 2: must be a whole number from 0 to 1, got 2"),
    ({"labels": [0, -1, 1]}, "labels, row 1: must be a whole number from 0 to 1, got -1"),
    ({"labels": [0, 0.5, 1]}, "labels, row 1: must be a whole number from 0 to 1, got 0.5"),
    ({"labels": [0, 1, np.nan]}, "labels, row 2: must be a whole number from 0 to 1, got nan"),
    ({"labels": [0, 1]}, r"labels: must have shape \(3,\), one value a row, got \(2,\)"),
    ({"labels": ["a", "b", "c"]}, "labels: must be numbers, got <U1"),
    ({"labels": [True, False, True]}, "labels: must be numbers, got bool"),
    ({"sample_weight": [0, -1, 1]}, "sample_weight, row 1: must be non-negative and finite, got -1"),
    ({"sample_weight": [0, 1, np.inf]}, "sample_weight, row 2: must be non-negative and finite, got inf"),
    ({"sample_weight": [[0, 1, 2]]}, r"sample_weight: must have shape \(3,\), one value a row, got \(1, 3\)"),
    ({"split": ["val", "val"]}, r"split: must have shape \(3,\), one value a row, got \(2,\)"),
    ({"split": ["val", "", "val"]}, "split, row 1: must be printable text, not empty, got ''"),
    ({"split": ["val", "a\nb", "val"]}, r"split, row 1: must be printable text, not empty, got 'a\\nb'"),
    ({"split": ["val", "\x85", "val"]}, r"split, row 1: must be printable text"),
    ({"split": ["val", "\ud800", "val"]}, r"split, row 1: must be printable text"),
    ({"split": ["a" * 65] * 3}, "split: must be text of 1 to 64 characters, got <U65"),
    ({"split": [0, 1, 2]}, "split: must be text, got int64"),
    ({"class_names": ("a",)}, r"class_names: must name each of 2 classes, got shape \(1,\)"),
    ({"class_names": ()}, r"class_names: must name each of 2 classes, got shape \(0,\)"),
    ({"class_names": ("a", "a")}, "class_names: must be different, got 'a' twice"),
    ({"class_names": (1, 2)}, "class_names, row 0: must be text of 1 to 256 characters, got 1"),
    ({"class_names": ("a", "b" * 257)}, "class_names, row 1: must be text of 1 to 256 characters, got 'bbb"),
    (
        {"scores": np.full((3, 2), 3e38, dtype=np.float32), "input": "probs"},
        "probs, row 0: must sum to 1 a row, got inf",
    ),
    ({"class_names": ("a", "b\x1b[31m")}, "class_names, row 1: must be printable text"),
    ({"input": "scores"}, "input must be 'logits' or 'probs', got 'scores'"),
]


@pytest.mark.parametrize(("given", "message"), VALUES)
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
    rejected(tmp_path / "a.npz", message.replace("sample_weight", "weights"))


def test_rows_are_counted_over_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("refocal.predictions.protocol.BLOCK_SCORES", 16)
    monkeypatch.setattr("refocal.predictions.csv._BLOCK_BYTES", 256)
    labels = np.zeros(1000, dtype=np.int64)
    labels[777] = 2
    np.savez(tmp_path / "a.npz", logits=np.zeros((1000, 2)), labels=labels)
    pq.write_table(pa.table({"logits": [[0.0, 0.0]] * 1000, "label": labels}), tmp_path / "a.parquet")
    lines = ["logit_0,logit_1,label", *(f"0,0,{label}" for label in labels)]
    (tmp_path / "a.csv").write_text("\n".join(lines), encoding="utf-8")
    rejected(tmp_path / "a.npz", "labels, row 777: .* got 2")
    rejected(tmp_path / "a.parquet", "label, row 777: .* got 2")
    rejected(tmp_path / "a.csv", r"label, row 777 \(line 779\): .* got 2")
    (tmp_path / "a.csv").write_text("\n".join(lines).replace("0,0,2", "0,zero,2"), encoding="utf-8")
    rejected(tmp_path / "a.csv", r"logit_1, row 777 \(line 779\): must be a number, got 'zero'")


# Names of columns and arrays


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["logits", "probs"], "scores must be logits or probs, got both"),
        (["logits", "label"], "unknown array 'label', did you mean 'labels'?"),
        (["Logits"], "unknown array 'Logits', did you mean 'logits'?"),
        (["logits", "zebra"], r"unknown array 'zebra' \(known: logits, probs, labels"),
        (["labels"], "scores are missing: there must be an array 'logits' or 'probs', got 'labels'"),
        ([], "scores are missing.* got nothing"),
    ],
)
def test_names_of_arrays(names, message, tmp_path):
    np.savez(tmp_path / "a.npz", **{name: HALF for name in names})
    rejected(tmp_path / "a.npz", message)


NAMES = [
    ("logit_0,logit_1,lable", "unknown column 'lable', did you mean 'label'?"),
    ("logit_0,logit1", r"unknown column 'logit1', did you mean 'logits'?"),
    ("logit_0,logit_01", "unknown column 'logit_01', did you mean 'logit_0'?"),
    ("logit_0, logit_1", "unknown column ' logit_1', did you mean 'logit_1'?"),
    ("Prob_0,Prob_1", "unknown column 'Prob_0', did you mean 'prob_0'?"),
    ("logit_0,zebra", r"unknown column 'zebra' \(known: logits, probs, logit_0, prob_0, label, split, weight\)"),
    ("logit_0,logit_2", "numbered from 0 without gaps, logit_1 is missing before logit_2"),
    ("logit_1,logit_2", "numbered from 0 without gaps, logit_0 is missing before logit_1"),
    ("logit_0,prob_1", "scores must be logits or probs, got both"),
    ("logits,prob_0", "scores must be logits or probs, got both"),
    ("logits,logit_0", "scores must stand in one place, got the columns logits and logit_0"),
    ("label,split", "scores are missing: there must be columns logit_0 .* got 'label', 'split'"),
]


@pytest.mark.parametrize(("names", "message"), [*NAMES, ("logit_0,logit_0", "column 'logit_0' stands there twice")])
def test_names_of_csv_columns(names, message, tmp_path):
    (tmp_path / "a.csv").write_text(f"{names}\n0,1\n", encoding="utf-8")
    rejected(tmp_path / "a.csv", message)


@pytest.mark.parametrize(("names", "message"), [*NAMES, ("label,label", "column 'label' stands there twice")])
def test_names_of_parquet_columns(names, message, tmp_path):
    columns = names.split(",")
    pq.write_table(pa.table([pa.array([0.0])] * len(columns), names=columns), tmp_path / "a.parquet")
    rejected(tmp_path / "a.parquet", message)


# csv

LIST = 'logits,label\n"[1, 2, 3]",0\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty: a header .* must stand on line 1"),
        ("\n", "the file is empty"),
        ("logit_0,label\n", "there are no rows"),
        ("logit_0,label\n1,0\n1\n", r"row 1 \(line 3\): Expected 2 columns, got 1"),
        ("logit_0,label\n1,0\n1,0,0\n", r"row 1 \(line 3\): Expected 2 columns, got 3"),
        ("logit_0,label\n1,0\n\n1,0\n", r"logit_0, row 1 \(line 3\): must be a number, got ''"),
        ("logit_0,label\n1,0\n1,\n", r"label, row 1 \(line 3\): must be a number, got ''"),
        ("logit_0,label\n1,0\ncat,0\n", r"logit_0, row 1 \(line 3\): must be a number, got 'cat'"),
        ("logit_0,label\n1,0\nNaN,0\n", r"logit_0, row 1 \(line 3\): must be finite, got nan"),
        ("logit_0,label\n1,0\n0,1.5\n", r"label, row 1 \(line 3\): must be a whole number from 0 to 1, got 1.5"),
        ("prob_0,prob_1\n1,0\n0.5,0.6\n", r"prob_\.\.\., row 1 \(line 3\): must sum to 1 a row, got 1.1"),
        ("prob_0,prob_1\n1,0\n-1,2\n", r"prob_0, row 1 \(line 3\): must be non-negative and not NaN, got -1"),
        ("logit_0,weight\n1,0\n1,-1\n", r"weight, row 1 \(line 3\): must be non-negative and finite, got -1"),
        ('logit_0,split\n1,a\n1,""\n', r"split, row 1 \(line 3\): must be printable text, not empty"),
        ('logit_0,split\n1,a\n1,"a\nb"\n', r"split, row 1 \(line 3\): must be printable text"),
        (f"logit_0,split\n1,a\n1,{'b' * 65}\n", r"split, row 1 \(line 3\): must be printable text of 1 to 64"),
        (b"logit_0,split\n1,a\n1,\xff\n", r"split, row 1 \(line 3\): must be UTF-8 text"),
        (b"logit_\xff\n1\n", "the header cannot be read"),
        (LIST + '"[1, 2]",0\n', r"logits, row 1 \(line 3\): must have 3 values a row as in the rows before, got 2"),
        (LIST + '"[1, 2, b]",0\n', r"logits, row 1 \(line 3\): must be a number, got 'b'"),
        (LIST + '"[1, , 3]",0\n', r"logits, row 1 \(line 3\): must be a number, got ''"),
        (LIST + '"1, 2, 3",0\n', r"logits, row 1 \(line 3\): must be a list \[a, b, ...\], got '1, 2, 3'"),
        ("logits\n[]\n", r"logits, row 0 \(line 2\): must be a number, got ''"),
        ("logits\n1\n[1]\n", r"logits, row 1 \(line 3\): must be a number, got '\[1\]'"),
    ],
)
def test_csv(text, message, tmp_path):
    (tmp_path / "a.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    rejected(tmp_path / "a.csv", message)


def test_lists_of_csv_and_parquet_keep_their_length_over_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("refocal.predictions.protocol.BLOCK_SCORES", 16)
    monkeypatch.setattr("refocal.predictions.csv._BLOCK_BYTES", 256)
    lists = [[1.0, 2.0]] * 200 + [[1.0, 2.0, 3.0]] * 800
    (tmp_path / "a.csv").write_text("\n".join(["logits", *(f'"{row}"' for row in lists)]), encoding="utf-8")
    pq.write_table(pa.table({"logits": lists}), tmp_path / "a.parquet", row_group_size=200)
    rejected(tmp_path / "a.csv", r"logits, row 200 \(line 202\): must have 2 values .* before, got 3")
    rejected(tmp_path / "a.parquet", r"logits, row 200: must have 2 values .* before, got 3")


# Parquet

# Arrow before 26 cannot read a missing list of fixed size: the file is refused in its words
ARROW = int(pa.__version__.split(".")[0])
NO_LIST = "logits, row 1: a value is missing" if ARROW >= 26 else "cannot be read.*Expected all lists to be of size=1"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"logits": [[1.0, 2.0], [1.0]]}, "logits, row 1: must have 2 values a row as in the rows before, got 1"),
        ({"logits": [[1.0, 2.0], None]}, "logits, row 1: a value is missing"),
        ({"logits": [[1.0, 2.0], [1.0, None]]}, "logits, row 1: a value is missing"),
        ({"logits": pa.array([[1.0], None], pa.list_(pa.float64(), 1))}, NO_LIST),
        ({"logits": pa.array([[], []], pa.list_(pa.float64()))}, "logits, row 0: must have at least one value a row"),
        ({"logits": [["a", "b"]]}, "logits: must be float16, float32 or float64, got string"),
        ({"logits": ["a", "b"]}, "logits: must be float16, float32 or float64, got string"),
        ({"logit_0": [1, 2]}, "logit_0: must be float16, float32 or float64, got int64"),
        ({"logit_0": [1.0, None]}, "logit_0, row 1: a value is missing"),
        ({"logit_0": [1.0, np.nan]}, "logit_0, row 1: must be finite, got nan"),
        ({"logits": [1.0, 2.0], "label": [0, None]}, "label, row 1: a value is missing"),
        ({"logits": [1.0, 2.0], "label": ["a", "b"]}, "label: must be numbers, got string"),
        ({"logits": [1.0, 2.0], "split": ["a", None]}, "split, row 1: a value is missing"),
        ({"logits": [1.0, 2.0], "split": ["a", "b" * 65]}, "split, row 1: must be printable text of 1 to 64"),
        ({"logits": [1.0, 2.0], "split": ["a", "b\0"]}, "split, row 1: must be printable text"),
        ({"logits": [1.0, 2.0], "split": [1, 2]}, "split: must be text, got int64"),
        ({"logits": pa.array([], pa.float64())}, "there are no rows"),
        ({"logits": [[1.0, 2.0], [np.nan, 0.0]]}, "logits, class 0, row 1: must be finite or -inf .*, got nan"),
        ({"probs": [[0.5, 0.5], [0.5, 0.25]]}, "probs, row 1: must sum to 1 a row, got 0.75"),
        ({"logits": [1.0, 2.0], "label": [0, 2]}, "label, row 1: must be a whole number from 0 to 1, got 2"),
        ({"logits": [1.0, 2.0], "label": [0, 0.5]}, "label, row 1: must be a whole number from 0 to 1, got 0.5"),
        ({"logits": [1.0, 2.0], "weight": [0, -1]}, "weight, row 1: must be non-negative and finite, got -1"),
        ({"logits": [1.0, 2.0], "split": ["a", "b\x7f"]}, "split, row 1: must be printable text, not empty"),
    ],
)
def test_parquet_columns(columns, message, tmp_path):
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    rejected(tmp_path / "a.parquet", message)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (b"{", "class_names cannot be read"),
        (b"[1]", "class_names: must be a JSON list of strings"),
        (b'["a", "b"]', r"class_names: must name each of 3 classes, got shape \(2,\)"),
        (b'["a", "b", "b"]', "class_names: must be different, got 'b' twice"),
    ],
)
def test_class_names_of_parquet(names, message, tmp_path):
    table = pa.table({"logits": [[1.0, 2.0, 3.0]]}).replace_schema_metadata({"refocal.class_names": names})
    pq.write_table(table, tmp_path / "a.parquet")
    rejected(tmp_path / "a.parquet", message)


def test_rows_that_the_header_does_not_know():
    place = Place(Path("a.parquet"))
    source = Source("logits", None, 5, Size(5, 3), place, iter([Columns(GOOD)]))
    with pytest.raises(PredictionsError, match=r"a\.parquet: holds 3 rows, its header says 5: the file is damaged"):
        list(checked_blocks(source))


# Damage


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_truncated_anywhere(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    Predictions(GOOD, input="logits", labels=[0, 1, 0]).write(path)
    data = path.read_bytes()
    for end in range(0, len(data), 37):
        path.write_bytes(data[:end])
        rejected(path, "")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.npz", b"", "the file is empty"),
        ("a.npz", b"PAR1", "the zip archive cannot be read, .* File is not a zip file"),
        ("a.parquet", b"", "is no parquet file: it must begin with b'PAR1', it is empty"),
        ("a.parquet", b"PK\3\4", "is no parquet file: it must begin with b'PAR1', it begins with"),
        ("a.parquet", b"PAR1", "the footer cannot be read"),
        ("a.txt", b"", r"the suffix must be one of .npz, .parquet, .csv, got '.txt'"),
        ("a", b"", r"the suffix must be one of .npz, .parquet, .csv, got ''"),
    ],
)
def test_other_formats(name, data, message, tmp_path):
    (tmp_path / name).write_bytes(data)
    rejected(tmp_path / name, message)


def test_damaged_values_are_seen_by_checksums(tmp_path):
    for suffix, message in ((".npz", "Bad CRC-32"), (".parquet", "verify page integrity")):
        path = tmp_path / f"a{suffix}"
        scores = np.random.default_rng(0).standard_normal((50, 2))
        Predictions(scores, input="logits").write(path)
        data = path.read_bytes()
        position = data.index(scores[0].tobytes())
        path.write_bytes(data[:position] + b"\1" + data[position + 1 :])
        rejected(path, message)


def archive(path, members, **options):
    with zipfile.ZipFile(path, "w", **options) as file:
        for name, data in members:
            file.writestr(name, data)


def npy(array, header=(b"", b"")):
    """The bytes of a .npy file, with a header that says something else."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    data = file.getvalue()
    old, new = header
    assert old in data
    return data.replace(old, new.ljust(len(old))) if old else data


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ((b"(3, 2), }          ", b"(3333333333333, 2)}"), r"shape \(3333333333333, 2\) .* do not fit the 48 bytes"),
        ((b"(3, 2)", b"(-3,2)"), r"logits: shape \(-3, 2\) and dtype float64 do not fit"),
        ((b"(3, 2)", b"(3,  )"), r"logits: shape \(3,\) and dtype float64 do not fit the 48 bytes"),
        ((b"'<f8'", b"'|O'"), "logits: is an array of Python objects, which is a pickle: these are never read"),
        ((b"'<f8'", b"'<U0'"), "logits: must be of a plain dtype, got <U0"),
        ((b"'<f8'", b"'<q8'"), "the header of logits cannot be read"),
        ((b"(3, 2)", b"(((((("), "the header of logits cannot be read"),
        ((b"(3, 2)", b"(3L,2)"), "the header of logits cannot be read"),
        ((b"\x93NUMPY", b"\x93NUMPI"), "the header of logits cannot be read"),
        ((b"NUMPY\1", b"NUMPY\3"), r"logits: must be of npy format 1.0 or 2.0, got \(3, 0\)"),
    ],
)
def test_headers_of_arrays(header, message, tmp_path):
    archive(tmp_path / "a.npz", [("logits.npy", npy(GOOD, header))])
    rejected(tmp_path / "a.npz", message)


def test_objects_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", logits=GOOD, labels=np.array([0, print, 1], dtype=object))
    rejected(tmp_path / "a.npz", "labels: is an array of Python objects, which is a pickle: these are never read")


def test_shapes_are_compared_before_anything_is_read(tmp_path):
    archive(tmp_path / "a.npz", [("logits.npy", npy(GOOD)), ("labels.npy", npy([0, 1]))])
    rejected(tmp_path / "a.npz", r"labels: must have shape \(3,\), one value a row, got \(2,\)")
    archive(tmp_path / "a.npz", [("logits.npy", npy(GOOD)), ("class_names.npy", npy([["a", "b"]]))])
    rejected(tmp_path / "a.npz", r"class_names: must name each of 2 classes, got shape \(1, 2\)")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_of_the_archive(tmp_path):
    path = tmp_path / "a.npz"
    archive(path, [("logits.npy", npy(GOOD)), ("logits.npy", npy(GOOD))])
    rejected(path, "array 'logits' stands there twice")
    archive(path, [("logits.npy", npy(GOOD)), ("readme.txt", b"")])
    rejected(path, "unknown array 'readme.txt'")
    archive(path, [("logits.npy", npy(GOOD))], compression=zipfile.ZIP_LZMA)
    rejected(path, "logits: must be stored or deflated, got compression method 14")
    archive(path, [("logits.npy", npy(GOOD)[:-8])])
    rejected(path, r"logits: shape \(3, 2\) and dtype float64 do not fit the 40 bytes")


def test_an_encrypted_archive(tmp_path):
    path = tmp_path / "a.npz"
    archive(path, [("logits.npy", npy(GOOD))])
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1  # the flags of the directory
    path.write_bytes(data)
    rejected(path, "logits: is encrypted")


def test_claims_beyond_the_file_allocate_nothing(tmp_path):
    """Directory and npy header agree on 48 GB, of which the file holds 48 bytes."""
    path = tmp_path / "a.npz"
    rows = 3_000_000_000
    header = (b"(3, 2), }       ", b"(%d, 2)}" % rows)
    archive(path, [("logits.npy", npy(GOOD, header))])
    data = path.read_bytes()
    size = struct.pack("<I", len(npy(GOOD)))
    assert data.count(size * 2) == 2  # compressed and plain size, in the local header and in the directory
    path.write_bytes(data.replace(size * 2, size + struct.pack("<I", 0xFFFFFFF0)))
    tracemalloc.start()
    rejected(path, "logits: claims 4294967280 bytes, more than the file can hold")
    path.write_bytes(data)
    rejected(path, "logits: shape .* do not fit the 48 bytes")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e6


def test_an_archive_that_expands_is_read_in_blocks(tmp_path):
    """80 MB of zeros in 80 kB: what deflate can do is allowed, and streaming it takes the memory of a block."""
    path = tmp_path / "a.npz"
    np.savez_compressed(path, logits=np.zeros((1_000_000, 10)))
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    with PredictionsReader(path) as blocks:
        assert sum(len(block) for block in blocks) == 1_000_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6


# The world around the file


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
def test_a_missing_file_is_an_oserror_with_its_path(suffix, tmp_path):
    path = tmp_path / f"missing{suffix}"
    with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
        Predictions.read(path)
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    with pytest.raises(IsADirectoryError, match=re.escape(str(folder))):
        Predictions.read(folder)


def test_reader_and_writer_work_inside_with_only(tmp_path):
    path = tmp_path / "a.npz"
    predictions = Predictions(GOOD, input="logits")
    with pytest.raises(ValueError, match="inside its `with` only"):
        PredictionsWriter(path).write(predictions)
    predictions.write(path)
    with pytest.raises(ValueError, match="inside its `with` only"):
        iter(PredictionsReader(path))


def test_selecting_what_is_not_there():
    with pytest.raises(PredictionsError, match="split: there is no split, 'val' was asked for"):
        Predictions(GOOD, input="logits").select("val")
    with pytest.raises(PredictionsError, match="split: there are no rows of 'val', only of 'a', 'b'"):
        Predictions(GOOD, input="logits", split=["a", "b", "a"]).select("val")


def test_what_csv_cannot_hold(tmp_path):
    path = tmp_path / "a.csv"
    with pytest.raises(PredictionsError, match="a csv file has no place for class names: leave them out, or write npz"):
        Predictions(GOOD, input="logits", class_names=("a", "b")).write(path)
    exact = [[0.25, 0.75], [0.3, 0.7]]
    rough = Predictions(np.array(exact, dtype=np.float16), input="probs")
    message = r"prob_\.\.\., row 1 \(line 3\): must sum to 1 a row, got 1.0002.* a csv file is read as float64"
    with pytest.raises(PredictionsError, match=message):
        rough.write(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_without_pyarrow(suffix, tmp_path):
    program = f"""
import sys
sys.modules["pyarrow"] = None  # what an import of a package that is not there meets
import numpy as np
from refocal.predictions import Predictions
predictions = Predictions(np.zeros((2, 2)), input="logits")
predictions.write("a.npz")
print(len(Predictions.read("a.npz")))
open("a{suffix}", "w").close()
for work in (lambda: Predictions.read("a{suffix}"), lambda: predictions.write("b{suffix}")):
    try:
        work()
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["2"] + ["parquet and csv files need pyarrow: pip install 'refocal[arrow]'"] * 2
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(["a.npz", f"a{suffix}"])
