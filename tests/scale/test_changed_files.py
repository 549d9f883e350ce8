"""A file that changes between two passes over it is an error, not a result that mixes two data sets."""

from __future__ import annotations

import numpy as np
import pytest
from data_sets import predictions

from image_files import GIVEN, draw, reject, write_val_and_test
from refocal import cli, scale
from refocal.calibrators import FocalTemperatureScaling
from refocal.cli.progress import Tracker
from refocal.predictions import Predictions


def write(path, *, seed=0, **settings):
    some = predictions(2000, seed, **settings)
    split = np.where(np.arange(2000) < 1000, "val", "test")
    Predictions(some.scores, input=some.input, labels=some.labels, split=split).write(path, overwrite=True)


class Change:
    """A progress function that changes a file once, at the end of a pass."""

    def __init__(self, what, change):
        self.what, self.change, self.done = what, change, False

    def __call__(self, update):
        if update.what == self.what and update.files == update.of_files and not self.done:
            self.done = True
            self.change()


def test_evaluate_with_a_sample(tmp_path):
    write(tmp_path / "a.npz")
    change = Change("measuring", lambda: write(tmp_path / "a.npz", seed=1))
    with pytest.raises(RuntimeError, match=r"a\.npz changed during this run: try again when it is complete"):
        scale.evaluate(tmp_path / "a.npz", sample=1000, progress=change)
    assert change.done


def test_the_grid_of_probabilities(tmp_path):
    write(tmp_path / "a.npz", input="probs")
    change = Change("fitting, pass 1", lambda: write(tmp_path / "a.npz", seed=1, input="probs"))
    calibrator = FocalTemperatureScaling(
        input="probs", search="grid", gamma_grid=[0.0, 1.0], temperature_grid=[1.0, 2.0]
    )
    with pytest.raises(RuntimeError, match=r"a\.npz changed during this run"):
        scale.calibrate(calibrator, tmp_path / "a.npz", progress=change)
    assert change.done


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("evaluate a.npz", "looking for splits"),
        ("evaluate a.npz --split val", "measuring"),
        ("calibrate a.npz", "looking for splits"),
        ("calibrate a.npz", "counting"),
        ("calibrate a.npz", "sampling"),
        ("calibrate a.npz --test b.npz", "sampling"),
        ("calibrate b.npz --test a.npz", "measuring"),
    ],
)
@pytest.mark.thorough
def test_commands_that_read_block_by_block(folder, monkeypatch, capsys, words, what):
    for name in ("a.npz", "b.npz"):
        write(name)
    change = Change(what, lambda: write("a.npz", seed=1))
    monkeypatch.setattr(Tracker, "show_files", lambda _, update: change(update))
    method = ["--method", "temperature"] if words.startswith("calibrate") else []
    status = cli.main([*words.split(), *method, "--memory", "10K", "--engine", "local"])
    shown, said = capsys.readouterr()
    assert change.done
    assert (status, shown) == (1, "")
    assert said.endswith("a.npz changed during this run: try again when it is complete\n")


@pytest.mark.parametrize("changed", ["val.npz", "test.npz"])
def test_images(folder, monkeypatch, capsys, changed):
    write_val_and_test()

    def step(_tracker, text):
        if text == ("measuring test.npz" if changed == "test.npz" else "fitting focal temperature scaling"):
            logits, labels = draw(factor=30.0)
            np.savez(changed, logits=logits, labels=labels)

    monkeypatch.setattr(Tracker, "step", step)
    words = ("calibrate", "val.npz", "--test", "test.npz", *GIVEN, "--save", "cal.json")
    reject(capsys, f"{changed} changed during this run", *words)
    assert not (folder / "cal.json").exists()
