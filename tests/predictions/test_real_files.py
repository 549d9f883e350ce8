"""Files as people have them: ids, an index, other names, labels in words; what is guessed is said."""

from __future__ import annotations

import csv
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refocal.predictions import (
    ColumnChoice,
    Predictions,
    PredictionsError,
    PredictionsReader,
    PredictionsWarning,
)

PROBS = np.array([[0.75, 0.25], [0.5, 0.5], [0.125, 0.875], [0.25, 0.75]])
WORDS = ["no", "yes", "yes", "no"]
LABELS = [0, 1, 1, 0]


def save(path, columns):
    """Write columns as they are to a csv, parquet or npz file."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: np.asarray(values) for name, values in columns.items()})
    else:
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    return path


def read(path, said=None, **choice):
    """Read a file whole and in blocks, which must agree, and check what is said about it."""
    columns = ColumnChoice(**choice)
    found = []
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        whole = Predictions.read(path, columns=columns)
        with PredictionsReader(path, columns=columns) as blocks:
            found.extend(blocks)
    texts = [str(note.message) for note in notes]
    expected = [f"{path}: {text}" for text in ([said] if isinstance(said, str) else said or [])]
    assert texts == expected * 2
    assert all(note.category is PredictionsWarning for note in notes)
    np.testing.assert_array_equal(np.concatenate([block.scores for block in found]), whole.scores)
    if whole.labels is not None:
        np.testing.assert_array_equal(np.concatenate([block.labels for block in found]), whole.labels)
    assert found[0].class_names == whole.class_names
    return whole


@pytest.fixture(params=[".csv", ".parquet"])
def path(request, tmp_path):
    return tmp_path / f"a{request.param}"


def test_an_id_column(path):
    columns = {"customer_id": ["007", "8", "9", "x"], "prob_0": PROBS[:, 0], "prob_1": PROBS[:, 1], "label": LABELS}
    found = read(save(path, columns), "not used: customer_id")
    np.testing.assert_array_equal(found.scores, PROBS)
    assert found.labels.tolist() == LABELS
    assert found.class_names is None
    read(path, ignore="customer_id")
    read(path, ignore=["customer_*"])


@pytest.mark.parametrize("name", ["", "__index_level_0__", "Unnamed: 0"])
def test_an_index_of_pandas(path, name):
    columns = {name: [0, 1, 2, 3], "prob_0": PROBS[:, 0], "prob_1": PROBS[:, 1], "label": LABELS}
    found = read(save(path, columns), f"not used: {name or '(no name)'}")
    np.testing.assert_array_equal(found.scores, PROBS)


def test_the_probability_of_class_1_alone(path):
    found = read(save(path, {"prob_1": PROBS[:, 1], "label": LABELS}))
    assert found.scores.tolist() == PROBS[:, 1:].tolist()
    assert (found.labels.tolist(), found.classes) == (LABELS, 2)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("p_cat", "p_dog"), "probabilities: p_cat, p_dog"),
        (("prob_cat", "prob_dog"), ""),
        (("Probability cat", "Probability dog"), "probabilities: Probability cat, Probability dog"),
    ],
)
@pytest.mark.parametrize("labels", [["cat", "dog", "dog", "cat"], LABELS])
def test_class_names_come_from_columns(path, names, said, labels):
    said = "; ".join(filter(None, [said, "" if labels[0] == "cat" else "classes: cat = 0, dog = 1"]))
    found = read(save(path, {names[0]: PROBS[:, 0], names[1]: PROBS[:, 1], "label": labels}), said or None)
    np.testing.assert_array_equal(found.scores, PROBS)
    assert (found.class_names, found.labels.tolist()) == (("cat", "dog"), LABELS)


def test_logits_of_named_classes(path):
    logits = np.array([[3.0, -1.0, 0.5], [0.0, 2.0, -7.0]])
    columns = {f"logit_{name}": logits[:, k] for k, name in enumerate(["owl", "cat", "dog"])}
    found = read(save(path, {**columns, "label": ["dog", "cat"]}))
    assert (found.input, found.class_names, found.labels.tolist()) == ("logits", ("owl", "cat", "dog"), [2, 1])
    np.testing.assert_array_equal(found.scores, logits)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_labels_in_words_of_one_column(tmp_path, suffix):
    label = "labels" if suffix == ".npz" else "label"
    path = save(tmp_path / f"a{suffix}", {"probs": PROBS[:, 1], label: WORDS})
    found = read(path, "classes: no, yes")
    assert (found.labels.tolist(), found.class_names) == (LABELS, ("no", "yes"))
    assert found.scores.shape == (4,)
    assert read(path, classes=["yes", "no"]).labels.tolist() == [1, 0, 0, 1]
    save(path, {"probs": PROBS[:, 1], label: ["b", "A", "A", "b"]})
    said = "classes: A, b (in sorted order; change it with --classes, in Python ColumnChoice(classes=...))"
    assert read(path, said).labels.tolist() == [1, 0, 0, 1]
    save(path, {"probs": PROBS[:, 1], label: ["No", "yes", "yes", "No"]})
    assert read(path, "classes: No, yes").labels.tolist() == LABELS


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
@pytest.mark.parametrize("labels", [[False, True, True, False], ["FALSE", "TRUE", "TRUE", "FALSE"], [True] * 4])
def test_labels_that_are_true_or_false(tmp_path, suffix, labels):
    label = "labels" if suffix == ".npz" else "label"
    path = save(tmp_path / f"a{suffix}", {"probs": PROBS[:, 1], label: labels})
    found = read(path, "true is the second class")
    assert found.labels.tolist() == [int(str(value).lower() == "true") for value in labels]
    assert found.class_names is None


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_labels_that_start_at_1(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    probs = np.full((5, 3), [0.5, 0.25, 0.25])
    scores = {"probs": probs} if suffix == ".npz" else {f"prob_{k}": probs[:, k] for k in range(3)}
    label = "labels" if suffix == ".npz" else "label"
    found = read(save(path, {**scores, label: [1, 3, 2, 3, 1]}), "labels start at 1, classes: 1 to 3")
    assert (found.labels.tolist(), found.class_names) == ([0, 2, 1, 2, 0], ("1", "2", "3"))
    assert read(save(path, {**scores, label: [1, 1, 2, 2, 1]})).labels.tolist() == [1, 1, 2, 2, 1]
    save(path, {**scores, label: [1, 3, 0, 3, 1]})
    with pytest.raises(PredictionsError, match=rf"{label}, row 1.*: must be a whole number from 0 to 2, got 3"):
        Predictions.read(path)
    assert read(save(path, {**scores, label: [1, 3, 2, 3, 1]}), classes=["3", "2", "1"]).labels.tolist() == [
        2,
        0,
        1,
        0,
        2,
    ]


def test_the_probability_of_class_2_alone(path):
    """Labels 1 and 2: without the name of the column, label 1 alone would be the second class of two."""
    found = read(save(path, {"prob_2": PROBS[:, 1], "label": [1, 1, 1, 1]}))
    assert (found.labels.tolist(), found.class_names) == ([0] * 4, ("1", "2"))
    found.write(other := path.with_stem("b"))
    assert read(other).labels.tolist() == [0] * 4


@pytest.mark.parametrize("labels", [["FALSE", "True", "true", "False"], [False, True, True, False]])
def test_booleans_and_the_names_of_columns(path, labels):
    if path.suffix == ".parquet" and "FALSE" in labels:
        labels = [label.title() for label in labels]
    found = read(save(path, {"prob_True": PROBS[:, 1], "prob_False": PROBS[:, 0], "label": labels}))
    assert (found.class_names, found.labels.tolist()) == (("True", "False"), [1, 0, 0, 1])
    columns = {"prob_no": PROBS[:, 0], "prob_yes": PROBS[:, 1]}
    if path.suffix == ".csv" or labels[0] is False:
        found = read(save(path, {**columns, "label": labels}), "classes: no = false, yes = true")
        assert (found.class_names, found.labels.tolist()) == (("no", "yes"), LABELS)
    found = read(save(path, {**columns, "label": [word.upper() for word in WORDS]}))
    assert (found.class_names, found.labels.tolist()) == (("no", "yes"), LABELS)


def test_columns_numbered_from_1_match_labels(path):
    columns = {"prob_2": [0.25, 0.5], "prob_1": [0.75, 0.5], "label": [1, 2]}
    found = read(save(path, columns))
    assert (found.scores.tolist(), found.labels.tolist()) == ([[0.75, 0.25], [0.5, 0.5]], [0, 1])
    found = read(save(path, {"prob_3": [0.25, 0.5], "prob_8": [0.75, 0.5], "label": [8, 3]}))
    assert (found.class_names, found.labels.tolist()) == (("3", "8"), [1, 0])
    save(path, {"prob_3": [0.25, 0.5], "prob_8": [0.75, 0.5], "label": [8, 5]})
    with pytest.raises(PredictionsError, match=r"label, row 1.*: must be one of the classes 3, 8, got 5"):
        Predictions.read(path)


@pytest.mark.parametrize(("classes", "decimals"), [(3, 3), (10, 3), (4, 2), (20, 4)])
def test_rounded_probabilities_are_normalized(path, classes, decimals):
    exact = np.random.default_rng(0).dirichlet(np.ones(classes), 500)
    rounded = np.round(exact, decimals)
    assert (np.abs(rounded.sum(axis=1) - 1) > 1e-4).any()
    save(path, {f"prob_{k}": rounded[:, k] for k in range(classes)})
    found = read(path, "probabilities sum to 1 only within rounding; rows are normalized")
    np.testing.assert_allclose(found.scores.sum(axis=1), 1, atol=1e-4)
    np.testing.assert_allclose(found.scores, exact, atol=classes * 10.0**-decimals)


def test_sums_that_rounding_cannot_explain(path):
    save(path, {"prob_0": [0.5, 0.5], "prob_1": [0.5, 0.502]})
    with pytest.raises(PredictionsError, match=r"prob_\.\.\., row 1.*: must sum to 1, got 1.002"):
        Predictions.read(path)
    save(path, {"prob_0": [0.5, 0.5], "prob_1": [0.5, 0.500723]})
    with pytest.raises(PredictionsError, match=r"prob_\.\.\., row 1.*: must sum to 1"):
        Predictions.read(path)


CHURN = {
    "customer_id": ["007", "8", "9", "x"],
    "churned": WORDS,
    "churn_probability": PROBS[:, 1],
    "age": [20, 7, 3, 9],
}


def test_chosen_columns(path):
    save(path, CHURN)
    found = read(path, "classes: no, yes", label="churned", prob="churn_probability")
    assert (found.scores.tolist(), found.labels.tolist()) == (PROBS[:, 1].tolist(), LABELS)
    read(path, label="churned", prob="churn_probability", classes=("no", "yes"))
    said = "probability of the second class: churn_probability; not used: customer_id, age; classes: no, yes"
    assert read(path, said, label="churned").labels.tolist() == LABELS
    found = read(path, "classes: no, yes", label="churned", logit="churn_probability")
    assert found.input == "logits"


def test_chosen_patterns(path):
    save(
        path, {"y": WORDS, "p_no": PROBS[:, 0], "p_yes": PROBS[:, 1], "yes score": PROBS[:, 1], "no score": PROBS[:, 0]}
    )
    assert read(path, label="y", prob="p*").class_names == ("no", "yes")  # not _no and _yes
    found = read(path, label="y", prob="p_*")
    assert (found.class_names, found.labels.tolist()) == (("no", "yes"), LABELS)
    found = read(path, label="y", prob="* score")
    assert (found.class_names, found.labels.tolist()) == (("yes", "no"), [1, 0, 0, 1])
    found = read(path, label="y", logit=["no score", "yes score"], classes=["no", "yes"])
    assert (found.class_names, found.labels.tolist()) == (("no score", "yes score"), LABELS)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"label": "churn"}, "there is no column 'churn', which label names; the columns are customer_id, churned"),
        ({"label": "churn*"}, "scores are missing: "),
        ({"label": "c?hurn*"}, r"there is no column 'c\?hurn\*', which label names"),
        ({"prob": "p_*"}, r"there is no column 'p_\*', which prob names"),
        ({"label": "churned", "prob": "p"}, "which prob names; the columns are customer_id, churned, churn_pr"),
        ({"label": "churned", "prob": "churned"}, "column 'churned', which prob names, has another use already"),
        ({"label": "x", "ignore": "customer_id"}, "which label names; the columns are customer_id, churned"),
        ({"label": "churned", "ignore": "churn*"}, "column 'churned', which label names, has another use already: it"),
        ({"ignore": "id"}, "there is no column 'id', which ignore names"),
        ({"label": "churned", "prob": "age", "classes": ["no"]}, "classes must name each of 2 classes once, got no"),
        ({"label": "churned", "classes": ["a", "b"]}, r"churned, row 0.*: must be one of the classes a, b, got 'no'"),
        ({"label": "customer_id", "prob": "churn_probability"}, "customer_id.*: .*must be|customer_id: there are 2"),
    ],
)
def test_choices_that_do_not_fit(path, choice, message):
    save(path, CHURN)
    with pytest.raises(PredictionsError, match=message):
        Predictions.read(path, columns=ColumnChoice(**choice))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"label": 3}, TypeError, "label must be a sequence of names, got 3"),
        ({"task": "binary"}, ValueError, "task must be .multiclass. or .multilabel., got .binary."),
        ({"task": "multilabel", "classes": ["a"]}, ValueError, "classes are not for task=.multilabel."),
        ({"prob": 3}, TypeError, "prob must be a sequence of names, got 3"),
        ({"classes": "no"}, TypeError, "classes must be a sequence of names, got 'no'"),
        ({"prob": []}, TypeError, r"prob must be names, got \[\]"),
        ({"ignore": [1]}, TypeError, r"ignore must be names, got \[1\]"),
        ({"prob": "a", "logit": "b"}, ValueError, "scores are either prob or logit, got prob="),
    ],
)
def test_invalid_choices(arguments, error, message):
    with pytest.raises(error, match=message):
        ColumnChoice(**arguments)


def test_unknown_labels(path):
    save(path, {"p_cat": PROBS[:, 0], "p_dog": PROBS[:, 1], "label": ["cat", "dog", "cow", "cat"]})
    message = r"label, row 2.*: must be one of the classes cat, dog, got 'cow'; name the label of each class with --cl"
    with pytest.raises(PredictionsError, match=message):
        Predictions.read(path)
    save(path, {"probs": PROBS[:, 1], "label": ["a", "b", "c", "a"]})
    with pytest.raises(PredictionsError, match="label: there are 2 classes, but the labels are a, b, c: "):
        Predictions.read(path)
    save(path, {"probs": PROBS[:, 1], "label": ["yes"] * 4})
    assert read(path, "classes: no, yes").labels.tolist() == [1] * 4
    save(path, {"p_spam": PROBS[:, 1], "label": ["ham"] * 4})
    said = "probability of the second class: p_spam; classes: ham, spam"
    assert read(path, said).class_names == ("ham", "spam")
    if path.suffix == ".parquet":
        save(path, {f"prob_{k}": [0.25] * 4 for k in range(4)} | {"label": [True, False, True, True]})
        with pytest.raises(PredictionsError, match="label: booleans are labels of two classes, but there are 4"):
            Predictions.read(path)


def test_a_missing_label(tmp_path):
    path = save(tmp_path / "a.csv", {"probs": PROBS[:, 1], "label": ["no", "", "yes", "no"]})
    with pytest.raises(PredictionsError, match=r"label, row 1 \(line 3\): the label is missing; leave such rows out"):
        Predictions.read(path)


def test_labels_of_long_lists(tmp_path):
    """The number of classes is taken from the first row, however long it is."""
    lists = [str([0.5, 0.5] + [0.0] * 49_998)] * 2
    path = save(tmp_path / "a.csv", {"probs": lists, "label": [1, 2], "text": ['a "b", c', "d"]})
    found = read(path, "not used: text")
    assert (found.labels.tolist(), found.classes) == ([1, 2], 50_000)
    with PredictionsReader(path) as blocks:
        assert blocks.size.columns == 50_000


def test_labels_are_settled_before_the_first_block(path, monkeypatch):
    """The first blocks hold one class only; reading in blocks must know the other, or that labels start at 1."""
    monkeypatch.setattr("refocal.predictions.protocol.BLOCK_SCORES", 16)
    monkeypatch.setattr("refocal.predictions.csv_text.BLOCK_BYTES", 256)
    read(save(path, {"probs": np.full(999, 0.5), "label": ["b"] * 990 + ["a"] * 9}), "classes: a, b (in sorted order; "
         "change it with --classes, in Python ColumnChoice(classes=...))")  # fmt: skip
    scores = {"prob_0": np.full(999, 0.5), "prob_1": np.full(999, 0.5)}
    found = read(save(path, {**scores, "label": [1] * 990 + [2] * 9}), "labels start at 1, classes: 1 to 2")
    assert found.labels.tolist() == [0] * 990 + [1] * 9
    save(path, {**scores, "label": [1] * 990 + [2] * 8 + [0]})
    with pytest.raises(PredictionsError, match=r"label, row 990.*: must be a whole number from 0 to 1, got 2"):
        Predictions.read(path)


def test_files_of_one_data_set_have_the_same_classes(tmp_path):
    one = save(tmp_path / "1.csv", {"probs": [0.5, 0.5], "label": ["b", "b"]})
    two = save(tmp_path / "2.csv", {"probs": [0.5, 0.5], "label": ["a", "a"]})
    with pytest.warns(PredictionsWarning, match="classes: a, b"):
        assert Predictions.read(one, data_set=[one, two]).labels.tolist() == [1, 1]
    with PredictionsReader(one, data_set=[two], warn=False) as blocks:
        assert blocks.columns == ColumnChoice(classes=("a", "b"))
        assert next(iter(blocks)).labels.tolist() == [1, 1]


def test_extra_arrays_of_npz(tmp_path):
    path = save(tmp_path / "a.npz", {"probs": PROBS, "y_true": LABELS, "ids": [["a"], ["b"]]})
    found = read(path, "label array: y_true; not used: ids")
    assert found.labels.tolist() == LABELS
    read(path, label="y_true", prob="probs")


def test_a_name_that_would_break_a_terminal(tmp_path):
    path = save(tmp_path / "a.csv", {"a\x1b[31m": [1], "probs": [0.5]})
    read(path, "not used: a?[31m")
    save(path, {**{f"column {k}": [1] for k in range(12)}, "probs": [0.5]})
    read(path, f"not used: {', '.join(f'column {k}' for k in range(10))}, and 2 more")
