"""The commands with files as people have them: columns are chosen, guesses are printed, other columns are kept."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from refocal import cli, scale
from refocal.calibrators import FocalPosterior, TemperatureScaling, load
from refocal.predictions import ColumnChoice, Predictions, PredictionsWarning
from tables import write_table

ROWS = 300
CHOSEN = ("--label", "churned", "--prob", "churn_probability")


def draw(seed=0):
    """Overconfident probabilities of two classes, and labels."""
    rng = np.random.default_rng(seed)
    logits = 3 * rng.standard_normal(ROWS)
    return 1 / (1 + np.exp(-logits)), rng.random(ROWS) < 1 / (1 + np.exp(-logits / 2))


def read(path):
    """The columns of a file, as text."""
    if str(path).endswith(".parquet"):
        return pq.read_table(path).to_pydict()
    with open(path, newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))


def churn(seed=0):
    probs, labels = draw(seed)
    return {
        "customer_id": [f"{number:04d}" for number in range(ROWS)],
        "churned": np.where(labels, "yes", "no"),
        "churn_probability": probs,
        "region": np.where(np.arange(ROWS) % 3, "north, east", "south"),
    }


@pytest.fixture(params=["csv", "parquet"])
def suffix(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return request.param


def run(capsys, *arguments):
    status = cli.main([str(argument) for argument in arguments])
    shown, said = capsys.readouterr()
    assert status == 0, said
    return shown, said


def ece(shown):
    return json.loads(shown)["methods"][0]["measures"]["ece"]["value"]


def test_evaluate_says_what_it_guesses(suffix, capsys):
    probs, labels = draw()
    write_table(f"plain.{suffix}", {"prob_0": 1 - probs, "prob_1": probs, "label": labels.astype(int)})
    shown, said = run(capsys, "evaluate", f"plain.{suffix}", "--json")
    expected = ece(shown)
    assert said == ""
    write_table(f"churn.{suffix}", churn())
    shown, said = run(capsys, "evaluate", f"churn.{suffix}", *CHOSEN, "--json")
    assert said == f"refocal: churn.{suffix}: classes: no, yes\n"
    assert ece(shown) == pytest.approx(expected)
    assert json.loads(shown)["class_names"] == ["no", "yes"]
    _, said = run(capsys, "evaluate", f"churn.{suffix}", *CHOSEN, "--classes", "no,yes", "--ignore", "region")
    assert said == ""
    cat = np.where(labels, "dog", "cat")
    write_table(f"named.{suffix}", {"id": range(ROWS), "p_cat": 1 - probs, "p_dog": probs, "target": cat})
    shown, said = run(capsys, "evaluate", f"named.{suffix}", "--json")
    assert said == f"refocal: named.{suffix}: label column: target; probabilities: p_cat, p_dog; not used: id\n"
    assert ece(shown) == pytest.approx(expected)
    for kind in ("--prob", "--logit"):
        shown, said = run(capsys, "evaluate", f"named.{suffix}", "--label", "target", kind, "p_*", "--json")
        assert said == ""
        assert (ece(shown) == pytest.approx(expected)) == (kind == "--prob")


@pytest.mark.thorough
def test_scores_that_rank_the_classes_the_wrong_way_round(suffix, capsys):
    probs, labels = draw()
    found = ": the scores rank the classes the wrong way round (AUC 0."
    remedy = "): if they are about the other class, name the labels in the other order with --classes\n"
    words = np.where(labels, "bad", "good")  # in sorted order, bad is the first class
    write_table(f"words.{suffix}", {"probs": probs, "label": words})
    write_table(f"numbers.{suffix}", {"prob_0": probs, "prob_1": 1 - probs, "label": labels.astype(int)})
    for name, order in (("words", "good,bad"), ("numbers", "1,0")):
        for command in ("evaluate", "calibrate"):
            _, said = run(capsys, command, f"{name}.{suffix}")
            assert f"refocal: {name}.{suffix}{found}" in said
            assert said.endswith(remedy)
            assert run(capsys, command, f"{name}.{suffix}", "--classes", order)[1] == ""


def test_scores_that_do_not_rank_the_classes(suffix, capsys):
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=ROWS)
    for number, (scores, truth) in enumerate([(rng.random(ROWS), labels), (np.full(ROWS, 0.5), labels)]):
        write_table(f"{number}.{suffix}", {"probs": scores, "label": truth})
        assert run(capsys, "evaluate", f"{number}.{suffix}")[1] == ""


def test_what_is_missing_names_the_option(suffix, capsys):
    write_table(f"churn.{suffix}", churn())
    assert cli.main(["evaluate", f"churn.{suffix}", "--prob", "churn_probability"]) == 1
    assert "has no labels, which measuring and fitting need: name their column with --label" in capsys.readouterr().err
    write_table(f"scores.{suffix}", {"score": [0.5, 0.5], "label": [0, 1]})
    assert cli.main(["evaluate", f"scores.{suffix}"]) == 1
    assert "scores are missing: " in (said := capsys.readouterr().err)
    assert "got 'score', 'label'; choose others with --prob or --logit, in Python ColumnChoice(prob" in said
    with pytest.raises(SystemExit, match="2"):
        cli.main(["evaluate", "a.csv", "--prob", "a", "--logit", "b"])


def test_calibrate_and_apply_keep_the_other_columns(suffix, capsys):
    write_table(f"val.{suffix}", churn(1))
    write_table(f"test.{suffix}", test := churn(2))
    files = (f"val.{suffix}", "--test", f"test.{suffix}")
    more = ("--method", "temperature", "--save", "cal.json", "--out", f"out.{suffix}")
    _, said = run(capsys, "calibrate", *files, *CHOSEN, *more)
    assert said.splitlines() == [f"refocal: {name}.{suffix}: classes: no, yes" for name in ("val", "test")]
    run(capsys, "apply", "cal.json", f"test.{suffix}", *CHOSEN, "--out", f"applied.{suffix}")
    expected = load("cal.json").predict_proba(test["churn_probability"])[:, 1]
    for name, column in (("out", "prob_yes"), ("applied", "prob_yes")):
        found = read(f"{name}.{suffix}")
        assert list(found) == ["customer_id", "churned", "region", column]
        for kept in ("customer_id", "churned", "region"):
            assert found[kept] == list(test[kept])
        np.testing.assert_allclose(np.array(found[column], dtype=float), expected)
    write_table(f"new.{suffix}", {name: values for name, values in test.items() if name != "churned"})
    options = ("--prob", "churn_probability", "--ignore", "region")
    _, said = run(capsys, "apply", "cal.json", f"new.{suffix}", *options, "--out", f"new-out.{suffix}")
    assert said == f"refocal: new.{suffix}: kept as they are: customer_id\n"
    assert list(read(f"new-out.{suffix}")) == ["customer_id", "prob_yes"]
    assert load("cal.json").predict([0.001, 0.999]).tolist() == ["no", "yes"]


def test_a_calibrator_without_names_gives_numbers(suffix, capsys):
    """As those of earlier versions."""
    probs, labels = draw()
    TemperatureScaling(input="probs").fit(probs, labels.astype(int)).save("cal.json")
    write_table(f"a.{suffix}", {"score": probs})
    run(capsys, "apply", "cal.json", f"a.{suffix}", "--prob", "score", "--out", f"b.{suffix}")
    assert list(read(f"b.{suffix}")) == ["prob_1"]


def test_the_file_names_its_column_before_the_calibrator_does(suffix, capsys):
    write_table(f"a.{suffix}", churn())
    run(capsys, "calibrate", f"a.{suffix}", *CHOSEN, "--method", "temperature", "--save", "cal.json")
    write_table(f"new.{suffix}", {"prob_churn": draw()[0]})
    run(capsys, "apply", "cal.json", f"new.{suffix}", "--out", f"b.{suffix}")
    assert list(read(f"b.{suffix}")) == ["prob_churn"]
    write_table(f"new.{suffix}", {"score": draw()[0]})
    words = ["apply", "cal.json", f"new.{suffix}", "--prob", "score", "--out", f"c.{suffix}", "--classes", "yes,no"]
    assert cli.main(words) == 1
    assert f"new.{suffix} has scores of no, but the calibrator takes those of yes" in capsys.readouterr().err


def test_columns_in_another_order_are_matched_by_their_names(suffix, capsys):
    rng = np.random.default_rng(0)
    logits, shift = 2 * rng.standard_normal((ROWS, 3)), np.array([2, 0, 0])
    labels = np.array(["cat", "dog", "owl"])[np.argmax(logits + shift + rng.gumbel(size=logits.shape), axis=1)]
    columns = dict(zip(("logit_cat", "logit_dog", "logit_owl"), logits.T, strict=True))
    write_table(f"a.{suffix}", {**columns, "label": labels})
    run(capsys, "calibrate", f"a.{suffix}", "--method", "vector", "--save", "cal.json")
    write_table(f"new.{suffix}", dict(reversed(columns.items())))
    run(capsys, "apply", "cal.json", f"new.{suffix}", "--out", f"b.{suffix}")
    found = read(f"b.{suffix}")
    assert list(found) == ["prob_owl", "prob_dog", "prob_cat"]
    expected = load("cal.json").predict_proba(logits)
    np.testing.assert_allclose(np.array(list(found.values()), dtype=float).T, expected[:, ::-1])


def test_several_classes_keep_their_names(suffix, capsys):
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((ROWS, 3))
    labels = np.array(["cat", "dog", "owl"])[np.argmax(logits / 2 + rng.gumbel(size=logits.shape), axis=1)]
    names = [f"logit_{name}" for name in ("cat", "dog", "owl")]
    write_table(f"a.{suffix}", {"id": range(ROWS), **dict(zip(names, logits.T, strict=True)), "label": labels})
    run(capsys, "calibrate", f"a.{suffix}", "--method", "temperature", "--save", "cal.json", "--holdout", "0.5")
    run(capsys, "apply", "cal.json", f"a.{suffix}", "--out", f"b.{suffix}")
    found = read(f"b.{suffix}")
    assert list(found) == ["id", "label", "prob_cat", "prob_dog", "prob_owl"]
    assert found["label"] == list(labels)
    shown, _ = run(capsys, "evaluate", f"b.{suffix}", "--json")
    assert json.loads(shown)["class_names"] == ["cat", "dog", "owl"]


def test_labels_of_test_mean_what_those_of_val_mean(suffix, capsys):
    """Labels of val start at 1; the test rows lack the last class, and would pass for labels that start at 0."""
    probs = np.random.default_rng(0).dirichlet(np.ones(3), ROWS)
    columns = {f"prob_{k}": probs[:, k] for k in range(3)}
    write_table(f"val.{suffix}", {**columns, "label": np.arange(ROWS) % 3 + 1})
    write_table(f"test.{suffix}", {**columns, "label": np.arange(ROWS) % 2 + 1})
    options = ("--method", "temperature", "--json")
    shown, said = run(capsys, "calibrate", f"val.{suffix}", "--test", f"test.{suffix}", *options)
    assert said.count("labels start at 1, classes: 1 to 3") == 2
    wrong = np.mean(np.argmax(probs, axis=1) != np.arange(ROWS) % 2)
    assert json.loads(shown)["methods"][0]["measures"]["error"]["value"] == pytest.approx(wrong)


@pytest.mark.parametrize("words", [("no", "yes"), ("ham", "spam")])
def test_many_files_are_read_like_one(suffix, words, capsys):
    whole = churn()
    whole["churned"] = np.where(whole["churned"] == "yes", words[1], words[0])
    says = f"classes: {words[0]}, {words[1]}"
    write_table(f"whole.{suffix}", whole)
    order = np.argsort(whole["churned"])  # each part has one class
    for part, rows in enumerate(np.array_split(order, 4)):
        write_table(f"part-{part}.{suffix}", {name: np.asarray(values)[rows] for name, values in whole.items()})
    columns = ColumnChoice(label="churned", prob="churn_probability")
    with pytest.warns(PredictionsWarning, match=says):
        expected = scale.evaluate(f"whole.{suffix}", columns=columns).given.measures["nll"].value
    shown, said = run(capsys, "evaluate", f"part-*.{suffix}", *CHOSEN, "--json")
    assert json.loads(shown)["methods"][0]["measures"]["nll"]["value"] == pytest.approx(expected)
    assert said.count(says) == 1
    with pytest.warns(PredictionsWarning, match=says):
        calibrator = scale.calibrate(TemperatureScaling(input="probs"), f"part-*.{suffix}", columns=columns)
    calibrator.save("cal.json")
    run(capsys, "apply", "cal.json", f"part-*.{suffix}", *CHOSEN, "--out", "parts")
    parts = [read(f"parts/part-{part}.{suffix}") for part in range(4)]
    assert [list(part) for part in parts] == [["customer_id", "churned", "region", "prob_1"]] * 4
    ids = [each for part in parts for each in part["customer_id"]]
    assert ids == [whole["customer_id"][row] for row in order]


def test_rounded_probabilities_are_said_once(suffix, capsys):
    probs = np.round(np.random.default_rng(0).dirichlet(np.ones(4), ROWS), 3)
    write_table(f"a.{suffix}", {f"prob_{k}": probs[:, k] for k in range(4)} | {"label": np.arange(ROWS) % 4})
    shown, said = run(capsys, "evaluate", f"a.{suffix}", "--json")
    assert said == f"refocal: a.{suffix}: probabilities sum to 1 only within rounding; rows are normalized\n"
    assert json.loads(shown)["samples"] == ROWS


@pytest.mark.parametrize("labels", [["", "x", "-1"] * 100, [-1, 1, 1] * 100, ["a", "b", "c"] * 100, [0, 7, 1] * 100])
def test_apply_needs_no_valid_labels(suffix, labels, capsys):
    probs, _ = draw()
    FocalPosterior(gamma=1.0, input="probs", classes=2).save("cal.json")
    write_table(f"new.{suffix}", {"churned": labels, "p_spam": probs, "id": range(ROWS)})
    options = ("--label", "churned", "--out")
    _, said = run(capsys, "apply", "cal.json", f"new.{suffix}", *options, f"out.{suffix}")
    assert said == f"refocal: new.{suffix}: probability of the second class: p_spam; kept as they are: id\n"
    found = read(f"out.{suffix}")
    assert list(found) == ["churned", "id", "prob_spam"]
    assert list(map(str, found["churned"])) == list(map(str, labels))
    _, said = run(capsys, "apply", "cal.json", f"ne*.{suffix}", *options, "folder", "--engine", "local")
    assert said.startswith(f"refocal: new.{suffix}: probability of the second class")  # no absolute path
    assert read(f"folder/new.{suffix}") == found


def test_apply_to_npz_leaves_invalid_labels_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    FocalPosterior(gamma=1.0, input="probs", classes=2).save("cal.json")
    np.savez("a.npz", probs=[0.25, 0.75, 0.5], labels=[0, 1, 9])
    _, said = run(capsys, "apply", "cal.json", "a.npz", "--out", "b.npz")
    wrong = "a.npz, labels, row 2: must be a whole number from 0 to 1, got 9"
    assert said == f"refocal: labels are not written: {wrong}\n"
    assert Predictions.read("b.npz").labels is None
    np.savez("a.npz", probs=[0.25, 0.75, 0.5], labels=[0, 1, 1])
    run(capsys, "apply", "cal.json", "a.npz", "--out", "c.npz")
    assert Predictions.read("c.npz").labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize("names", [("prob_1", "prob_0"), ("p_yes", "p_no"), ("prob_1", "probs")])
def test_apply_replaces_older_scores_of_the_same_classes(suffix, names, capsys):
    probs, labels = draw()
    FocalPosterior(gamma=1.0, input="probs", classes=2).save("cal.json")
    columns = {names[0]: probs, names[1]: 1 - probs, "prob_old": probs, "label": labels.astype(int)}
    write_table(f"a.{suffix}", columns)
    _, said = run(capsys, "apply", "cal.json", f"a.{suffix}", "--prob", names[0], "--out", f"b.{suffix}")
    assert f"; not kept, because the new scores replace them: {names[1]}\n" in said
    assert list(read(f"b.{suffix}")) == ["prob_old", "label", names[0].replace("p_", "prob_")]


def test_labels_of_either_sign_as_people_type_them(suffix, capsys):
    probs, labels = draw()
    write_table(f"a.{suffix}", {"probs": probs, "label": np.where(labels, 1, -1)})
    shown, said = run(capsys, "evaluate", f"a.{suffix}", "--json")
    assert said == f"refocal: a.{suffix}: classes: -1, 1\n"
    for options in (("--classes", "-1,1"), ("--classes=-1,1",)):
        again, said = run(capsys, "evaluate", f"a.{suffix}", "--json", *options)
        assert (said, ece(again)) == ("", ece(shown))


def test_what_is_said_about_other_columns_is_true(suffix, capsys):
    write_table(f"churn.{suffix}", churn())
    _, said = run(capsys, "evaluate", f"churn.{suffix}", "--label", "churned", "--slice", "region", "--json")
    guess = "probability of the second class: churn_probability; not used: customer_id; classes: no, yes"
    assert said == f"refocal: churn.{suffix}: {guess}\n"
    assert cli.main(["evaluate", f"churn.{suffix}", *CHOSEN, "--slice", "country"]) == 1
    assert "columns: churned, customer_id, region; scores: churn_probability\n" in capsys.readouterr().err
    np.savez("a.npz", probs=[0.5, 0.25], labels=[0, 1])
    for command in ("evaluate", "calibrate"):
        assert cli.main([command, "a.npz", "--slice", "region"]) == 1
        message = "--slice needs a column of a parquet or csv file, but a.npz is npz, which has none"
        assert message in capsys.readouterr().err


def test_notes_have_no_absolute_paths(suffix, capsys):
    for part in ("a", "b"):
        Path(part).mkdir()
        write_table(f"{part}/churn.{suffix}", churn(ord(part)))
    for files in ((f"a/churn.{suffix}", f"b/churn.{suffix}"), (f"?/churn.{suffix}",)):
        _, said = run(capsys, "evaluate", *files, *CHOSEN, "--engine", "local", "--json")
        assert said == f"refocal: a/churn.{suffix}: classes: no, yes\n"
