"""Files and names that are made to harm: each is rejected in one line that names it, and none blocks the program."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest

from hostile_values import CONTROL, DEEP, ESCAPES, needs_fifo
from refocal import _check, scale
from refocal.calibrators import FocalPosterior, TemperatureScaling, load
from refocal.cli import main
from refocal.metrics import CalibrationAccumulator
from refocal.predictions import Predictions, PredictionsError, PredictionsReader


def run(capsys, *arguments):
    status = main([str(argument) for argument in arguments])
    return status, *capsys.readouterr()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such names")
def test_names_do_not_command_the_terminal(tmp_path, capsys):
    status, shown, trouble = run(capsys, "evaluate", tmp_path / f"no{ESCAPES.replace('/', '-')}.npz")
    assert (status, CONTROL.search(shown + trouble)) == (1, None)


@pytest.mark.parametrize("words", [f"evaluate a.npz --{ESCAPES}", f"--{ESCAPES} evaluate a.npz", ESCAPES])
def test_options_do_not_command_the_terminal(capsys, words):
    with pytest.raises(SystemExit):
        main(words.split(" "))
    assert CONTROL.sub("", shown := capsys.readouterr().err) == shown


def test_deep_nesting_names_the_file(tmp_path, capsys):
    state = tmp_path / "state.json"
    state.write_text(DEEP, encoding="utf-8")
    with pytest.raises(ValueError, match=r"state\.json is not a saved CalibrationAccumulator"):
        CalibrationAccumulator.load(state)
    Predictions(np.zeros((4, 2)), input="logits", labels=[0, 1, 0, 1]).write(tmp_path / "a.npz")
    status, _, trouble = run(capsys, "calibrate", tmp_path / "a.npz", "--loss", state)
    assert (status, "state.json" in trouble, "nested too deeply" in trouble) == (1, True, True)


@needs_fifo
def test_a_fifo_is_rejected_at_once(tmp_path, capsys):
    """Nobody writes to it: a program that opened it would wait forever."""
    names = ("a.npz", "a.parquet", "a.csv")
    for name in (*names, "a.json"):
        os.mkfifo(tmp_path / name)
    for name in names:
        with pytest.raises(PredictionsError, match=f"{name} must be a regular file, got a FIFO"):
            Predictions.read(tmp_path / name)
        with pytest.raises(PredictionsError, match="must be a regular file"):
            PredictionsReader(tmp_path / name).__enter__()
    with pytest.raises(ValueError, match=r"a\.json must be a regular file, got a FIFO"):
        load(tmp_path / "a.json")
    with pytest.raises(ValueError, match=r"a\.npz must be a regular file, got a FIFO"):
        CalibrationAccumulator.load(tmp_path / "a.npz")
    status, _, trouble = run(capsys, "calibrate", tmp_path / "a.npz", "--loss", tmp_path / "a.json")
    assert (status, trouble.count("\n")) == (1, 1)
    (tmp_path / "out" / ".refocal-apply").mkdir(parents=True)
    os.mkfifo(tmp_path / "out" / ".refocal-apply" / "lock")
    Predictions(np.zeros((4, 2)), input="logits").write(tmp_path / "good.npz")
    with pytest.raises(ValueError, match="lock must be a regular file, got a FIFO"):
        scale.apply(FocalPosterior(gamma=1.0), tmp_path / "good.npz", tmp_path / "out")
    os.symlink(os.devnull, tmp_path / "null.npz")
    with pytest.raises(PredictionsError, match="must be a regular file, got a device"):
        Predictions.read(tmp_path / "null.npz")


@needs_fifo
def test_a_pipe_of_the_shell_is_read(tmp_path):
    """`<(command)` is a path to a pipe that is open already."""
    logits = np.array([[4.0, 0.0], [0.0, 4.0], [1.0, 0.0]])
    TemperatureScaling().fit(logits, [0, 1, 1]).save(tmp_path / "a.json")
    reader, writer = os.pipe()
    try:
        os.write(writer, (tmp_path / "a.json").read_bytes())
        os.close(writer)
        if not os.path.exists(f"/dev/fd/{reader}"):
            pytest.skip("the operating system gives open files no paths")
        assert load(f"/dev/fd/{reader}").temperature_ > 0
    finally:
        os.close(reader)


def test_counts_are_bounded():
    with pytest.raises(ValueError, match="n must be at most 1,000,000, got a number with over 100 digits"):
        _check.count(10**5000, "n")


@pytest.mark.parametrize("extreme", [1e308, 1e200, 1e-200, 5e-324])
def test_weights_whose_sums_overflow_or_vanish_are_rejected(tmp_path, capsys, extreme):
    """Their sums, or those of their squares, would be infinite or 0, and every measure null."""
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((200, 3)), rng.integers(0, 3, 200)
    weights = np.full(200, extreme)
    Predictions(logits, input="logits", labels=labels).write(tmp_path / "plain.npz")
    np.savez(tmp_path / "a.npz", logits=logits, labels=labels, weights=weights)
    for engine in ([], ["--engine", "local"]):
        status, shown, trouble = run(capsys, "evaluate", tmp_path / "a.npz", "--json", *engine)
        assert (status, shown) == (1, "")
        assert "weight" in trouble
    for call in (
        lambda: TemperatureScaling().fit(logits, labels, weights),
        lambda: CalibrationAccumulator().update(np.full((200, 2), 0.5), labels % 2, sample_weight=weights),
    ):
        with pytest.raises(ValueError, match=r"the largest value of .*weight.* must lie between 1e-100 and 1e.100"):
            call()
    np.savez(tmp_path / "b.npz", logits=logits, labels=labels, weights=np.where(labels, 1e99, 1e-300))
    status, shown, _ = run(capsys, "evaluate", tmp_path / "b.npz", "--json")
    measures = json.loads(shown)["methods"][0]["measures"].values()
    assert all(value is not None for measure in measures for value in measure.values())


@pytest.mark.parametrize("width", ["0", "000", " 0 ", ""])
def test_a_terminal_of_no_width(tmp_path, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    Predictions(np.eye(3)[[0, 1, 2, 0] * 30], input="probs", labels=[0, 1, 2, 0] * 30).write(tmp_path / "a.npz")
    status, shown, _ = run(capsys, "evaluate", tmp_path / "a.npz")
    assert (status, "NLL" in shown) == (0, True)
