"""csv files as other programs write them: separators, a byte order mark, empty lines at the end, decimal commas."""

from __future__ import annotations

import pytest
from test_real_files import LABELS, PROBS, read

from refocal.predictions import ColumnChoice, Predictions, PredictionsError, PredictionsWarning
from refocal.predictions.errors import NoRowsError

ROWS = "".join(f"{p},{q},{label}\n" for (p, q), label in zip(PROBS, LABELS, strict=True))


@pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")])
def test_other_separators_are_said(tmp_path, separator, name):
    path = tmp_path / "a.csv"
    path.write_text(f"prob_0,prob_1,label\n{ROWS}".replace(",", separator), encoding="utf-8")
    found = read(path, f"columns are separated by {name}")
    assert (found.scores.tolist(), found.labels.tolist()) == (PROBS.tolist(), LABELS)
    # as Excel saves it: a byte order mark, quotes, \r\n and text with the other separator
    lines = [f'{p};"{q}";{label};"a, b"' for (p, q), label in zip(PROBS, LABELS, strict=True)]
    text = "\r\n".join(['"prob_0";prob_1;label;"note, long"', *lines, ""])
    path.write_bytes(b"\xef\xbb\xbf" + text.replace(";", separator).encode())
    found = read(path, f"columns are separated by {name}; not used: note, long")
    assert (found.scores.tolist(), found.labels.tolist()) == (PROBS.tolist(), LABELS)
    lists = path.with_name("lists.csv")
    lists.write_text(f"probs{separator}label\n[0.5, 0.25, 0.25]{separator}2\n", encoding="utf-8")
    assert read(lists, f"columns are separated by {name}").scores.tolist() == [[0.5, 0.25, 0.25]]


def test_a_comma_wins(tmp_path):
    (path := tmp_path / "a.csv").write_text("prob_1,label,a;b\n0.5,1,2;3\n", encoding="utf-8")
    read(path, "not used: a;b")


@pytest.mark.parametrize("scores", ["probs", "prob_1", "logit_1"])
def test_decimal_commas_are_refused(tmp_path, scores):
    (path := tmp_path / "a.csv").write_text(f"{scores};label\n0.5;1\n0,75;1\n", encoding="utf-8")
    message = rf"{scores}, row 1 \(line 3\): must be a number, got '0,75'; write a decimal point, not a comma"
    with pytest.raises(PredictionsError, match=message):
        Predictions.read(path)


@pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "tabs")])
@pytest.mark.parametrize("scores", [["probs"], ["prob_1"], ["prob_0", "prob_1"]])
def test_decimal_commas_beside_another_separator(tmp_path, separator, name, scores):
    probs = [("1", "0"), ("0,25", "0,75"), ("1,5e-1", "8,5e-1"), ('"0,5"', '"0,5"')]
    rows = [["a, b", *row[-len(scores) :], weight] for row, weight in zip(probs, ["2", "0", "0,5", "1"], strict=True)]
    lines = [separator.join(row) for row in [["note", *scores, "weight"], *rows]]
    (path := tmp_path / "a.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    guesses = [f"columns are separated by {name}; numbers have decimal commas; not used: note"]
    found = read(path, guesses)
    assert found.scores.reshape(4, -1)[:, -1].tolist() == [0, 0.75, 0.85, 0.5]
    assert found.sample_weight.tolist() == [2, 0, 0.5, 1]


def test_labels_with_decimal_commas_are_numbers(tmp_path):
    names = [f"prob_{index}" for index in range(11)]
    rows = [[*("0,5" if index in (true, 0) else "0" for index in range(11)), f"{true},0"] for true in (10, 2, 1)]
    lines = [";".join(row) for row in [[*names, "label"], *rows]]
    (path := tmp_path / "a.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    found = read(path, "columns are separated by semicolons; numbers have decimal commas")
    assert found.labels.tolist() == [10, 2, 1]


def test_answers_with_decimal_commas_are_0_or_1(tmp_path):
    text = "prob_a;prob_b;label_a;label_b\n0,5;0,25;1,0;0,0\n1;0,75;0,0;1,0\n"
    (path := tmp_path / "a.csv").write_text(text, encoding="utf-8")
    guesses = "columns are separated by semicolons; numbers have decimal commas"
    found = read(path, guesses, task="multilabel")
    assert (found.scores.tolist(), found.labels.tolist()) == ([[0.5, 0.25], [1, 0.75]], [[1, 0], [0, 1]])


def test_other_columns_keep_their_decimal_commas(tmp_path):
    text = "prob_1;weight;bill\n0,5;0,25;9,99\n1;2;1.000,5\n"
    (path := tmp_path / "a.csv").write_text(text, encoding="utf-8")
    with pytest.warns(PredictionsWarning, match="numbers have decimal commas"):
        found = Predictions.read(path, carry=True)
    assert found.sample_weight.tolist() == [0.25, 2]
    found.write(copy := tmp_path / "b.csv")
    assert copy.read_text(encoding="utf-8").splitlines() == [
        "weight,bill,prob_1",
        '"0.25","9,99",0.5',
        '"2","1.000,5",1',
    ]
    assert read(copy, "not used: bill").sample_weight.tolist() == [0.25, 2]


@pytest.mark.parametrize("scores", ["probs", "prob_1"])
def test_points_between_decimal_commas_are_refused(tmp_path, scores):
    (path := tmp_path / "a.csv").write_text(f"{scores};label\n0,5;1\n0.75;1\n", encoding="utf-8")
    message = rf"{scores}, row 1 \(line 3\): must be a number, got '0.75'; the numbers before it have decimal commas"
    with pytest.raises(PredictionsError, match=message):
        Predictions.read(path)


@pytest.mark.parametrize(
    ("encoding", "found"), [("utf-16", "UTF-16"), ("utf-16-be", "byte 0xf6"), ("latin-1", "byte 0xf6")]
)
def test_other_encodings_are_refused(tmp_path, encoding, found):
    (path := tmp_path / "a.csv").write_bytes(f"größe,prob_0,prob_1,label\n{ROWS}".encode(encoding))
    message = rf"a\.csv: the header must be UTF-8 text, got {found}: save the file as csv in UTF-8"
    with pytest.raises(PredictionsError, match=message):
        Predictions.read(path)


def test_spaces_around_names_are_shown(tmp_path):
    (path := tmp_path / "a.csv").write_text(" label , prob_1 \n 1 , 0.5 \n", encoding="utf-8")
    found = read(path, "label column: ' label '; probability of the second class: ' prob_1 '")
    assert (found.scores.tolist(), found.labels.tolist()) == ([0.5], [1])
    with pytest.raises(PredictionsError, match="there is no column 'label', which label names; the columns are ' la"):
        Predictions.read(path, columns=ColumnChoice(label="label"))


ENDS = ["", "\n", "\n\n", "\r\n\r\n\r\n", "\n" * 10_000]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_a_header_alone_has_no_rows(tmp_path, start, end):
    (path := tmp_path / "a.csv").write_bytes(f"{start}prob_1,label{end}".encode())
    with pytest.raises(NoRowsError, match=r"a\.csv: there are no rows"):
        Predictions.read(path)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("header", ["prob_0,prob_1,label", "prob_0,prob_1,label,note"])
def test_empty_lines_at_the_end(tmp_path, end, header):
    rows = ROWS if "note" not in header else ROWS.replace("\n", ',"a\n\nb"\n')
    (path := tmp_path / "a.csv").write_bytes(f"{header}\n{rows.rstrip()}{end}".encode())
    found = Predictions.read(path, columns=ColumnChoice(label="label", prob="prob_*"))
    assert (found.scores.tolist(), found.labels.tolist()) == (PROBS.tolist(), LABELS)


def test_an_empty_line_between_rows(tmp_path):
    (path := tmp_path / "a.csv").write_text("prob_0,prob_1,label\n0.5,0.5,1\n\n0.5,0.5,1\n", encoding="utf-8")
    with pytest.raises(PredictionsError, match=r"a.csv, prob_0, row 1 \(line 3\): must be a number, got ''"):
        Predictions.read(path)
    (path := tmp_path / "b.csv").write_text("\n\n", encoding="utf-8")
    with pytest.raises(PredictionsError, match="the file is empty"):
        Predictions.read(path)
