"""The folder of a run: its card is read and written here alone."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from small_runs import DIGITS, run

import refocal_lab
from refocal_lab.train.process import Process
from refocal_lab.train.recipe import TrainingRecipe
from refocal_lab.train.run_folder import RunFolder, write_logits


def test_entries_are_added_to_a_card_and_replaced(tmp_path):
    recipe = TrainingRecipe(**{**DIGITS, "epochs": 1})
    run(recipe, tmp_path)
    folder = RunFolder(tmp_path / recipe.name)
    before = folder.read_card()
    folder.update_card(ran_on={"engine": "ray"}, seconds=2.0)
    after = folder.read_card()
    assert after == {**before, "ran_on": {"engine": "ray"}, "seconds": 2.0}
    assert list(after) == [*before, "ran_on"]  # in their places


def test_a_card_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    card = {"name": "one", "error": 0.1, "nll": 0.2, "ece": 0.3, "seconds": 1.0, "recipe": {}}
    folder.write_card(card)

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left on device"):
        folder.update_card(seconds=5.0)
    assert folder.read_card() == {"schema": 1, **card}
    assert json.loads(folder.card.read_text(encoding="utf-8"))["seconds"] == 1.0


def test_an_unfinished_run_has_no_card(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no finished run: it has no card\.json"):
        RunFolder(tmp_path).read_card()
    with pytest.raises(FileNotFoundError, match=r"holds no finished run: it has no card\.json"):
        RunFolder(tmp_path).update_card(seconds=1.0)


def test_no_other_module_names_the_card():
    sources = Path(refocal_lab.__file__).parent.rglob("*.py")
    naming = {path.name for path in sources if re.search(r"[\"']card\.json", path.read_text(encoding="utf-8"))}
    assert naming == {"run_folder.py"}


@pytest.mark.parametrize(("rank", "count"), [(-1, 2), (2, 2), (0, 0)])
def test_a_process_is_one_of_its_count(rank, count):
    with pytest.raises(ValueError, match=f"rank must be 0 to {count - 1} for {count} processes, got {rank}"):
        Process(rank, count)


def test_far_scores_of_many_classes_are_rounded(tmp_path):
    rng = np.random.default_rng(0)
    logits = 4 * rng.standard_normal((2_000, 100))
    labels = np.array([rng.choice(100, p=row) for row in softmax(logits, axis=1)])
    write_logits(tmp_path / "many.npz", logits=logits, labels=labels, split=np.full(2_000, "test"))
    stored = np.load(tmp_path / "many.npz")["logits"].astype(float)
    below = logits.max(axis=1, keepdims=True) - logits
    assert np.array_equal(stored[below <= 4], logits[below <= 4].astype(np.float16))
    for some, step in (((below > 4) & (below <= 8), 1 / 32), (below > 8, 1 / 4)):
        assert np.all(stored[some] / step % 1 == 0)
        assert np.abs(stored - logits)[some].max() <= step / 2
    loss, kept = (-log_softmax(scores, axis=1)[np.arange(2_000), labels].mean() for scores in (logits, stored))
    assert kept == pytest.approx(loss, abs=1e-4)


def test_scores_of_few_classes_are_not_rounded(tmp_path):
    logits = np.array([[20.0, 0.3, 1.7]])
    write_logits(tmp_path / "few.npz", logits=logits, labels=np.array([0]), split=np.array(["test"]))
    assert np.array_equal(np.load(tmp_path / "few.npz")["logits"], logits.astype(np.float16))
