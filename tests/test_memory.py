"""Commands stay within their memory limit: what counts is the unpacked size of files, not the size on disk."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from refocal.cli import memory
from refocal.predictions import Predictions, PredictionsError, PredictionsReader

ROWS, CLASSES = 200_000, 100
SCORES_BYTES = ROWS * CLASSES * 4
# a child that runs a command, then prints how much memory it took beyond its imports
CHILD = """
import resource, sys
import refocal.cli.comparison, refocal.cli.inputs, refocal.cli.workflow, refocal.scale.fitting, refocal.scale.measuring
import pyarrow.parquet, scipy.fft, scipy.optimize, scipy.sparse, scipy.special
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
before = peak()
status = refocal.cli.main(sys.argv[1:])
sys.stderr.write(f"\\n{peak() - before}")
sys.exit(status)
"""
# started by another process: the peak of a child starts at that of its parent, and this process is large
LAUNCHER = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', *sys.argv[1:]]))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A compressed npz and a parquet file of 80 MB of logits each, a few hundred kB on disk."""
    made = tmp_path_factory.mktemp("memory")
    rng = np.random.default_rng(0)
    logits = np.tile(2 * rng.standard_normal((50, CLASSES)), (ROWS // 50, 1)).astype(np.float32)
    labels = np.tile(rng.integers(0, CLASSES, 50), ROWS // 50).astype(np.int8)
    splits = np.tile(np.repeat(["val", "test"], [10, 40]), ROWS // 50)
    np.savez_compressed(made / "both.npz", logits=logits, labels=labels, split=splits)
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    lists = pa.ListArray.from_arrays(np.arange(0, logits.size + 1, CLASSES, dtype=np.int32), pa.array(logits.ravel()))
    parquet.write_table(pa.table({"logits": lists, "label": labels}), made / "test.parquet", compression="zstd")
    return made


def run(folder, *arguments):
    """The output of a command, and the memory that it took."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCHER, CHILD, *arguments],
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=folder,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, int(done.stderr.split()[-1])


@pytest.mark.parametrize(
    "command",
    [
        "evaluate both.npz --json",
        "evaluate test.parquet --json",
        "calibrate both.npz --json --method temperature",
    ],
)
@pytest.mark.thorough
def test_a_small_file_that_unpacks_to_much_is_streamed(folder, command):
    """In memory, the logits and their float64 probabilities take five times the logits; a block takes little."""
    shown, taken = run(folder, *command.split(), "--memory", "200M")
    assert all(path.stat().st_size < SCORES_BYTES / 20 for path in folder.iterdir())
    assert taken < 2 * SCORES_BYTES
    content = json.loads(shown)
    if command == "evaluate both.npz --json":
        assert [report["samples"] for report in content["files"]] == [ROWS * 4 // 5, ROWS // 5]
    assert re.search(r"sums over all (160|200),000 rows\. .* of them, chosen at random", shown)


@pytest.mark.thorough
def test_json_takes_no_more_than_the_table(folder):
    """Held in memory, both compute the same measures."""
    (_, table), (shown, taken) = (
        run(folder, "evaluate", "both.npz", "--split", "val", *more) for more in ((), ("--json",))
    )
    assert json.loads(shown)["samples"] == ROWS // 5
    assert taken < 1.25 * table


def test_sizes_are_known_from_headers(folder, tmp_path):
    Predictions(np.zeros((3000, 3)), input="logits", labels=np.zeros(3000, int)).write(tmp_path / "a.csv")
    for path in (folder / "both.npz", folder / "test.parquet"):
        with PredictionsReader(path) as blocks:
            assert blocks.size == (ROWS, CLASSES)
    with PredictionsReader(tmp_path / "a.csv") as blocks:
        assert blocks.size.columns == 3
        assert 2500 < blocks.size.rows < 3500
    assert memory.estimate([str(folder / "both.npz")], per_score=24)[0] > 24 * ROWS * CLASSES


def test_lists_of_any_length_come_in_small_blocks(tmp_path):
    """The schema does not tell the length of lists; the first row does."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows, classes = 40, 100_000
    lists = pa.array([np.zeros(classes, dtype=np.float32)] * rows)
    parquet.write_table(pa.table({"logits": lists}), tmp_path / "wide.parquet")
    with PredictionsReader(tmp_path / "wide.parquet") as blocks:
        assert blocks.size == (rows, classes)
        assert max(len(block) for block in blocks) * classes <= 1 << 20


def test_options_that_need_all_rows_are_rejected_with_the_reason(folder, capsys, monkeypatch):
    from refocal import cli

    monkeypatch.chdir(folder)
    assert cli.main(["calibrate", "both.npz", "--memory", "1M", "--out", "probs.npz"]) == 1
    told = capsys.readouterr().err
    assert "--out needs all rows in memory, but both.npz would take about 939.9M" in told, told
    with pytest.raises(SystemExit):
        cli.main(["evaluate", "both.npz", "--memory", "much"])
    assert "must be a number of bytes, which may end in K, M, G or T, got 'much'" in capsys.readouterr().err


def test_a_fortran_array_is_read_whole_or_rejected(tmp_path, monkeypatch):
    """Its rows are scattered over the whole array."""
    from refocal.predictions import npz

    np.savez_compressed(tmp_path / "a.npz", logits=np.asfortranarray(np.zeros((500, 3))))
    with PredictionsReader(tmp_path / "a.npz") as blocks:
        assert [len(block) for block in blocks] == [500]
    monkeypatch.setattr(npz, "_FORTRAN_BYTES", 10_000)
    with pytest.raises(
        PredictionsError, match=r"logits: is in Fortran order, .* takes 12,000 bytes: save it in C order"
    ):
        PredictionsReader(tmp_path / "a.npz").__enter__()


@pytest.mark.parametrize(("text", "number"), [("1", 1), ("4G", 4 << 30), ("1.5k", 1536), ("10MiB", 10 << 20)])
def test_sizes_as_people_write_them(text, number):
    assert memory.parse_size(text) == number
