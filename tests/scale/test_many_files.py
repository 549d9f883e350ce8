"""A data set of many files in one process: the numbers of the same rows in memory."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
from data_sets import SIZES, predictions, spoil, summarize, write

from refocal import scale
from refocal.calibrators import FocalPosterior, FocalTemperatureScaling, TemperatureScaling, VectorScaling
from refocal.calibrators.conversion import scores_to_probs
from refocal.cli import main
from refocal.metrics import CalibrationAccumulator
from refocal.predictions import Predictions, PredictionsError
from refocal.scale.engines import LocalEngine
from refocal.scale.likelihood import MOST_PASSES, PartitionedLikelihood
from refocal.scale.parts import FileSource, Rows, find_files, require_form

FORMS = [{}, {"dtype": np.float64, "weighted": True}, {"input": "probs", "dtype": np.float64}]


def in_memory(whole, probs=None):
    accumulator = CalibrationAccumulator()
    given = scores_to_probs(whole.scores, input=whole.input) if probs is None else probs
    accumulator.update(given, whole.labels, sample_weight=whole.sample_weight)
    return accumulator.compute()._asdict()


@pytest.mark.parametrize("form", FORMS, ids=["float32", "weights", "probs"])
def test_measures_are_those_of_all_rows(tmp_path, form):
    whole = write(tmp_path, **form)
    assert summarize(scale.evaluate(tmp_path / "*.parquet")) == pytest.approx(in_memory(whole), rel=1e-9)
    calibrator = FocalPosterior(gamma=2.0, input=whole.input)
    found = scale.evaluate(tmp_path / "*.parquet", calibrator=calibrator)
    probs = calibrator.fit(whole.scores, whole.labels).predict_proba(whole.scores)
    assert summarize(found) == pytest.approx(in_memory(whole), rel=1e-9)
    assert summarize(found, found.chosen) == pytest.approx(in_memory(whole, probs), rel=1e-9)
    assert (found.chosen.name, dict(found.chosen.parameters)) == ("posterior", {"gamma": 2.0})
    assert found.samples == (len(whole) if whole.sample_weight is None else np.count_nonzero(whole.sample_weight))


@pytest.mark.parametrize("form", FORMS, ids=["float32", "weights", "probs"])
@pytest.mark.parametrize("kind", [TemperatureScaling, FocalTemperatureScaling])
def test_newton_fits_are_those_of_all_rows(tmp_path, kind, form):
    whole = write(tmp_path, **form)
    found = scale.calibrate(kind(input=whole.input), tmp_path / "*.parquet")
    wanted = kind(input=whole.input).fit(whole.scores, whole.labels, whole.sample_weight)
    for name in set(kind._learned) - {"evaluations_", "at_bound_"}:
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-3, abs=1e-4), name
    assert found.n_features_in_ == wanted.n_features_in_
    np.testing.assert_allclose(found.predict_proba(whole.scores), wanted.predict_proba(whole.scores), atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sharpness", [1e-3, 0.2, 1.0, 40.0])
def test_ten_passes_are_enough(tmp_path, dtype, sharpness):
    for part in range(3):
        some = predictions(20_000, part)
        scores = (sharpness * some.scores).astype(dtype)
        Predictions(scores, input="logits", labels=some.labels).write(tmp_path / f"{part}.npz")
    files = find_files(tmp_path / "*.npz")
    source = FileSource.of(files, Rows(require_form(files), finite=True).read)
    data = PartitionedLikelihood(LocalEngine(lambda _: None), source, input="logits", files=3)
    calibrator = FocalTemperatureScaling()
    calibrator.learn(data)
    assert data.passes <= MOST_PASSES
    assert calibrator.temperature_ / sharpness == pytest.approx(2, rel=0.1)


def test_an_eleventh_pass_is_refused(tmp_path):
    write(tmp_path)
    files = find_files(tmp_path / "*.parquet")
    source = FileSource.of(files, Rows(require_form(files)).read)
    data = PartitionedLikelihood(LocalEngine(lambda _: None), source, input="logits", files=len(files))
    with pytest.raises(RuntimeError, match="no optimum found in 10 passes"):
        for _ in range(MOST_PASSES):
            data.temperature_nll(1.0)


def change_before_the_second_pass(change):
    """A progress that changes the files when the first pass is over."""
    changes = [change]

    def tell(done):
        if done.what == "fitting, pass 1" and done.files == done.of_files and changes:
            changes.pop()()

    return tell


def test_a_file_that_changes_between_two_passes_is_noticed(tmp_path):
    for part in range(3):
        predictions(2000, part).write(tmp_path / f"{part}.npz")
    sharper = predictions(2000, 1)
    sharper = Predictions(9 * sharper.scores, input="logits", labels=sharper.labels)
    progress = change_before_the_second_pass(lambda: sharper.write(tmp_path / "1.npz", overwrite=True))
    with pytest.raises(RuntimeError, match=r"1\.npz changed during the fit"):
        scale.calibrate(TemperatureScaling(), tmp_path / "*.npz", progress=progress)


@pytest.mark.parametrize(("weights", "left"), [("101", 2), ("000", 0)])
def test_rows_that_vanish_between_two_passes_are_noticed(tmp_path, weights, left):
    path = tmp_path / "a.csv"

    def write_rows(weights):
        rows = [f"{row},{weight}\n" for row, weight in zip(("1,2,1", "2,1,0", "1,2,0"), weights, strict=True)]
        path.write_text("".join(["logit_0,logit_1,label,weight\n", *rows]), encoding="utf-8")

    def change():  # which neither size nor time tells
        status = path.stat()
        write_rows(weights)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    write_rows("111")
    progress = change_before_the_second_pass(change)
    with pytest.raises(RuntimeError, match=f"the files changed during the fit: 3 samples at first, {left} now"):
        scale.calibrate(TemperatureScaling(), path, progress=progress)


@pytest.mark.parametrize("objective", ["nll", "ece"])
def test_every_cell_of_a_grid_in_one_pass(tmp_path, objective):
    whole = write(tmp_path)
    passes = []
    settings = {"gamma_grid": [-0.5, 0.0, 1.0], "temperature_grid": np.linspace(1, 3, 9), "objective": objective}
    calibrator = FocalTemperatureScaling(search="grid", **settings)
    found = scale.calibrate(calibrator, tmp_path / "*.parquet", progress=lambda done: passes.append(done.what))
    wanted = calibrator.fit(whole.scores, whole.labels)
    assert (found.gamma_, found.temperature_) == (wanted.gamma_, wanted.temperature_)
    assert found.evaluations_ == 27
    assert set(passes) == {"fitting 27 cells"}


def test_one_column_is_about_two_classes(tmp_path):
    rng = np.random.default_rng(0)
    log_odds = 6 * rng.standard_normal(4000)
    labels = (rng.random(4000) < 1 / (1 + np.exp(-log_odds / 3))).astype(int)
    for part in range(2):
        Predictions(log_odds[part::2], input="logits", labels=labels[part::2]).write(tmp_path / f"{part}.npz")
    found = scale.calibrate(TemperatureScaling(), tmp_path / "*.npz")
    assert found.temperature_ == pytest.approx(TemperatureScaling().fit(log_odds, labels).temperature_, rel=1e-4)
    assert found.n_features_in_ == 1
    assert scale.evaluate(tmp_path / "*.npz").samples == 4000


def test_splits(tmp_path):
    whole = predictions(600, 0)
    split = np.where(np.arange(600) < 450, "val", "test")
    for part in (slice(0, 300), slice(300, 600)):  # the first file has no row of "test"
        block = Predictions(whole.scores[part], input="logits", labels=whole.labels[part], split=split[part])
        block.write(tmp_path / f"{part.start}.npz")
    assert scale.evaluate(tmp_path / "*.npz", split="test").samples == 150
    with pytest.raises(
        ValueError, match=r"2 files, the first of which is .*, have no rows of split 'train' with a positive weight"
    ):
        scale.evaluate(tmp_path / "*.npz", split="train")


def test_masked_logits_of_rows_that_are_left_out_do_not_matter(tmp_path):
    some = predictions(600, 0)
    scores, weights = some.scores.copy(), np.ones(600)
    scores[::3, 0], weights[3] = -np.inf, 0.0
    split = np.where(np.arange(600) % 3 == 0, "test", "val")
    split[3] = "val"
    masked = Predictions(scores, input="logits", labels=some.labels, split=split, sample_weight=weights)
    masked.write(tmp_path / "a.npz")
    found = scale.calibrate(TemperatureScaling(), tmp_path / "a.npz", split="val")
    kept = (split == "val") & (weights > 0)
    wanted = TemperatureScaling().fit(scores[kept], some.labels[kept])
    assert found.temperature_ == pytest.approx(wanted.temperature_, rel=1e-4)
    with pytest.raises(PredictionsError, match=r"a.npz, logits, row 0: must be finite"):
        scale.calibrate(TemperatureScaling(), tmp_path / "a.npz", split="test")


def test_progress_is_told_over_files_and_rows(tmp_path):
    write(tmp_path)
    told = []
    scale.evaluate(tmp_path / "*.parquet", progress=told.append)
    assert [done.rows for done in told] == [3000, 3001, 12_012, 12_512, 12_512]
    assert told[-1] == ("measuring", len(SIZES), len(SIZES), sum(SIZES))


@pytest.mark.parametrize("task", ["evaluate", "calibrate", "apply"])
def test_a_bad_row_is_named_with_its_file(tmp_path, task):
    write(tmp_path)
    wanted = spoil(tmp_path / "part-3.parquet", 131)
    with pytest.raises(PredictionsError, match=wanted):
        run(task, tmp_path)
    if task == "apply":
        assert sorted(os.listdir(tmp_path / "out")) == [".refocal-apply", "part-0.parquet", "part-1.parquet"]


def run(task, folder, **engine):
    files = folder / "*.parquet"
    if task == "evaluate":
        return scale.evaluate(files, **engine)
    if task == "calibrate":
        return scale.calibrate(TemperatureScaling(), files, **engine)
    return scale.apply(FocalPosterior(gamma=1.0), files, folder / "out", **engine)


def test_a_damaged_file_is_not_one_without_rows(tmp_path):
    write(tmp_path)
    (tmp_path / "part-2.parquet").write_bytes(b"")
    with pytest.raises(PredictionsError, match=r"part-2.parquet: is not a parquet file"):
        scale.evaluate(tmp_path / "*.parquet")


def test_parts_of_another_form_are_refused(tmp_path):
    write(tmp_path)
    predictions(50, 0, dtype=np.float64).write(tmp_path / "z.parquet")
    with pytest.raises(
        ValueError, match=r"z.parquet must hold what .*part-0.parquet does, logits of 5 columns in float32"
    ):
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


def test_class_names_may_be_left_out(tmp_path):
    some = predictions(10, 0)
    some.write(tmp_path / "b.npz")
    for name in "ac":
        Predictions(some.scores, input="logits", labels=some.labels, class_names=tuple("abcde")).write(
            tmp_path / f"{name}.npz"
        )
    assert scale.evaluate(tmp_path / "*.npz").samples == 30


def test_a_file_counts_once_by_whatever_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    predictions(10, 0).write("a.npz")
    os.symlink("a.npz", "b.npz")
    assert scale.evaluate(["a.npz", "./a.npz", tmp_path / "a.npz", "*.npz"]).samples == 10
    assert find_files("*.npz") == (tmp_path / "a.npz",)


def test_names_with_spaces_and_the_characters_of_patterns(tmp_path):
    folder = tmp_path / "run [1] of *"
    folder.mkdir()
    predictions(10, 0).write(folder / "a b[2]?.npz")
    predictions(10, 1).write(folder / "c.npz")
    assert find_files(folder / "a b[2]?.npz") == (folder / "a b[2]?.npz",)
    assert find_files(folder / "*.npz") == (folder / "a b[2]?.npz", folder / "c.npz")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("form", ["columns", "lists", "dictionaries"])
def test_layouts_and_dtypes_measure_the_same(tmp_path, form, dtype):
    import pyarrow as pa

    some = predictions(300, 0, dtype=dtype)
    columns = {f"logit_{k}": pa.array(some.scores[:, k]) for k in range(some.classes)}
    label = pa.array(some.labels.astype(np.uint8))
    if form == "lists":
        columns = {"logits": pa.array(list(some.scores), pa.list_(columns["logit_0"].type))}
    elif form == "dictionaries":
        label = label.dictionary_encode()
    pq.write_table(pa.table({**columns, "label": label}), tmp_path / "a.parquet", row_group_size=70)
    assert summarize(scale.evaluate(tmp_path / "a.parquet")) == pytest.approx(in_memory(some), rel=1e-6)


def test_a_calibrator_of_other_scores_is_refused(tmp_path):
    predictions(10, 0, input="probs").write(tmp_path / "probs.npz")
    predictions(10, 0).write(tmp_path / "logits.npz")
    with pytest.raises(ValueError, match=r"takes logits, but .*probs.npz holds probs"):
        scale.evaluate(tmp_path / "probs.npz", calibrator=FocalPosterior(gamma=1.0))
    two = TemperatureScaling().fit(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), [0, 1, 0])
    with pytest.raises(ValueError, match=r"logits.npz has scores of 5 columns, but the calibrator was fitted to 2"):
        scale.evaluate(tmp_path / "logits.npz", calibrator=two)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda _: scale.evaluate([]), "paths must name one file at least"),
        (lambda _: scale.evaluate("nothing-*.parquet"), r"no file matches nothing-\*.parquet"),
        (lambda files: scale.evaluate(files, engine="spark"), "engine must be one of"),
        (lambda files: scale.evaluate(files, address="auto"), 'address belongs to engine="ray"'),
        (lambda files: scale.calibrate(VectorScaling(), files), "must be TemperatureScaling by NLL"),
        (
            lambda files: scale.calibrate(TemperatureScaling(objective="ece"), files),
            "must be TemperatureScaling by NLL",
        ),
        (lambda files: scale.calibrate(TemperatureScaling(classes=[1, 2]), files), "with no classes named"),
        (lambda files: scale.calibrate(TemperatureScaling(input="probs"), files), "takes probs, but .* holds logits"),
        (lambda files: scale.evaluate(files, engine="ray", address="127.0.0.1:1"), "127.0.0.1:1 cannot be reached"),
        (lambda files: scale.evaluate(files, engine="ray", address="somewhere"), "address must be 'auto'"),
    ],
)
def test_what_is_refused(tmp_path, call, message):
    predictions(10, 0).write(tmp_path / "a.npz")
    with pytest.raises((ValueError, OSError), match=message):
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


def test_apply_is_whole_and_goes_on_where_it_was_stopped(tmp_path):
    whole = write(tmp_path)
    calibrator = FocalPosterior(gamma=1.0)
    out = tmp_path / "out"
    assert run("apply", tmp_path) == (sum(SIZES), len(SIZES), 0)
    assert not (out / "part-2.parquet").exists()  # which has no rows
    files = [out / f"part-{number}.parquet" for number in (0, 1, 3, 4)]
    probs = np.concatenate([Predictions.read(file).scores for file in files])
    np.testing.assert_allclose(probs, calibrator.fit(whole.scores, whole.labels).predict_proba(whole.scores))
    times = [file.stat().st_mtime_ns for file in files]
    files[2].unlink()
    assert run("apply", tmp_path) == (SIZES[3], 2, 3)
    assert [file.stat().st_mtime_ns == before for file, before in zip(files, times, strict=True)] == [1, 1, 0, 1]
    with pytest.raises(ValueError, match="holds outputs of another calibrator"):
        scale.apply(FocalPosterior(gamma=2.0), tmp_path / "*.parquet", out)
    assert scale.apply(FocalPosterior(gamma=2.0), tmp_path / "*.parquet", out, overwrite=True).rows == sum(SIZES)


def test_apply_refuses_outputs_that_would_collide(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        predictions(10, 0).write(tmp_path / folder / "x.npz")
    with pytest.raises(ValueError, match="would have the same output"):
        scale.apply(FocalPosterior(gamma=1.0), tmp_path / "*" / "x.npz", tmp_path / "out")
    with pytest.raises(ValueError, match="to another folder"):
        scale.apply(FocalPosterior(gamma=1.0), tmp_path / "a" / "x.npz", tmp_path / "a")
    os.symlink(tmp_path / "a" / "x.npz", tmp_path / "link.npz")
    with pytest.raises(ValueError, match="to another folder"):
        scale.apply(FocalPosterior(gamma=1.0), tmp_path / "link.npz", tmp_path / "a")


def test_apply_refuses_files_that_are_not_its_own(tmp_path):
    predictions(10, 0).write(tmp_path / "a.npz")
    out = tmp_path / "out"
    out.mkdir()
    predictions(10, 1).write(out / "a.npz")
    before = (out / "a.npz").read_bytes()
    with pytest.raises(FileExistsError, match=r"a.npz exists, and not by this calibrator"):
        scale.apply(FocalPosterior(gamma=1.0), tmp_path / "a.npz", out)
    assert (out / "a.npz").read_bytes() == before
    assert scale.apply(FocalPosterior(gamma=1.0), tmp_path / "a.npz", out, overwrite=True) == (10, 1, 0)
    (note,) = (out / ".refocal-apply").glob("*.json")
    for damage in (b"\xff{", b"[]", b'{"name": "a.npz", "output": 3}'):
        note.write_bytes(damage)
        with pytest.raises(FileExistsError, match=r"a.npz exists, and not by this calibrator"):
            scale.apply(FocalPosterior(gamma=1.0), tmp_path / "a.npz", out)


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


def test_local_needs_no_ray(tmp_path):
    predictions(10, 0).write(tmp_path / "a.npz")
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from refocal import scale\n"
        "print(scale.evaluate(sys.argv[1]).samples)\n"
        "scale.evaluate(sys.argv[1], engine='ray')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.npz")], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "10"
    assert "pip install 'refocal[ray]'" in done.stderr
