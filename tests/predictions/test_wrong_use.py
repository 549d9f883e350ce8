"""Errors of the caller: missing files, missing splits, formats that cannot store the predictions, no pyarrow."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

from refocal.predictions import Predictions, PredictionsError, PredictionsReader, PredictionsWriter
from rejection import GOOD


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv"])
def test_a_missing_file_is_an_oserror_with_its_path(suffix, tmp_path):
    path = tmp_path / f"missing{suffix}"
    with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
        Predictions.read(path)
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    with pytest.raises(IsADirectoryError, match=re.escape(str(folder))):
        Predictions.read(folder)


def test_reader_and_writer_work_only_inside_with(tmp_path):
    path = tmp_path / "a.npz"
    predictions = Predictions(GOOD, input="logits")
    with pytest.raises(ValueError, match="only inside its `with` block"):
        PredictionsWriter(path).write(predictions)
    predictions.write(path)
    with pytest.raises(ValueError, match="only inside its `with` block"):
        iter(PredictionsReader(path))


def test_ragged_lists():
    with pytest.raises(PredictionsError, match="scores: must be an array, got rows of different lengths"):
        Predictions([[0.5, 0.5], [1.0]], input="probs")
    with pytest.raises(PredictionsError, match="labels: must be an array, got rows of different lengths"):
        Predictions(GOOD, input="logits", labels=[[0], [0, 1], 1])


def test_selecting_a_missing_split():
    with pytest.raises(PredictionsError, match="split: cannot select 'val': the predictions have no split"):
        Predictions(GOOD, input="logits").select("val")
    with pytest.raises(PredictionsError, match="split: there are no rows of 'val'; the splits are 'a', 'b'"):
        Predictions(GOOD, input="logits", split=["a", "b", "a"]).select("val")


def test_csv_cannot_store_float16_probs(tmp_path):
    path = tmp_path / "a.csv"
    exact = [[0.25, 0.75], [0.3, 0.7]]
    rough = Predictions(np.array(exact, dtype=np.float16), input="probs")
    message = r"prob_\.\.\., row 1 \(line 3\): must sum to 1, got 1.0002.* csv files are read as float64"
    with pytest.raises(PredictionsError, match=message):
        rough.write(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_without_pyarrow(suffix, tmp_path):
    program = f"""
import sys
sys.modules["pyarrow"] = None  # as if pyarrow were not installed
import numpy as np
from refocal.predictions import Predictions
predictions = Predictions(np.zeros((2, 2)), input="logits")
predictions.write("a.npz")
print(len(Predictions.read("a.npz")))
open("a{suffix}", "w").close()
for work in (lambda: Predictions.read("a{suffix}"), lambda: predictions.write("b{suffix}")):
    try:
        work()
    except ImportError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True, encoding="utf-8"
    )
    message = (
        "parquet and csv files need pyarrow: pip install 'refocal[arrow]', or in a clone pip install -e '.[arrow]'"
    )
    assert done.stdout.splitlines() == ["2", message, message]
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(["a.npz", f"a{suffix}"])
