"""Fits to many files equal fits to the same rows in memory, and take at most ten passes."""

from __future__ import annotations

import os

import numpy as np
import pytest
from data_sets import predictions, write

from refocal import scale
from refocal.calibrators import FocalTemperatureScaling, TemperatureScaling
from refocal.predictions import Predictions, PredictionsError
from refocal.scale.engines import LocalEngine
from refocal.scale.likelihood import MOST_PASSES, PartitionedLikelihood
from refocal.scale.parts import FileSource, RowReader, find_files, require_form

FORMS = [{}, {"dtype": np.float64, "weighted": True}, {"input": "probs", "dtype": np.float64}]


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
    source = FileSource.of(files, RowReader(require_form(files), finite=True).read)
    data = PartitionedLikelihood(LocalEngine(lambda _: None), source, input="logits", files=3)
    calibrator = FocalTemperatureScaling()
    calibrator.learn(data)
    assert data.passes <= MOST_PASSES
    assert calibrator.temperature_ / sharpness == pytest.approx(2, rel=0.1)


def test_an_eleventh_pass_is_refused(tmp_path):
    write(tmp_path)
    files = find_files(tmp_path / "*.parquet")
    source = FileSource.of(files, RowReader(require_form(files)).read)
    data = PartitionedLikelihood(LocalEngine(lambda _: None), source, input="logits", files=len(files))
    with pytest.raises(RuntimeError, match="no optimum found in 10 passes"):
        for _ in range(MOST_PASSES):
            data.temperature_nll(1.0)


def change_before_the_second_pass(change):
    """A progress function that changes the files when the first pass is over."""
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
    with pytest.raises(RuntimeError, match=r"1\.npz changed during this run"):
        scale.calibrate(TemperatureScaling(), tmp_path / "*.npz", progress=progress)


@pytest.mark.parametrize(("weights", "left"), [("101", 2), ("000", 0)])
def test_rows_that_vanish_between_two_passes_are_noticed(tmp_path, weights, left):
    path = tmp_path / "a.csv"

    def write_rows(weights):
        rows = [f"{row},{weight}\n" for row, weight in zip(("1,2,1", "2,1,0", "1,2,0"), weights, strict=True)]
        path.write_text("".join(["logit_0,logit_1,label,weight\n", *rows]), encoding="utf-8")

    def change():  # without a change of size or time
        status = path.stat()
        write_rows(weights)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    write_rows("111")
    progress = change_before_the_second_pass(change)
    with pytest.raises(
        RuntimeError, match=f"the data changed during the fit: a total weight of 3 at first, {left} now"
    ):
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


def test_one_column_stands_for_two_classes(tmp_path):
    rng = np.random.default_rng(0)
    log_odds = 6 * rng.standard_normal(4000)
    labels = (rng.random(4000) < 1 / (1 + np.exp(-log_odds / 3))).astype(int)
    for part in range(2):
        Predictions(log_odds[part::2], input="logits", labels=labels[part::2]).write(tmp_path / f"{part}.npz")
    found = scale.calibrate(TemperatureScaling(), tmp_path / "*.npz")
    assert found.temperature_ == pytest.approx(TemperatureScaling().fit(log_odds, labels).temperature_, rel=1e-4)
    assert found.n_features_in_ == 1
    assert scale.evaluate(tmp_path / "*.npz").samples == 4000


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
