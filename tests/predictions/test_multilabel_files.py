"""Multi-label predictions, in memory and in files: each class has its own label, 0 or 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_real_files import read, save
from test_round_trip import assert_same

from refocal import scale
from refocal.calibrators import TemperatureScaling
from refocal.predictions import ColumnChoice, Predictions, PredictionsError, PredictionsReader, PredictionsWriter

PROBS = np.array([[0.75, 0.5, 0.25], [0.5, 0.125, 1.0], [0.125, 0.875, 0.0], [0.25, 0.75, 0.5]])
LABELS = np.array([[1, 1, 0], [0, 0, 1], [0, 1, 0], [0, 0, 0]])
NAMES = ("cat", "dog", "owl")
TASK = "task: multi-label, each class is a yes-or-no question"


def sample(rows=50, classes=3, **more):
    rng = np.random.default_rng(0)
    probs = rng.random((rows, classes)).astype(np.float32)
    return Predictions(probs, input="probs", labels=rng.random((rows, classes)) < 0.5, **more)


def columns(labels=LABELS, names=NAMES, stem="label_", **more):
    """Columns of labels in reversed order, and of scores."""
    answers = {f"{stem}{name}": labels[:, k].tolist() for k, name in enumerate(names)}
    scores = {f"prob_{name}": PROBS[:, k].tolist() for k, name in enumerate(names)}
    return {**dict(reversed(answers.items())), **scores, **more}


@pytest.fixture(params=[".csv", ".parquet"])
def path(request, tmp_path):
    return tmp_path / f"a{request.param}"


def test_the_task_follows_from_labels():
    found = Predictions(PROBS, input="probs", labels=LABELS.astype(bool))
    assert (found.task, found.classes, found.labels.dtype) == ("multilabel", 3, np.int8)
    np.testing.assert_array_equal(found.labels, LABELS)
    assert found.take(np.array([2, 0])).task == "multilabel"
    assert found.take(np.array([2, 0])).labels.tolist() == LABELS[[2, 0]].tolist()
    assert Predictions(PROBS, input="probs", task="multilabel").labels is None
    assert Predictions(PROBS, input="logits").task == "multiclass"
    assert Predictions(PROBS[:, 0], input="logits").task == "binary"


def test_one_class_needs_the_task():
    with pytest.raises(PredictionsError, match=r"labels: must have shape \(4,\), one value per row, got \(4, 1\)"):
        Predictions(PROBS[:, :1], input="probs", labels=LABELS[:, :1])
    for scores, labels in ((PROBS[:, :1], LABELS[:, :1]), (PROBS[:, 0], LABELS[:, 0])):
        found = Predictions(scores, input="probs", labels=labels, task="multilabel", class_names=["cat"])
        assert (found.scores.shape, found.labels.shape, found.classes) == ((4, 1), (4, 1), 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": [[0, 2, 0]] * 4}, "labels, class 1, row 0: must be 0 or 1, got 2"),
        ({"labels": np.where(LABELS, np.nan, 0)}, "labels, class 0, row 0: must be 0 or 1, got nan"),
        ({"labels": LABELS[:, :2]}, r"labels: must have shape \(4, 3\) like the scores, 0 or 1 for each class, got \("),
        ({"labels": [["a", "b", "c"]] * 4}, "labels: must be numbers, got <U1"),
        ({"labels": LABELS[:, 0], "task": "multilabel"}, r"labels: must have shape \(4, 3\) like the scores"),
        (
            {"scores": 2 * PROBS, "labels": LABELS},
            r"probs, class 0, row 0: must lie in \[0, 1\] \(are these logits or percentages\?\), got 1.5",
        ),
        (
            {"scores": -PROBS, "labels": LABELS},
            "must be non-negative and not NaN, got -0.75; for logits, pass input='logits'$",
        ),
        (
            {"scores": np.where(PROBS > 0, 1, -np.inf), "input": "logits", "labels": LABELS},
            "logits, class 2, row 2: must be finite",
        ),
        ({"scores": PROBS}, "must sum to 1, got 1.5 .* if each class is a yes-or-no question, pass task='multilabel'"),
        (
            {"task": "binary", "input": "logits"},
            "task must be 'multilabel' or 'multiclass' for 3",
        ),
        ({"labels": LABELS, "class_names": ["a", "b"]}, "class_names: must have one name for each of 3 classes"),
    ],
)
def test_invalid_predictions(arguments, message):
    with pytest.raises(PredictionsError, match=message):
        Predictions(**{"scores": PROBS, "input": "probs", **arguments})


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("names", [None, NAMES])
@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
def test_round_trips(suffix, names, classes, tmp_path, monkeypatch):
    monkeypatch.setattr("refocal.predictions.protocol.BLOCK_SCORES", 64)
    monkeypatch.setattr("refocal.predictions.csv_text.BLOCK_BYTES", 1 << 10)
    split = np.array(["val", "test"])[np.arange(200) % 2]
    more = {"split": split, "sample_weight": np.arange(200), "class_names": names and names[:classes]}
    whole = sample(200, classes, task="multilabel", **more)
    for predictions in (whole, replace(whole, labels=None)):
        path = tmp_path / f"a{suffix}"
        with PredictionsWriter(path, overwrite=True) as writer:
            for start in range(0, 200, 40):
                writer.write(predictions.take(np.arange(start, start + 40)))
        choice = ColumnChoice(task="multilabel")
        assert_same(Predictions.read(path, columns=choice), predictions, text=suffix == ".csv")
        with PredictionsReader(path, columns=choice) as blocks:
            assert (blocks.task, blocks.columns.task) == ("multilabel", "multilabel")
            found = list(blocks)
        assert len(found) > 1
        assert_same(Predictions._join(found), predictions, text=suffix == ".csv")


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
def test_labels_tell_the_task(suffix, tmp_path):
    predictions = sample(class_names=NAMES)
    predictions.write(tmp_path / f"a{suffix}")
    guessed = {".csv": "label columns: label_cat, label_dog, label_owl; "}
    found = read(tmp_path / f"a{suffix}", guessed.get(suffix, "") + TASK)
    assert_same(found, predictions, text=suffix == ".csv")
    assert_same(read(tmp_path / f"a{suffix}", task="multilabel"), found)


def test_blocks_must_agree(tmp_path):
    with (
        pytest.raises(PredictionsError, match=r"task must match the first block \(multilabel\), got"),
        PredictionsWriter(tmp_path / "a.npz") as writer,
    ):
        writer.write(sample())
        writer.write(Predictions(PROBS, input="logits"))


def test_npz_in_fortran_order(tmp_path):
    save(tmp_path / "a.npz", {"probs": PROBS, "labels": np.asfortranarray(LABELS)})
    np.testing.assert_array_equal(read(tmp_path / "a.npz", TASK).labels, LABELS)


@pytest.mark.parametrize("stem", ["label_", "y_true.", "Target ", "is_"])
def test_columns_are_matched_by_the_names_of_classes(path, stem):
    save(path, columns(stem=stem, id=[1, 2, 3, 4]))
    named = ", ".join(f"{stem}{name}" for name in NAMES)
    found = read(path, f"label columns: {named}; not used: id; {TASK}")
    assert found.class_names == NAMES
    np.testing.assert_array_equal(found.labels, LABELS)
    np.testing.assert_array_equal(found.scores, PROBS)


def test_chosen_columns(path):
    content = {f"{name}": LABELS[:, k].astype(bool).tolist() for k, name in enumerate(NAMES)}
    content |= {f"score_{name}": PROBS[:, k] for k, name in reversed([*enumerate(NAMES)])}
    save(path, content | {"label": ["a"] * 4})
    backwards = dict(label=list(NAMES), prob="score_*", task="multilabel")
    for choice in (backwards, backwards | {"prob": [f"score_{name}" for name in reversed(NAMES)]}):
        found = read(path, **choice)
        assert found.class_names == ("owl", "dog", "cat")
        np.testing.assert_array_equal(found.labels, LABELS[:, ::-1])
        np.testing.assert_array_equal(found.scores, PROBS[:, ::-1])
    save(path, columns(stem="truth of ", split=["val"] * 4))
    found = read(path, TASK, label="truth of *", prob="prob_*")
    np.testing.assert_array_equal(found.labels, LABELS)
    assert found.split.tolist() == ["val"] * 4


def test_numbered_columns(path):
    save(path, columns(names=("0", "1", "2")))
    found = read(path, f"label columns: label_0, label_1, label_2; {TASK}")
    assert found.class_names is None
    np.testing.assert_array_equal(found.labels, LABELS)


def test_one_class(path):
    content = {"label_cat": LABELS[:, 0], "prob_cat": PROBS[:, 0]}
    save(path, content)
    found = read(path, task="multilabel")
    assert (found.task, found.class_names, found.scores.shape) == ("multilabel", ("cat",), (4, 1))
    found = read(path, label="label_cat", prob="prob_cat", task="multilabel")
    assert (found.task, found.class_names, found.labels.tolist()) == ("multilabel", ("cat",), LABELS[:, :1].tolist())
    assert read(path, "classes: cat = 1", label="label_cat", prob="prob_cat").task == "binary"


def test_lists(path):
    scores = {"probs": [str(row) for row in PROBS.tolist()] if path.suffix == ".csv" else PROBS.tolist()}
    lists = [str(row) for row in LABELS.tolist()] if path.suffix == ".csv" else LABELS.astype(bool).tolist()
    save(path, {"label": lists, **scores})
    np.testing.assert_array_equal(read(path, TASK).labels, LABELS)
    answers = {f"y_{name}": LABELS[:, k] for k, name in enumerate(NAMES)}
    save(path, {**answers, **scores})
    found = read(path, TASK, label="y_*", prob="probs")
    assert found.class_names == NAMES
    np.testing.assert_array_equal(found.labels, LABELS)


def test_carried_columns_are_written_again(path, tmp_path):
    save(path, columns(id=["a", "b", "c", "d"]))
    choice = ColumnChoice(ignore="id", task="multilabel")
    found = Predictions.read(path, columns=choice, carry=True)
    for suffix in (".csv", ".parquet", ".npz"):
        (out := tmp_path / f"out{suffix}").unlink(missing_ok=True)
        replace(found, scores=found.scores / 2).write(out)
        again = read(
            out,
            [] if suffix == ".npz" else None,
            **({} if suffix == ".npz" else {"label": "label_*"}) | {"task": "multilabel"},
        )
        np.testing.assert_array_equal(again.scores, PROBS / 2)
        np.testing.assert_array_equal(again.labels, LABELS)
        assert again.class_names == NAMES
    lists = tmp_path / "lists.parquet"
    sample(class_names=NAMES).write(lists)
    Predictions.read(lists, columns=ColumnChoice(task="multilabel"), carry=True).write(tmp_path / "flat.csv")
    found = read(tmp_path / "flat.csv", label="label_*", task="multilabel")
    np.testing.assert_array_equal(found.labels, sample().labels)


@pytest.mark.parametrize(
    ("content", "choice", "message"),
    [
        (columns(labels=2 * LABELS), {}, r"label_cat, row 0.*: must be 0 or 1, got 2"),
        (
            columns(labels=np.where(LABELS, np.nan, 0)),
            {},
            "label_cat, row 0.*: (must be 0 or 1, got nan|the lab.* missing)",
        ),
        (columns(labels=np.where(LABELS, "maybe", "no")), {}, r"label_.*row 0.*: must be 0 or 1, got 'maybe'"),
        (
            {name: values for name, values in columns().items() if name != "label_owl"},
            {},
            "labels and scores must have the same classes, got labels of dog, cat and scores of cat, dog, owl:",
        ),
        (
            columns(),
            {"label": ["label_cat", "label_dog"]},
            "labels and scores must have the same classes, got labels of cat, dog and scores of cat, dog, owl",
        ),
        (columns(y_cat=[0] * 4, y_dog=[0] * 4, y_owl=[1] * 4), {}, "the labels could be in .*label_.* or y_cat"),
        (
            {"label_a": [0], "label_b": [1], "prob_x": [0.5], "prob_y": [0.1]},
            {"label": "label_*"},
            "labels of a, b",
        ),
        (
            {"label_1": [0], "label_2": [1], "prob_0": [0.5], "prob_1": [0.1]},
            {"label": "label_*"},
            "labels of 1, 2",
        ),
    ],
)
def test_columns_that_do_not_fit(path, content, choice, message):
    save(path, content)
    with pytest.raises(PredictionsError, match=message):
        Predictions.read(path, columns=ColumnChoice(**choice))


def test_npz_that_does_not_fit(tmp_path):
    path = tmp_path / "a.npz"
    for content, choice, message in (
        ({"probs": PROBS, "labels": LABELS[:, :2]}, {}, r"labels: must have shape \(4, 3\) like the scores"),
        (
            {"probs": PROBS, "labels": LABELS[:, 0]},
            {"task": "multilabel"},
            r"labels: must have shape \(4, 3\)",
        ),
        ({"probs": PROBS, "labels": 2 * LABELS}, {}, "labels, class 0, row 0: must be 0 or 1, got 2"),
        ({"probs": PROBS, "a": LABELS, "b": LABELS}, {"label": ["a", "b"]}, "labels must be one array of shape"),
        ({"probs": PROBS}, {}, "must sum to 1, got 1.5 .* choose with --task multilabel"),
        (
            {"logits": np.full((40, 3), 0.5), "labels": np.ones((40, 3))},
            {},
            "logits: look like .* every value lies",
        ),
        ({"probs": PROBS[:0], "labels": LABELS[:0]}, {}, "there are no rows"),
    ):
        save(path, content)
        with pytest.raises(PredictionsError, match=message):
            Predictions.read(path, columns=ColumnChoice(**choice))


def test_one_hot_labels_may_be_those_of_one_class_per_row(tmp_path):
    probs, labels = np.array([[0.5, 0.25, 0.25], [0.25, 0.75, 0.0]]), np.eye(3)[[2, 1]]
    path = save(tmp_path / "a.npz", {"probs": probs, "labels": labels})
    said = (
        f"{TASK}; but each row has one label, as if only one class could be true: if that is so, choose with "
        "--task multiclass, in Python ColumnChoice(task='multiclass')"
    )
    assert read(path, said).task == "multilabel"
    found = read(path, task="multiclass")
    assert (found.task, found.labels.tolist()) == ("multiclass", [2, 1])
    read(save(path, {"probs": probs / 2, "labels": labels}), TASK)
    read(save(path, {"logits": 4 * probs, "labels": labels}), said)
    save(path, {"probs": probs, "labels": np.ones((2, 3))})
    message = "labels, row 0: must have one 1 per row for task multiclass, got 3; if each class is a yes-or-no"
    with pytest.raises(PredictionsError, match=message):
        Predictions.read(path, columns=ColumnChoice(task="multiclass"))


def test_data_sets_are_not_read_block_by_block(tmp_path):
    sample().write(tmp_path / "a.npz")
    message = "a.npz is multi-label, which is not read block by block: use evaluate_multilabel or calibrate_multilabel"
    choice = ColumnChoice(task="multilabel")
    with pytest.raises(ValueError, match=message):
        scale.evaluate(tmp_path / "a.npz", columns=choice)
    with pytest.raises(ValueError, match=message):
        scale.calibrate(TemperatureScaling(), tmp_path / "a.npz", columns=choice)
