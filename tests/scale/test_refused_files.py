"""Data sets that are refused: bad rows, parts of different forms, wrong arguments and addresses."""

from __future__ import annotations

import os
import socket
import threading

import numpy as np
import pytest
from data_sets import SIZES, predictions, spoil, write

from refocal import scale
from refocal.calibrators import FocalPosterior, TemperatureScaling, VectorScaling
from refocal.predictions import Predictions, PredictionsError


def run(task, folder, **engine):
    files = folder / "*.parquet"
    if task == "evaluate":
        return scale.evaluate(files, **engine)
    if task == "calibrate":
        return scale.calibrate(TemperatureScaling(), files, **engine)
    return scale.apply(FocalPosterior(gamma=1.0), files, folder / "out", **engine)


@pytest.mark.parametrize("task", ["evaluate", "calibrate", "apply"])
def test_a_bad_row_is_named_with_its_file(tmp_path, task):
    write(tmp_path)
    wanted = spoil(tmp_path / "part-3.parquet", 131)
    with pytest.raises(PredictionsError, match=wanted):
        run(task, tmp_path)
    if task == "apply":
        assert sorted(os.listdir(tmp_path / "out")) == [".refocal-apply", "part-0.parquet", "part-1.parquet"]


def test_a_damaged_file_is_not_one_without_rows(tmp_path):
    write(tmp_path)
    (tmp_path / "part-2.parquet").write_bytes(b"")
    with pytest.raises(PredictionsError, match=r"part-2.parquet: is not a parquet file"):
        scale.evaluate(tmp_path / "*.parquet")


def test_parts_of_another_form_are_refused(tmp_path):
    write(tmp_path)
    predictions(50, 0, dtype=np.float64).write(tmp_path / "z.parquet")
    with pytest.raises(
        ValueError, match=r"z.parquet must hold the same as .*part-0.parquet, logits of 5 columns in float32"
    ):
        scale.evaluate(tmp_path / "*.parquet")
    some = predictions(50, 0)
    Predictions(some.scores[:, :4], input="logits").write(tmp_path / "z.parquet", overwrite=True)
    with pytest.raises(ValueError, match=r"z.parquet must hold the same as .* got logits of 4 columns in float32"):
        scale.evaluate(tmp_path / "*.parquet")
    masked = predictions(50, 0).scores.copy()
    masked[17, 0] = -np.inf
    Predictions(masked, input="logits", labels=np.ones(50, int)).write(tmp_path / "z.parquet", overwrite=True)
    assert scale.evaluate(tmp_path / "*.parquet").samples == sum(SIZES) + 50
    with pytest.raises(PredictionsError, match=r"z.parquet, logits, row 17: must be finite for a calibrator, got -inf"):
        run("calibrate", tmp_path)
    Predictions(masked, input="logits").write(tmp_path / "z.parquet", overwrite=True)
    with pytest.raises(ValueError, match=r"z.parquet has no labels"):
        scale.evaluate(tmp_path / "*.parquet")


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            {},
            {"sample_weight": np.full(10, 2.0)},
            "in float32 without weights, got logits of 5 columns in float32 with weights",
        ),
        (
            {"class_names": tuple("abcde")},
            {"class_names": tuple("abdce")},
            r"b.npz must have the class names of .*a.npz: 'c' for 2, got 'd'",
        ),
    ],
    ids=["weights", "class names"],
)
def test_parts_that_would_be_added_up_wrongly_are_refused(tmp_path, first, second, message):
    for name, more in (("a", first), ("b", second)):
        some = predictions(10, 0)
        Predictions(some.scores, input="logits", labels=some.labels, **more).write(tmp_path / f"{name}.npz")
    with pytest.raises(ValueError, match=message):
        scale.evaluate(tmp_path / "*.npz")


def test_a_calibrator_of_other_scores_is_refused(tmp_path):
    predictions(10, 0, input="probs").write(tmp_path / "probs.npz")
    predictions(10, 0).write(tmp_path / "logits.npz")
    with pytest.raises(ValueError, match=r"takes logits, but .*probs.npz holds probs"):
        scale.evaluate(tmp_path / "probs.npz", calibrator=FocalPosterior(gamma=1.0))
    two = TemperatureScaling().fit(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), [0, 1, 0])
    with pytest.raises(ValueError, match=r"logits.npz has 5 columns of scores, but the calibrator was fitted to 2"):
        scale.evaluate(tmp_path / "logits.npz", calibrator=two)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: scale.evaluate([]), "paths must name at least one file"),
        (lambda _: scale.evaluate("nothing-*.parquet"), r"no file matches nothing-\*.parquet"),
        (lambda files: scale.evaluate(files, engine="spark"), "engine must be one of"),
        (lambda files: scale.evaluate(files, address="auto"), 'address is only for engine="ray"'),
        (lambda files: scale.calibrate(VectorScaling(), files), "must be TemperatureScaling by NLL"),
        (
            lambda files: scale.calibrate(TemperatureScaling(objective="ece"), files),
            "must be TemperatureScaling by NLL",
        ),
        (lambda files: scale.calibrate(TemperatureScaling(classes=[1, 2]), files), "each with classes=None"),
        (lambda files: scale.calibrate(TemperatureScaling(input="probs"), files), "takes probs, but .* holds logits"),
        (lambda files: scale.evaluate(files, engine="ray", address="127.0.0.1:1"), "127.0.0.1:1 cannot be reached"),
        (lambda files: scale.evaluate(files, engine="ray", address="somewhere"), "address must be 'auto'"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, call, message):
    predictions(10, 0).write(tmp_path / "a.npz")
    with pytest.raises((ValueError, OSError), match=message):
        call(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: scale.evaluate(3), "paths must be a name, a pattern or a sequence of these, got 3"),
        (lambda files: scale.evaluate([files, None]), "paths must be a name, a pattern or a sequence of these, got "),
        (lambda files: scale.evaluate(files, calibrator="temperature"), "calibrator must be .*got 'temperature'"),
        (lambda files: scale.apply("temperature", files, "out"), "calibrator must be .*got 'temperature'"),
    ],
)
def test_arguments_of_other_types_are_refused(tmp_path, call, message):
    predictions(10, 0).write(tmp_path / "a.npz")
    with pytest.raises(TypeError, match=message):
        call(tmp_path / "a.npz")


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_an_address_where_something_else_listens_is_refused(tmp_path, says):
    predictions(10, 0).write(tmp_path / "a.npz")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            line, _ = server.accept()
            with line:
                line.recv(64)
                line.sendall(says)

        threading.Thread(target=answer, daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConnectionError, match=f"{address} cannot be reached: something else listens there"):
            scale.evaluate(tmp_path / "a.npz", engine="ray", address=address)


def test_files_without_any_row_are_refused(tmp_path):
    write(tmp_path)
    with pytest.raises(ValueError, match=r"part-2\.parquet has no rows"):
        scale.evaluate(tmp_path / "part-2.parquet")
