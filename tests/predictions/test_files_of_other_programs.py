"""Files as other programs write them are read without changes, or with the columns that the error asks for."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
from test_real_files import read

from refocal.predictions import Predictions, PredictionsError, PredictionsWarning

P = np.array([0.25, 0.75, 0.875, 0.125])
LABELS = np.array([0, 1, 1, 0])
WORDS = np.array(["no", "yes", "yes", "no"])
ONE = "probability of the second class: "


def check(path, said, **choice):
    found = read(path, said, **choice)
    scores = found.scores if found.scores.ndim == 1 else found.scores[:, -1]
    np.testing.assert_allclose(scores, P)
    assert found.labels.tolist() == LABELS.tolist()
    return found


@pytest.mark.parametrize(
    ("content", "said", "choice"),
    [
        # LightGBM, with ids and the index of pandas
        (
            {"id": list("abcd"), "fold": [0, 1, 0, 1], "y_true": LABELS, "y_pred_proba": P},
            f"label column: y_true; {ONE}y_pred_proba; not used: (no name), id, fold",
            {},
        ),
        # predict_proba of scikit-learn in a frame without names
        ({0: 1 - P, 1: P, "target": LABELS}, "label column: target; not used: (no name)", {"prob": "[0-9]*"}),
        ({0: 1 - P, 1: P, "target": LABELS}, "label column: target; not used: (no name)", {"prob": ["0", "1"]}),
        # H2O
        (
            {"predict": LABELS, "p0": 1 - P, "p1": P, "actual": LABELS},
            "label column: actual; probabilities: p0, p1; not used: (no name), predict",
            {},
        ),
        # percentiles are no classes
        (
            {"p5": P, "p50": P, "p95": P, "probability": P, "label": LABELS},
            f"{ONE}probability; not used: (no name), p5, p50, p95",
            {},
        ),
        # nullable types of pandas
        ({"label": pd.array(LABELS, dtype="Int64"), "prob": P}, f"{ONE}prob; not used: (no name)", {}),
        (
            {"label": pd.array(LABELS == 1, dtype="boolean"), "prob": P},
            f"{ONE}prob; not used: (no name); true is the second class",
            {},
        ),
    ],
)
def test_csv_of_pandas(tmp_path, content, said, choice):
    pd.DataFrame(content).to_csv(path := tmp_path / "a.csv")
    check(path, said, **choice)


def test_columns_that_are_numbers_are_named_in_the_error(tmp_path):
    pd.DataFrame({0: 1 - P, 1: P, "target": LABELS}).to_csv(path := tmp_path / "a.csv")
    with pytest.raises(PredictionsError, match=r"scores are missing.*; --prob '\[0-9\]\*' for columns that are num"):
        Predictions.read(path)


def test_csv_of_tidymodels(tmp_path):
    rows = [f'"{k}","{word}","{word}",{1 - p},{p}' for k, (word, p) in enumerate(zip(WORDS, P, strict=True))]
    (path := tmp_path / "a.csv").write_text(
        "\n".join(['"","obs",".pred_class",".pred_no",".pred_yes"', *rows, ""]), encoding="utf-8"
    )
    said = "label column: obs; probabilities: .pred_no, .pred_yes; not used: (no name), .pred_class"
    assert check(path, said).class_names == ("no", "yes")


def test_csv_of_r_with_booleans(tmp_path):
    rows = [f'"{k}",{"TRUE" if y else "FALSE"},{p}' for k, (y, p) in enumerate(zip(LABELS, P, strict=True))]
    (path := tmp_path / "a.csv").write_text("\n".join(['"","truth","prob.TRUE"', *rows, ""]), encoding="utf-8")
    check(path, f"label column: truth; {ONE}prob.TRUE; not used: (no name); true is the second class")


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet"])
def test_rows_of_predict_proba_for_several_classes(tmp_path, suffix):
    probs = np.array([[0.5, 0.25, 0.25], [0.25, 0.75, 0.0], [0.0, 0.0, 1.0]])
    path = tmp_path / f"a{suffix}"
    rows = [str(row) for row in probs.tolist()] if suffix == ".csv" else list(probs)
    frame = pd.DataFrame({"y_proba": rows, "y_true": [0, 1, 2]})
    if suffix == ".npz":
        np.savez(path, y_proba=probs, y_true=[0, 1, 2])
    else:
        frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    what = "array" if suffix == ".npz" else "column"
    assert read(path, f"label {what}: y_true; probabilities: y_proba").scores.tolist() == probs.tolist()


def test_y_prob_is_not_about_a_class_y(tmp_path):
    pd.DataFrame({"y_prob": P, "y_true": LABELS}).to_csv(path := tmp_path / "a.csv", index=False)
    check(path, f"label column: y_true; {ONE}y_prob")
    pd.DataFrame({"y_prob": P, "y_true": WORDS}).to_csv(path, index=False)
    check(path, f"label column: y_true; {ONE}y_prob; classes: no, yes")


def test_csv_of_a_german_excel(tmp_path):
    rows = [f"{k};{'ja' if y else 'nein'};{p}" for k, (y, p) in enumerate(zip(LABELS, P, strict=True))]
    text = "\r\n".join(["Kunde;Gekündigt;Wahrscheinlichkeit", *rows, "", ""])
    (path := tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    said = "columns are separated by semicolons; classes: nein, ja"  # in sorted order, P(ja) would be that of nein
    assert check(path, said, label="Gekündigt", prob="Wahrscheinlichkeit").class_names == ("nein", "ja")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_logits_of_hugging_face(tmp_path, suffix):
    logits = [[float(-z), float(z)] for z in (-1.0, 2.0, 3.0, -0.5)]
    frame = pd.DataFrame({"text": ['a\n"b", c'] * 4, "label": ["NEGATIVE", "POSITIVE", "POSITIVE", "NEGATIVE"]})
    frame["logits"] = [str(row) for row in logits] if suffix == ".csv" else logits
    frame["score"] = P
    path = tmp_path / f"a{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    found = read(path, "not used: text, score; classes: NEGATIVE, POSITIVE")
    assert (found.scores.tolist(), found.labels.tolist()) == (logits, LABELS.tolist())


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (pl.Series(WORDS).cast(pl.Categorical), "; classes: no, yes"),
        (pl.Series(WORDS).cast(pl.Enum(["yes", "no"])), "; classes: no, yes"),
        (pl.Series(LABELS).cast(pl.Int8), ""),
        (pl.Series(LABELS).cast(pl.UInt8), ""),
        (pl.Series(LABELS == 1), "; true is the second class"),
    ],
)
def test_parquet_of_polars(tmp_path, labels, said):
    others = {
        "when": [datetime.datetime(2024, 1, 2, 3, tzinfo=datetime.UTC)] * 4,
        "amount": [decimal.Decimal("1.50")] * 4,
        "day": [datetime.date(2024, 1, 2)] * 4,
    }
    pl.DataFrame({"label": labels, "prob": P, **others}).write_parquet(path := tmp_path / "a.parquet")
    check(path, f"{ONE}prob; not used: when, amount, day{said}")
    with pytest.warns(PredictionsWarning, match="kept as they are: when, amount, day"):
        Predictions.read(path, carry=True).write(out := tmp_path / "b.csv")
    assert pd.read_csv(out)["amount"].tolist() == [1.5] * 4


@pytest.mark.parametrize(
    ("labels", "scores"),
    [
        (pd.Categorical(LABELS), P),
        (pd.array(LABELS, dtype="Int64"), pd.array(P, dtype="Float64")),
        (pd.array(LABELS, dtype="Int8"), [decimal.Decimal(str(p)) for p in P]),
    ],
)
def test_parquet_of_pandas(tmp_path, labels, scores):
    pd.DataFrame({"label": labels, "prob": scores}).to_parquet(path := tmp_path / "a.parquet")
    check(path, f"{ONE}prob")
