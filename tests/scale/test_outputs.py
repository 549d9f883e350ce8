"""Outputs of `apply`: each has a note of its origin, none is lost, and only one command writes to a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from data_sets import SIZES, predictions, write
from sklearn.base import clone

from refocal import scale
from refocal.calibrators import FocalPosterior, TemperatureScaling
from refocal.cli import main
from refocal.predictions import Predictions

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


def test_outputs_stay_if_a_calibrator_does_not_fit(tmp_path, inputs):
    out = tmp_path / "out"
    scale.apply(ONE, inputs, out)
    before = content(out)
    other = TemperatureScaling().fit(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), [0, 1, 0])
    with pytest.raises(ValueError, match="has 5 columns of scores, but the calibrator was fitted to 2"):
        scale.apply(other, inputs, out, overwrite=True)
    assert content(out) == before
    assert scale.apply(ONE, inputs, out).kept == 3


@pytest.mark.parametrize("classes", [4, None])
def test_outputs_stay_if_a_calibrator_does_not_fit_one_of_the_files(tmp_path, inputs, classes):
    out = tmp_path / "out"
    scale.apply(ONE, inputs, out)
    before = content(out)
    if classes is None:
        inputs[2].write_bytes(inputs[2].read_bytes()[:-100])
    else:
        Predictions(np.zeros((9, classes)), input="logits").write(inputs[2], overwrite=True)
    fitted = TemperatureScaling().fit(np.eye(5), [0, 1, 2, 3, 0])
    for paths in (inputs, inputs[2]):
        with pytest.raises(ValueError, match=r"c\.npz"):
            scale.apply(fitted, paths, out, overwrite=True)
        assert content(out) == before


def test_outputs_stay_if_a_cluster_cannot_be_reached(tmp_path, inputs):
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

    def stop(update):
        if (update.what, update.files) == ("calibrating", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scale.apply(TWO, files, out, overwrite=True, progress=stop)
    after = content(out)
    assert [after[path.name] == before[path.name] for path in files] == [False, False, True, True]
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


def test_a_note_describes_no_other_file(tmp_path, inputs, monkeypatch):
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
    with pytest.raises(FileExistsError, match=r"b\.npz exists, but this calibrator did not write it"):
        scale.apply(TWO, inputs[:2], out)
    predictions(20, 5).write(out / "a.npz", overwrite=True)  # by other means
    with pytest.raises(FileExistsError, match=r"a\.npz exists, but this calibrator did not write it"):
        scale.apply(TWO, inputs[0], out)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b"\xff", b"[" * 200_000])
def test_a_damaged_note_describes_no_file(tmp_path, inputs, damage):
    out = tmp_path / "out"
    scale.apply(ONE, inputs[0], out)
    (note,) = (out / ".refocal-apply").glob("*.json")
    note.write_bytes(damage)
    with pytest.raises(FileExistsError, match=r"a\.npz exists, but this calibrator did not write it"):
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
    with pytest.raises(ValueError, match=r"b\.npz was made from another file than .*b\.npz, or before it changed"):
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


def test_apply_continues_where_it_was_stopped(tmp_path):
    whole = write(tmp_path)
    out = tmp_path / "out"
    assert scale.apply(ONE, tmp_path / "*.parquet", out) == (sum(SIZES), len(SIZES), 0)
    assert not (out / "part-2.parquet").exists()  # which has no rows
    files = [out / f"part-{number}.parquet" for number in (0, 1, 3, 4)]
    probs = np.concatenate([Predictions.read(file).scores for file in files])
    np.testing.assert_allclose(probs, clone(ONE).fit(whole.scores, whole.labels).predict_proba(whole.scores))
    times = [file.stat().st_mtime_ns for file in files]
    files[2].unlink()
    assert scale.apply(ONE, tmp_path / "*.parquet", out) == (SIZES[3], 2, 3)
    assert [file.stat().st_mtime_ns == before for file, before in zip(files, times, strict=True)] == [1, 1, 0, 1]
    with pytest.raises(ValueError, match="holds outputs of another calibrator"):
        scale.apply(TWO, tmp_path / "*.parquet", out)
    assert scale.apply(TWO, tmp_path / "*.parquet", out, overwrite=True).rows == sum(SIZES)


def test_apply_refuses_outputs_that_would_collide(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        predictions(10, 0).write(tmp_path / folder / "x.npz")
    with pytest.raises(ValueError, match="would have the same output"):
        scale.apply(ONE, tmp_path / "*" / "x.npz", tmp_path / "out")
    with pytest.raises(ValueError, match="to a different folder"):
        scale.apply(ONE, tmp_path / "a" / "x.npz", tmp_path / "a")
    os.symlink(tmp_path / "a" / "x.npz", tmp_path / "link.npz")
    with pytest.raises(ValueError, match="to a different folder"):
        scale.apply(ONE, tmp_path / "link.npz", tmp_path / "a")


def test_apply_refuses_files_that_are_not_its_own(tmp_path):
    predictions(10, 0).write(tmp_path / "a.npz")
    out = tmp_path / "out"
    out.mkdir()
    predictions(10, 1).write(out / "a.npz")
    before = (out / "a.npz").read_bytes()
    with pytest.raises(FileExistsError, match=r"a.npz exists, but this calibrator did not write it"):
        scale.apply(ONE, tmp_path / "a.npz", out)
    assert (out / "a.npz").read_bytes() == before
    assert scale.apply(ONE, tmp_path / "a.npz", out, overwrite=True) == (10, 1, 0)
    (note,) = (out / ".refocal-apply").glob("*.json")
    for damage in (b"\xff{", b"[]", b'{"name": "a.npz", "output": 3}'):
        note.write_bytes(damage)
        with pytest.raises(FileExistsError, match=r"a.npz exists, but this calibrator did not write it"):
            scale.apply(ONE, tmp_path / "a.npz", out)


def test_a_killed_apply_leaves_only_whole_files(tmp_path, launch, monkeypatch, capsys):
    some = predictions(60_000, 0, dtype=np.float64)
    for number in range(6):
        some.write(tmp_path / f"{number}.npz")
    FocalPosterior(gamma=1.0).fit(some.scores, some.labels).save(tmp_path / "cal.json")
    command = [sys.executable, "-m", "refocal", "apply", "cal.json", "*.npz", "--out", "out", "--json"]
    process = launch(command, cwd=tmp_path, stdout=subprocess.PIPE)
    while not list(tmp_path.glob("out/*.npz")):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = sorted(path.name for path in tmp_path.glob("out/*.npz"))
    assert kept
    for name in kept:
        assert len(Predictions.read(tmp_path / "out" / name)) == 60_000
    monkeypatch.chdir(tmp_path)
    assert main(command[3:]) == 0
    assert json.loads(capsys.readouterr().out)["kept"] == len(kept)
    assert len(list(tmp_path.glob("out/*.npz"))) == 6
