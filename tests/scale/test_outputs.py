"""Outputs of `apply`: each knows what made it, none is lost, and one command at a time writes to a folder."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from data_sets import SIZES, predictions, spoil, write
from sklearn.base import clone

from refocal import scale
from refocal.calibrators import FocalPosterior, TemperatureScaling
from refocal.predictions import Predictions, PredictionsError

ONE, TWO = FocalPosterior(gamma=1.0), FocalPosterior(gamma=2.0)


@pytest.fixture
def inputs(tmp_path):
    paths = [tmp_path / f"{name}.npz" for name in "abc"]
    for seed, path in enumerate(paths):
        predictions(20, seed).write(path)
    return paths


def made_by(calibrator, path, out):
    """Whether a calibrator made the output of a file."""
    given = Predictions.read(path)
    wanted = clone(calibrator).fit(given.scores, given.labels).predict_proba(given.scores)
    return np.array_equal(Predictions.read(out / path.name).scores, wanted)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_force_on_one_file_does_not_relabel_the_others(tmp_path, inputs):
    out = tmp_path / "out"
    scale.apply(ONE, inputs, out)
    assert scale.apply(TWO, inputs[2], out, overwrite=True) == (20, 1, 0)
    assert [made_by(ONE, path, out) for path in inputs] == [True, True, False]
    for calibrator in (ONE, TWO):
        with pytest.raises(ValueError, match=r"out holds outputs of another calibrator, such as .\.npz: choose"):
            scale.apply(calibrator, inputs, out)
    assert scale.apply(TWO, inputs, out, overwrite=True) == (60, 3, 0)
    assert all(made_by(TWO, path, out) for path in inputs)
    assert scale.apply(TWO, inputs, out) == (0, 0, 3)


def test_outputs_stay_where_a_calibrator_does_not_fit(tmp_path, inputs):
    out = tmp_path / "out"
    scale.apply(ONE, inputs, out)
    before = content(out)
    other = TemperatureScaling().fit(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), [0, 1, 0])
    with pytest.raises(ValueError, match="has scores of 5 columns, but the calibrator was fitted to 2"):
        scale.apply(other, inputs, out, overwrite=True)
    assert content(out) == before
    assert scale.apply(ONE, inputs, out).kept == 3


def test_outputs_stay_where_a_cluster_cannot_be_reached(tmp_path, inputs):
    pytest.importorskip("ray")
    out = tmp_path / "out"
    scale.apply(ONE, inputs, out)
    before = content(out)
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1 cannot be reached"):
        scale.apply(TWO, inputs, out, overwrite=True, engine="ray", address="127.0.0.1:1")
    assert content(out) == before
    assert scale.apply(ONE, inputs, out).kept == 3


def test_outputs_are_replaced_one_by_one(tmp_path):
    write(tmp_path)
    files, out = [tmp_path / f"part-{number}.parquet" for number in (0, 1, 3, 4)], tmp_path / "out"
    scale.apply(ONE, files, out)
    before = content(out)
    good = files[2].read_bytes()
    spoil(files[2], 0)
    with pytest.raises(PredictionsError):  # as a kill would, this ends the run before the last two
        scale.apply(TWO, files, out, overwrite=True)
    after = content(out)
    assert [after[path.name] == before[path.name] for path in files] == [False, False, True, True]
    files[2].write_bytes(good)
    for calibrator in (ONE, TWO):
        with pytest.raises(ValueError, match="holds outputs of another calibrator"):
            scale.apply(calibrator, files, out)
    assert scale.apply(TWO, files, out, overwrite=True).rows == sum(SIZES)
    assert all(made_by(TWO, path, out) for path in files)


def test_two_commands_at_once_do_not_mix_their_outputs(tmp_path, inputs):
    pytest.importorskip("fcntl")
    for number in range(10):
        out, start, refused = tmp_path / f"out{number}", threading.Barrier(2), []

        def run(calibrator, out=out, start=start, refused=refused):
            start.wait(timeout=240)
            try:
                scale.apply(calibrator, inputs, out)
            except (RuntimeError, ValueError) as error:
                refused.append(str(error))

        threads = [threading.Thread(target=run, args=(calibrator,)) for calibrator in (ONE, TWO)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=240)
        assert len(refused) == 1
        assert "another command is writing to" in refused[0] or "outputs of another calibrator" in refused[0]
        assert {made_by(ONE, path, out) for path in inputs} in ({True}, {False})


def test_a_note_is_about_no_other_file(tmp_path, inputs, monkeypatch):
    out = tmp_path / "out"
    scale.apply(ONE, inputs[:2], out)
    replace = os.replace

    def killed(source, target):
        if target == out / "b.npz":  # its note is written
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", killed)
        scale.apply(TWO, inputs[:2], out, overwrite=True)
    assert made_by(ONE, inputs[1], out)
    with pytest.raises(FileExistsError, match=r"b\.npz exists, and not by this calibrator"):
        scale.apply(TWO, inputs[:2], out)
    predictions(20, 5).write(out / "a.npz", overwrite=True)  # by other means
    with pytest.raises(FileExistsError, match=r"a\.npz exists, and not by this calibrator"):
        scale.apply(TWO, inputs[0], out)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b"\xff", b"[" * 200_000])
def test_a_damaged_note_is_about_no_file(tmp_path, inputs, damage):
    out = tmp_path / "out"
    scale.apply(ONE, inputs[0], out)
    (note,) = (out / ".refocal-apply").glob("*.json")
    note.write_bytes(damage)
    with pytest.raises(FileExistsError, match=r"a\.npz exists, and not by this calibrator"):
        scale.apply(ONE, inputs[0], out)
    assert scale.apply(ONE, inputs[0], out, overwrite=True) == (20, 1, 0)


def test_outputs_of_another_input_are_not_kept(tmp_path, inputs):
    out = tmp_path / "out"
    scale.apply(ONE, inputs, out)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    predictions(30, 7).write(elsewhere / "a.npz")
    with pytest.raises(ValueError, match=r"a\.npz was made from another file than .*elsewhere/a\.npz"):
        scale.apply(ONE, elsewhere / "a.npz", out)
    predictions(30, 8).write(inputs[1], overwrite=True)
    with pytest.raises(ValueError, match=r"b\.npz was made from another file than .*b\.npz, or before that changed"):
        scale.apply(ONE, inputs, out)
    assert scale.apply(ONE, inputs[1], out, overwrite=True) == (30, 1, 0)
    assert scale.apply(ONE, inputs, out) == (0, 0, 3)


def test_a_file_that_lost_its_rows_loses_its_output(tmp_path):
    write(tmp_path)
    out, path = tmp_path / "out", tmp_path / "part-0.parquet"
    scale.apply(ONE, path, out)
    path.write_bytes((tmp_path / "part-2.parquet").read_bytes())  # which has no rows
    assert scale.apply(ONE, path, out, overwrite=True) == (0, 1, 0)
    assert not (out / path.name).exists()
    assert scale.apply(TWO, tmp_path / "part-1.parquet", out) == (1, 1, 0)


def test_the_longest_names_that_a_folder_takes(tmp_path):
    path = tmp_path / f"{'x' * 251}.npz"
    predictions(5, 0).write(path)
    assert scale.apply(ONE, path, tmp_path / "out") == (5, 1, 0)
    assert scale.apply(ONE, path, tmp_path / "out") == (0, 0, 1)
