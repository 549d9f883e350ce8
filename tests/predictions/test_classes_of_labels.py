"""Which label means which class: it is said, and an order that is not clear is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from test_real_files import LABELS, PROBS, WORDS, read, save

from refocal.predictions import ColumnChoice, Predictions, PredictionsError, PredictionsWarning

NAMES = {".csv": "label", ".parquet": "label", ".npz": "labels"}


@pytest.fixture(params=[".csv", ".parquet"])
def path(request, tmp_path):
    return tmp_path / f"a{request.param}"


@pytest.mark.parametrize(
    ("pair", "labels", "swapped", "said"),
    [
        (("no", "yes"), LABELS, ("1", "0"), "classes: no = 0, yes = 1"),
        (("Negative", "Positive"), [1, 2, 2, 1], ("2", "1"), "classes: Negative = 1, Positive = 2"),
        (("neg", "pos"), [-1, 1, 1, -1], ("1", "-1"), "classes: neg = -1, pos = 1"),
        (("no", "yes"), [False, True, True, False], ("true", "false"), "classes: no = false, yes = true"),
    ],
)
def test_columns_of_an_evident_pair(path, pair, labels, swapped, said):
    columns = {f"prob_{pair[0]}": PROBS[:, 0], f"prob_{pair[1]}": PROBS[:, 1], "label": labels}
    found = read(save(path, columns), said)
    assert (found.class_names, found.labels.tolist()) == (pair, LABELS)
    # the columns the other way round: silently, class 0 would be yes
    columns = {f"prob_{pair[1]}": PROBS[:, 1], f"prob_{pair[0]}": PROBS[:, 0], "label": labels}
    save(path, columns)
    with pytest.raises(PredictionsError, match=rf"label: it is not clear whether label {swapped[0]} means {pair[1]} "):
        Predictions.read(path)
    found = read(path, classes=swapped)
    assert (found.class_names, found.labels.tolist()) == (pair[::-1], [1, 0, 0, 1])
    np.testing.assert_array_equal(found.scores, PROBS[:, ::-1])
    assert read(path, classes=swapped[::-1]).labels.tolist() == LABELS


@pytest.mark.parametrize("column", ["prob_no", "p_negative", "prob_False", "negative_prob", "logit_no"])
@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (LABELS, ("1", "0")),
        ([False, True, True, False], ("true", "false")),
        (["b", "a", "a", "b"], ("a", "b")),
    ],
)
def test_a_column_of_the_negative_class_alone(path, column, labels, classes):
    save(path, {column: [-2.0, 3.0, 0.5, 1.5] if "logit" in column else PROBS[:, 0], "label": labels})
    with pytest.raises(PredictionsError, match=rf"label: {column} seems to be about \w+, but scores of one column are"):
        Predictions.read(path)
    kind = "log-odds" if "logit" in column else "probability"
    assert read(path, f"{kind} of the second class: {column}", classes=classes).labels.tolist() == [1, 0, 0, 1]


def test_a_chosen_column_of_class_0(path):
    save(path, {"prob_0": PROBS[:, 0], "prob_1": PROBS[:, 1], "label": LABELS})
    with pytest.raises(PredictionsError, match="label: prob_0 seems to be about 0, but scores of one column"):
        Predictions.read(path, columns=ColumnChoice(prob="prob_0"))
    assert read(path, "not used: prob_1", prob="prob_0", classes=("1", "0")).labels.tolist() == [1, 0, 0, 1]
    save(path, {"prob_0": PROBS[:, 0], "label": WORDS})
    with pytest.raises(PredictionsError, match="label: prob_0 seems to be about 0"):
        Predictions.read(path, columns=ColumnChoice(prob="prob_0"))


def test_words_tell_what_a_negative_column_is(path):
    found = read(
        save(path, {"prob_no": PROBS[:, 0], "label": WORDS}),
        "probability of the second class: prob_no; classes: yes, no",
    )
    assert (found.class_names, found.labels.tolist()) == (("yes", "no"), [1, 0, 0, 1])


@pytest.mark.parametrize(
    ("column", "labels", "classes"),
    [
        ("default_probability", ("paid", "default"), ("paid", "default")),
        ("churn_prob", ("stay", "churn"), ("stay", "churn")),
        ("stay_prob", ("stay", "churn"), ("churn", "stay")),
        ("prob_of_default", ("paid", "default"), ("paid", "default")),
        ("p(Default)", ("Paid", "Default"), ("Paid", "Default")),
        ("chargedOffProb", ("fully paid", "charged off"), ("fully paid", "charged off")),
        ("negative review.probability", ("positive", "negative"), ("positive", "negative")),
    ],
)
def test_the_name_of_a_column_tells_the_second_class(path, column, labels, classes):
    save(path, {column: PROBS[:, 1], "label": [labels[each] for each in LABELS]})
    hint = f"by the name of {column}; change it with --classes, in Python ColumnChoice(classes=...)"
    found = read(path, f"classes: {', '.join(classes)} ({hint})", prob=column)
    assert found.class_names == classes
    assert found.labels.tolist() == [classes.index(labels[each]) for each in LABELS]
    assert read(path, prob=column, classes=classes[::-1]).class_names == classes[::-1]


@pytest.mark.parametrize(
    ("column", "labels"),
    [
        ("default_or_paid_prob", ("default", "paid")),  # both
        ("defaulting_prob", ("default", "paid")),  # no whole word
        ("not_default_prob", ("default", "paid")),
        ("no_show_prob", ("no", "yes")),  # the probability of yes
        ("p_hat", ("e", "p")),  # the letter stands for the probability
        ("p_hat", ("p", "q")),
    ],
)
def test_a_name_that_does_not_tell_the_second_class(path, column, labels):
    save(path, {column: PROBS[:, 1], "label": [labels[each] for each in LABELS]})
    with pytest.warns(PredictionsWarning) as said:
        found = Predictions.read(path, columns=ColumnChoice(prob=column))
    assert "by the name" not in str(said[0].message)
    assert (found.class_names, found.labels.tolist()) == (labels, LABELS)


def test_a_name_does_not_order_two_columns(tmp_path):
    words = np.array(["churn", "stay"])[LABELS]
    path = save(tmp_path / "a.npz", {"churn_probs": PROBS, "labels": words})
    with pytest.warns(PredictionsWarning, match="classes: churn, stay .in sorted order"):
        assert Predictions.read(path, columns=ColumnChoice(prob="churn_probs")).class_names == ("churn", "stay")


def test_a_column_of_one_class_says_its_label(path):
    save(path, {"prob_spam": PROBS[:, 1], "label": LABELS})
    assert read(path, "probability of the second class: prob_spam; classes: spam = 1").labels.tolist() == LABELS


@pytest.mark.parametrize("suffix", NAMES)
@pytest.mark.parametrize("labels", [[-1, 1, 1, -1], [-1.0, 1.0, 1.0, -1.0], ["-1", "+1", "+1", "-1"]])
def test_labels_of_either_sign(tmp_path, suffix, labels):
    path = save(tmp_path / f"a{suffix}", {"probs": PROBS[:, 1], NAMES[suffix]: labels})
    found = read(path, "classes: -1, 1")
    assert (found.class_names, found.labels.tolist()) == (("-1", "1"), LABELS)
    assert read(path, classes=("1", "-1")).labels.tolist() == [1, 0, 0, 1]


def test_a_single_sign(path):
    assert read(save(path, {"probs": PROBS[:, 1], "label": [-1] * 4}), "classes: -1, 1").labels.tolist() == [0] * 4
    assert read(save(path, {"probs": PROBS[:, 1], "label": [1] * 4})).labels.tolist() == [1] * 4
    save(path, {"probs": PROBS[:, 1], "label": [0, 1, -1, 1]})
    with pytest.raises(PredictionsError, match=r"label, row 2.*: must be a whole number from 0 to 1, got -1"):
        Predictions.read(path)
    found = read(save(path, {"prob_-1": PROBS[:, 0], "prob_1": PROBS[:, 1], "label": [-1, 1, 1, -1]}))
    assert (found.class_names, found.labels.tolist()) == (("-1", "1"), LABELS)


def test_a_hint_that_is_not_circular(path):
    save(path, {"probs": PROBS[:, 1], "label": LABELS})
    with pytest.raises(PredictionsError, match=r"got 0(\.0)?; classes are the labels as the file has them$"):
        Predictions.read(path, columns=ColumnChoice(classes=("no", "yes")))
    save(path, {"probs": PROBS[:, 1], "label": WORDS})
    with pytest.raises(PredictionsError, match=r"must be one of the classes a, b, got 'no'$"):
        Predictions.read(path, columns=ColumnChoice(classes=("a", "b")))


@pytest.mark.parametrize("word", ["", "NA", "nan", "N/A", "null"])
@pytest.mark.parametrize("labels", [WORDS, LABELS, ["TRUE", "FALSE", "TRUE", "TRUE"]])
def test_a_missing_label_in_the_first_row(tmp_path, word, labels):
    path = save(tmp_path / "a.csv", {"probs": PROBS[:, 1], "label": [word, *labels[1:]]})
    message = r"a.csv, label, row 0 \(line 2\): the label is missing; .*frame.dropna\(subset=\['label'\]\)"
    with pytest.raises(PredictionsError, match=message):
        Predictions.read(path)


@pytest.mark.parametrize(
    "labels",
    [
        [1.0, np.nan, 0.0],
        pa.array([1, None, 0], pa.int64()),
        pa.array([True, None, False]),
        pa.array(["yes", None, "no"]),
        pa.array(["yes", None, "no"]).dictionary_encode(),
    ],
)
def test_a_missing_label_of_parquet(tmp_path, labels):
    path = save(tmp_path / "a.parquet", {"probs": PROBS[:3, 1], "churned": labels})
    with pytest.raises(PredictionsError, match=r"churned, row 1: the label is missing; .*dropna\(subset=\['churned'\]"):
        Predictions.read(path, columns=ColumnChoice(label="churned"))


def test_a_class_may_be_called_na(tmp_path):
    path = save(tmp_path / "a.csv", {"prob_NA": PROBS[:, 0], "prob_EU": PROBS[:, 1], "label": ["NA", "EU", "EU", "NA"]})
    assert read(path).labels.tolist() == LABELS


def test_a_number_before_words(tmp_path):
    path = save(tmp_path / "a.csv", {"probs": PROBS[:, 1], "label": ["1", "cat", "cat", "1"]})
    said = "classes: 1, cat (in sorted order; change it with --classes, in Python ColumnChoice(classes=...))"
    assert read(path, said).labels.tolist() == LABELS
    save(path, {"p_cat": PROBS[:, 0], "p_dog": PROBS[:, 1], "label": ["1", "cat", "cat", "0"]})
    with pytest.raises(PredictionsError, match=r"label, row 0.*: must be one of the classes cat, dog, got 1"):
        Predictions.read(path)


def test_text_that_holds_numbers(tmp_path):
    columns = {"p_cat": PROBS[:, 0], "p_dog": PROBS[:, 1], "label": ["0", "1", "1", "0"]}
    said = "probabilities: p_cat, p_dog; classes: cat = 0, dog = 1"
    assert read(save(tmp_path / "a.parquet", columns), said).labels.tolist() == LABELS
    path = save(tmp_path / "a.csv", {"probs": PROBS[:, 1], "label": [" 0", " 1", " 1", " 0"]})
    assert read(path).labels.tolist() == LABELS


@pytest.mark.parametrize(
    "labels",
    [
        pa.array([0, 1, 1, 0], pa.int8()),
        pa.array([0, 1, 1, 0], pa.uint8()),
        pa.array([0, 1, 1, 0]).dictionary_encode(),
        pa.array([0, 1, 1, 0]).cast(pa.decimal128(19, 0)),
        pa.array(WORDS, pa.string_view()),
        pa.array(WORDS, pa.large_string()).dictionary_encode(),
    ],
)
def test_types_of_labels(tmp_path, labels):
    try:
        path = save(tmp_path / "a.parquet", {"prob_no": PROBS[:, 0], "prob_yes": PROBS[:, 1], "label": labels})
    except pa.ArrowNotImplementedError:
        pytest.skip(f"pyarrow {pa.__version__} writes no {labels.type}")
    said = None if labels[0].as_py() == "no" else "classes: no = 0, yes = 1"
    assert read(path, said).labels.tolist() == LABELS


def test_labels_in_mixed_case(path, monkeypatch):
    monkeypatch.setattr("refocal.predictions.protocol.BLOCK_SCORES", 2)
    found = read(save(path, {"probs": PROBS[:, 1], "label": ["No", "yes", "YES", "no"]}), "classes: No, yes")
    assert (found.class_names, found.labels.tolist()) == (("No", "yes"), LABELS)
    save(path, {"probs": PROBS[:, 1], "label": ["no", "No", "nO", "YES"]})
    assert read(path, "classes: no, YES").labels.tolist() == [0, 0, 0, 1]
    save(path, {"probs": PROBS[:, 1], "label": ["a", "A", "A", "a"]})  # two classes, two spellings
    found = read(path, "classes: A, a (in sorted order; change it with --classes, in Python ColumnChoice(classes=...))")
    assert found.labels.tolist() == [1, 0, 0, 1]
