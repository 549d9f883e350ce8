"""Data sets on a real Ray cluster with two workers: numbers, dying workers, errors, interrupts and commands."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from data_sets import SIZES, predictions, spoil, summarize, write

from refocal import cli, metrics, scale
from refocal.calibrators import FocalPosterior, FocalTemperatureScaling, TemperatureScaling
from refocal.predictions import ColumnChoice, Predictions, PredictionsError, PredictionsWarning
from refocal.scale.measuring import BlockSums, sum_block
from refocal.scale.parts import FileSource, RowReader, find_files, require_form
from refocal.scale.ray_engine import StoredBlocks, open_ray

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("cluster")


def shuffled(folder):
    """The files in another order."""
    return [folder / f"part-{number}.parquet" for number in (3, 0, 4, 2, 1)]


@pytest.mark.parametrize("form", [{}, {"weighted": True, "dtype": np.float64}], ids=["float32", "weights"])
def test_both_engines_measure_the_same(tmp_path, form):
    write(tmp_path, **form)
    local = summarize(scale.evaluate(tmp_path / "*.parquet"))
    assert summarize(scale.evaluate(shuffled(tmp_path), engine="ray")) == pytest.approx(local, rel=1e-12)
    again = tmp_path / "again"  # the same rows in other partitions
    again.mkdir()
    whole = [Predictions.read(tmp_path / f"part-{number}.parquet") for number in (4, 0)]
    for number, part in enumerate(whole):
        part.write(again / f"{number}.parquet")
    for number, rows in enumerate((slice(0, 7), slice(7, None))):
        part = Predictions.read(tmp_path / "part-3.parquet")
        weights = None if part.sample_weight is None else part.sample_weight[rows]
        Predictions(part.scores[rows], input="logits", labels=part.labels[rows], sample_weight=weights).write(
            again / f"part-3-{number}.parquet"
        )
    shutil.copy(tmp_path / "part-1.parquet", again)
    assert summarize(scale.evaluate(again / "*.parquet", engine="ray")) == pytest.approx(local, rel=1e-12)


def test_labels_in_words_mean_the_same_on_every_worker(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    probs = rng.random(400)
    for part, word in enumerate(["yes", "no", "yes", "no"]):  # no file tells both classes
        some = probs[100 * part : 100 * part + 100]
        table = {"id": np.arange(100), "churned": [word] * 100, "score": some}
        pq.write_table(pa.table(table), tmp_path / f"{part}.parquet")
    columns = ColumnChoice(label="churned", prob="score")
    with pytest.warns(PredictionsWarning, match="classes: no, yes"):
        found = summarize(scale.evaluate(tmp_path / "*.parquet", columns=columns, engine="ray"))
    labels = np.repeat([1, 0, 1, 0], 100)
    assert found["nll"] == pytest.approx(metrics.nll(probs, labels, task="binary"))
    calibrator = FocalPosterior(gamma=1.0, input="probs")
    scale.apply(calibrator, tmp_path / "*.parquet", tmp_path / "out", columns=columns, engine="ray")  # reads no labels
    assert pq.read_table(tmp_path / "out" / "1.parquet").column_names == ["id", "churned", "prob_1"]


@pytest.mark.parametrize(
    "calibrator",
    [
        TemperatureScaling(),
        FocalTemperatureScaling(),
        FocalTemperatureScaling(search="grid", gamma_grid=[0.0, 1.0], temperature_grid=[1.5, 2.0, 2.5]),
        FocalTemperatureScaling(search="grid", gamma_grid=[0.0], temperature_grid=[1.5, 2.0], objective="ece"),
    ],
    ids=["temperature", "newton", "grid", "grid-ece"],
)
def test_both_engines_fit_the_same(tmp_path, calibrator):
    write(tmp_path)
    local = scale.calibrate(calibrator, tmp_path / "*.parquet")
    remote = scale.calibrate(calibrator, shuffled(tmp_path), engine="ray")
    # the first guess depends on the order of files, so that the results agree up to the tolerance of the search
    assert remote.temperature_ == pytest.approx(local.temperature_, rel=1e-5)
    if isinstance(calibrator, FocalTemperatureScaling):
        assert remote.gamma_ == pytest.approx(local.gamma_, rel=1e-4, abs=1e-5)


def test_rows_are_read_from_disk_once(tmp_path):
    write(tmp_path)
    files = find_files(tmp_path / "*.parquet")
    rows = RowReader(require_form(files), finite=True)

    with open_ray(None, lambda _: None) as engine:
        held = engine.hold(FileSource.of(files, rows.read))
        assert isinstance(held, StoredBlocks)
        for file in files:
            file.unlink()
        for _ in range(2):
            found = engine.fold(held, lambda block: len(block.labels), lambda a, b: a + b, what="counting")
            assert found == sum(SIZES)


def test_rows_beyond_the_object_store_are_read_again(tmp_path, monkeypatch):
    from refocal.scale import ray_engine

    write(tmp_path)
    monkeypatch.setattr(ray_engine, "_STORE_SHARE", 0.0)
    local = scale.calibrate(TemperatureScaling(), tmp_path / "*.parquet")
    remote = scale.calibrate(TemperatureScaling(), tmp_path / "*.parquet", engine="ray")
    assert remote.temperature_ == pytest.approx(local.temperature_, rel=1e-12)


def test_a_worker_that_dies_in_a_pass_counts_nothing_twice(tmp_path):
    write(tmp_path)
    files = find_files(tmp_path / "*.parquet")
    rows = RowReader(require_form(files))
    marker = tmp_path / "died"

    def read_and_die(path):
        for number, block in enumerate(rows.read(path)):
            yield block
            if path.name == "part-3.parquet" and number == 0 and not marker.exists():
                marker.write_text(str(os.getpid()), encoding="utf-8")  # after its rows are counted
                os.kill(os.getpid(), signal.SIGKILL)

    def measure(block):
        return sum_block(block, input="logits", calibrators=[])

    with open_ray(None, lambda _: None) as engine:
        found = engine.fold(FileSource.of(files, read_and_die), measure, BlockSums.merge, what="measuring")
    assert int(marker.read_text(encoding="utf-8")) != os.getpid()
    (accumulator,) = found.accumulators
    assert accumulator.compute()._asdict() == pytest.approx(summarize(scale.evaluate(files)), rel=1e-12)
    assert (found.rows, accumulator.compute().samples) == (sum(SIZES), sum(SIZES))


@pytest.mark.parametrize("task", ["evaluate", "calibrate", "apply"])
def test_an_error_of_a_worker_is_that_of_a_local_run(tmp_path, task):
    write(tmp_path)
    wanted = spoil(tmp_path / "part-3.parquet", 131)
    run = {
        "evaluate": lambda **engine: scale.evaluate(tmp_path / "*.parquet", **engine),
        "calibrate": lambda **engine: scale.calibrate(TemperatureScaling(), tmp_path / "*.parquet", **engine),
        "apply": lambda **engine: scale.apply(
            FocalPosterior(gamma=1.0), tmp_path / "*.parquet", tmp_path / "out", **engine
        ),
    }[task]
    with pytest.raises(PredictionsError, match=wanted) as remote:
        run(engine="ray")
    with pytest.raises(PredictionsError, match=wanted) as local:
        run()
    assert type(remote.value) is type(local.value)
    assert str(remote.value) == str(local.value)


def test_apply_continues_after_an_error(tmp_path):
    write(tmp_path)
    good = (tmp_path / "part-3.parquet").read_bytes()
    spoil(tmp_path / "part-3.parquet", 0)
    arguments = (FocalPosterior(gamma=1.0), tmp_path / "*.parquet", tmp_path / "out")
    with pytest.raises(PredictionsError):
        scale.apply(*arguments, engine="ray")
    kept = sorted(path.name for path in (tmp_path / "out").glob("*.parquet"))
    for name in kept:  # whole files only
        assert len(Predictions.read(tmp_path / "out" / name)) == SIZES[int(name[5])]
    (tmp_path / "part-3.parquet").write_bytes(good)
    done = scale.apply(*arguments, engine="ray")
    assert done.kept == len(kept)
    assert done.written == len(SIZES) - len(kept)
    scale.apply(FocalPosterior(gamma=1.0), tmp_path / "*.parquet", tmp_path / "local")
    for number in (0, 1, 3, 4):
        one, other = (
            Predictions.read(tmp_path / folder / f"part-{number}.parquet").scores for folder in ("out", "local")
        )
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("place", ["a task", "progress"])
def test_an_error_is_raised_when_the_other_tasks_have_ended(tmp_path, place):
    predictions(10, 0).write(tmp_path / "a.npz")
    predictions(10, 0).write(tmp_path / "b.npz")
    beats = tmp_path / "beats"

    def fail_or_go_on(path):
        deadline = time.monotonic() + 120
        with open(beats, "ab", buffering=0) as file:
            while time.monotonic() < deadline:
                if path.name == "b.npz":
                    file.write(b".")
                elif beats.stat().st_size:
                    break
        if place == "a task":
            raise ValueError(place)
        yield from ()

    def tell(_):
        raise ValueError(place)

    source = FileSource.of((tmp_path / "a.npz", tmp_path / "b.npz"), fail_or_go_on)
    with open_ray(None, tell) as engine:
        with pytest.raises(ValueError, match=place) as caught:
            engine.fold(source, len, max, what="waiting")
        before = beats.stat().st_size
        time.sleep(0.2)
        assert beats.stat().st_size == before
        assert caught.traceback  # a traceback keeps generators of its frames open


def test_an_interrupt_ends_the_remote_work(tmp_path):
    predictions(10, 0).write(tmp_path / "a.npz")
    beats = tmp_path / "beats"

    def endless(path):
        while True:
            with open(beats, "a", encoding="utf-8") as file:
                file.write(".")
            time.sleep(0.05)
            yield from ()

    def interrupt():
        while not (beats.exists() or ended.wait(0.05)):
            pass
        if not ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    ended = threading.Event()
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt), open_ray(None, lambda _: None) as engine:
            engine.fold(FileSource.of((tmp_path / "a.npz",), endless), len, max, what="waiting")
    finally:
        ended.set()
        thread.join()
    before, deadline = -1, time.monotonic() + 120
    while beats.stat().st_size != before and time.monotonic() < deadline:
        before = beats.stat().st_size
        time.sleep(0.5)
    assert beats.stat().st_size == before


def test_a_cluster_is_known_by_its_answer(tmp_path):
    predictions(10, 0).write(tmp_path / "a.npz")
    address, path = ray.get_runtime_context().gcs_address, str(tmp_path / "a.npz")
    program = f"from refocal import scale; print(scale.evaluate({path!r}, engine='ray', address={address!r}).to_json())"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, encoding="utf-8")
    assert json.loads(done.stdout) == json.loads(scale.evaluate(path).to_json())


def test_an_address_other_than_the_connected_one_is_refused(tmp_path):
    predictions(10, 0).write(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="to which this process is connected"):
        scale.evaluate(tmp_path / "a.npz", engine="ray", address="10.0.0.1:6379")


@pytest.mark.thorough
def test_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(Path("val"))
    write(Path("test"))

    def run(*arguments):
        status = cli.main([*arguments, "--json"])
        printed = capsys.readouterr()
        return json.loads(printed.out) if status == 0 else printed.err

    results = {}
    for engine in (["--engine", "local"], ["--engine", "ray"], ["--engine", "ray", "--address", "auto"]):
        (given,) = run("evaluate", "val/*.parquet", *engine)["methods"]
        arguments = ("val/*.parquet", "--test", "test/*.parquet", "--method", "focal-temperature", "--save", "c.json")
        calibrated = run("calibrate", *arguments, "--force", *engine)
        applied = run("apply", "c.json", "test/*.parquet", "--out", f"out{len(results)}", *engine)
        assert applied == {"rows": sum(SIZES), "written": 5, "kept": 0, "out": f"out{len(results)}"}
        before = calibrated["methods"][0]
        after = next(method for method in calibrated["methods"] if method["chosen"])
        values = [estimate["value"] for estimate in given["measures"].values()]
        results[" ".join(engine)] = [*values, *after["parameters"].values()]
        assert after["measures"]["ece"]["value"] < 0.3 * before["measures"]["ece"]["value"]
    local, *remote = results.values()
    for each in remote:
        assert each == pytest.approx(local, rel=1e-6)
    spoil(Path("val/part-1.parquet"), 3)
    found, expected = (run("evaluate", "val/*.parquet", "--engine", engine) for engine in ("ray", "local"))
    assert found == expected


def test_a_sample_has_the_same_rows_as_in_one_process(cluster, tmp_path):
    write(tmp_path, weighted=True)
    local, remote = (
        json.loads(scale.evaluate(tmp_path / "*.parquet", sample=800, engine=engine).to_json())
        for engine in ("local", "ray")
    )
    for report in (local, remote):
        measures = report["methods"][0].pop("measures")
        report["limits"] = {name: (estimate["low"], estimate["high"]) for name, estimate in measures.items()}
    assert "sums over all 2,5" in local["protocol"]
    assert remote == local
