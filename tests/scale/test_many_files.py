"""A data set of many files in one process has the measures of the same rows in memory."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from data_sets import SIZES, predictions, summarize, write

from refocal import scale
from refocal.calibrators import FocalPosterior
from refocal.calibrators.conversion import scores_to_probs
from refocal.metrics import CalibrationAccumulator
from refocal.predictions import Predictions
from refocal.scale.parts import find_files

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


def test_progress_counts_files_and_rows(tmp_path):
    write(tmp_path)
    told = []
    scale.evaluate(tmp_path / "*.parquet", progress=told.append)
    assert [done.rows for done in told] == [1000, 1001, 3512, 3812, 3812]
    assert told[-1] == ("measuring", len(SIZES), len(SIZES), sum(SIZES))


def test_class_names_may_be_left_out(tmp_path):
    some = predictions(10, 0)
    some.write(tmp_path / "b.npz")
    for name in "ac":
        Predictions(some.scores, input="logits", labels=some.labels, class_names=tuple("abcde")).write(
            tmp_path / f"{name}.npz"
        )
    assert scale.evaluate(tmp_path / "*.npz").samples == 30


def test_a_file_with_several_names_counts_once(tmp_path, monkeypatch):
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


def test_local_needs_no_ray(tmp_path):
    predictions(10, 0).write(tmp_path / "a.npz")
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from refocal import scale\n"
        "print(scale.evaluate(sys.argv[1]).samples)\n"
        "scale.evaluate(sys.argv[1], engine='ray')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.npz")],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.stdout.strip() == "10"
    assert "pip install 'refocal[ray]'" in done.stderr
