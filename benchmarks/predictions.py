"""Time and peak memory to read and write files of predictions, 1,000,000 x 10 float32 with labels; on Linux.

python benchmarks/predictions.py --out benchmarks/results/predictions.md
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from refocal.predictions import Predictions

ROWS, CLASSES = 1_000_000, 10
REPEATS = 7
FILES = {"npz": "a.npz", "npz, deflated": "b.npz", "parquet": "a.parquet", "csv": "a.csv"}

# Each reading runs in a process of its own: peak memory is a property of a process.
READ = """
import json, sys, time
import numpy
if sys.argv[1] != "npz":
    import pyarrow.csv, pyarrow.parquet
from refocal.predictions import Predictions, PredictionsReader
path = sys.argv[2]
def peak():  # VmHWM, of this process alone: ru_maxrss begins with that of the parent
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6
start, before = time.perf_counter(), peak()
if sys.argv[3] == "whole":
    rows = len(Predictions.read(path))
else:
    with PredictionsReader(path) as blocks:
        rows = sum(len(block) for block in blocks)
print(json.dumps({"rows": rows, "seconds": time.perf_counter() - start, "memory": peak() - before}))
"""


def sample() -> Predictions:
    """Logits as a network gives them, and labels."""
    rng = np.random.default_rng(0)
    scores = 3 * rng.standard_normal((ROWS, CLASSES), dtype=np.float32)
    return Predictions(scores, input="logits", labels=rng.integers(0, CLASSES, ROWS))


def measured(name: str, path: Path, how: str) -> tuple[float, float]:
    """Median seconds, and MB of peak memory beyond that of the imports."""
    command = [sys.executable, "-c", READ, name.partition(",")[0], str(path), how]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(REPEATS)]
    assert all(run["rows"] == ROWS for run in runs)
    return statistics.median(run["seconds"] for run in runs), statistics.median(run["memory"] for run in runs)


def cpu() -> str:
    """The model of the CPU."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    out = parser.parse_args().out
    predictions = sample()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, file in FILES.items():
            path = Path(folder, file)
            start = time.perf_counter()
            if name == "npz, deflated":
                np.savez_compressed(path, logits=predictions.scores, labels=predictions.labels)
                written = "by NumPy"
            else:
                predictions.write(path)
                written = f"{time.perf_counter() - start:.2f}"
            whole, blocks = (measured(name, path, how) for how in ("whole", "blocks"))
            size = path.stat().st_size / 1e6
            reading = " | ".join(f"{seconds:.2f} | {memory:.0f}" for seconds, memory in (whole, blocks))
            rows.append(f"| {name} | {size:.0f} | {reading} | {written} |")
    scores = predictions.scores.nbytes / 1e6
    table = "\n".join(
        [
            "# Files of predictions",
            "",
            f"{ROWS:,} x {CLASSES} float32 logits with labels: {scores:.0f} MB of scores, {ROWS * 8 / 1e6:.0f} MB of "
            "labels. Time to read the file, whole (`Predictions.read`) and in blocks (`PredictionsReader`), every "
            "value checked; peak memory beyond that of the process before, the result included. Medians of "
            f"{REPEATS} processes, files in the page cache, imports not counted; writing is timed once, with fsync.",
            "",
            "| format | file, MB | whole, s | peak, MB | in blocks, s | peak, MB | writing, s |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            f"Python {platform.python_version()}, NumPy {np.__version__}, pyarrow {pa.__version__}, {cpu()}, "
            f"{os.cpu_count()} cores; `python benchmarks/predictions.py`.",
            "",
        ]
    )
    print(table)
    if out is not None:
        out.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
