"""Rows a second and peak memory over many Parquet files: local, Ray with one and two workers, pandas + torchmetrics.

python benchmarks/scale.py --out benchmarks/results/scale.md
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from refocal.metrics import CalibrationAccumulator

FILES, CLASSES, ROWS = 40, 10, 20_000_000
ROW_GROUP = 100_000
ROUNDS = 3

PEAK = """
import json, time
class Clock:
    def __init__(self, cpu=time.process_time):
        self.cpu, self.seconds, self.used = cpu, time.perf_counter(), cpu()
    def report(self, memory, found):
        seconds, used = time.perf_counter() - self.seconds, self.cpu() - self.used
        print(json.dumps({"seconds": seconds, "cpu": used, "memory": memory, **found}))
def peak(process="self"):  # VmHWM, of this process alone: ru_maxrss begins with that of the parent
    status = open(f"/proc/{process}/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6
"""
LOCAL = """
import sys
from refocal import scale
clock = Clock()
found = scale.evaluate(sys.argv[1] + "/*.parquet")
clock.report(peak(), {name: found.given.measures[name].value for name in ("ece", "nll")})
"""
RAY = """
import glob, os, sys
import ray
from refocal import scale
start = time.perf_counter()
quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
ray.init(address="local", num_cpus=int(sys.argv[2]), **quiet)
scale.evaluate(sorted(glob.glob(sys.argv[1] + "/*.parquet"))[:4], engine="ray")  # workers start and import
started = time.perf_counter() - start
socket = ray.nodes()[0]["RayletSocketName"]
def workers():
    for process in os.listdir("/proc"):
        try:
            parent = open(f"/proc/{process}/status").read().split("PPid:")[1].split()[0]
            if socket in open(f"/proc/{parent}/cmdline").read():
                yield process
        except (OSError, IndexError):
            pass
def cpu():
    ticks = (open(f"/proc/{worker}/stat").read().rpartition(")")[2].split()[11:13] for worker in workers())
    return time.process_time() + sum(int(tick) for each in ticks for tick in each) / os.sysconf("SC_CLK_TCK")
clock = Clock(cpu)
found = scale.evaluate(sys.argv[1] + "/*.parquet", engine="ray")
values = {name: found.given.measures[name].value for name in ("ece", "nll")}
clock.report(max(map(peak, workers())), {"start": started, **values})
ray.shutdown()
"""
PLAIN = """
import glob, sys
import pandas as pd
import torch
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError
torch.set_num_threads(1)
clock = Clock()
ece, accuracy = MulticlassCalibrationError(10, n_bins=15), MulticlassAccuracy(10, average="micro")
nll = rows = 0
for file in sorted(glob.glob(sys.argv[1] + "/*.parquet")):
    table = pd.read_parquet(file)
    logits = torch.from_numpy(table[[f"logit_{k}" for k in range(10)]].to_numpy())
    labels = torch.from_numpy(table["label"].to_numpy(copy=True))
    probs = logits.softmax(dim=1)
    ece.update(probs, labels)
    accuracy.update(probs, labels)
    nll += torch.nn.functional.cross_entropy(logits, labels, reduction="sum").item()
    rows += len(labels)
error = float(ece.compute())
clock.report(peak(), {"ece": error, "nll": nll / rows})
"""
CONTENDERS = {
    "pandas + torchmetrics": (PLAIN,),
    "refocal, local": (LOCAL,),
    "refocal, Ray, 1 worker": (RAY, "1"),
    "refocal, Ray, 2 workers": (RAY, "2"),
}


def write(folder: Path) -> int:
    """Files as a service may write them, a column a class; their size in bytes."""
    rng = np.random.default_rng(0)
    for number in range(FILES):
        logits = 3 * rng.standard_normal((ROWS // FILES, CLASSES), dtype=np.float32)
        labels = np.argmax(logits / 2 + rng.gumbel(size=logits.shape), axis=1)
        columns = {f"logit_{k}": logits[:, k] for k in range(CLASSES)} | {"label": labels}
        path = folder / f"{number:02}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=ROW_GROUP, use_dictionary=False)
    return sum(path.stat().st_size for path in folder.iterdir())


def measured(folder: Path, script: str, *arguments: str) -> dict[str, float]:
    """One run in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-c", PEAK + script, str(folder), *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def cpu() -> str:
    """The model of the CPU."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def state_bytes() -> int:
    """What one task sends: the numbers of an accumulator."""
    accumulator = CalibrationAccumulator()
    accumulator.update(np.full((2, CLASSES), 1 / CLASSES), np.array([0, 1]))
    assert accumulator.classes is not None
    return accumulator.sums.nbytes + accumulator.grid.nbytes + accumulator.classes.nbytes


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    out = parser.parse_args().out
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write(folder)
        for _ in range(ROUNDS):
            for contender, (script, *arguments) in CONTENDERS.items():
                runs[contender].append(measured(folder, script, *arguments))
                print(contender, runs[contender][-1], flush=True)
                loads.append(os.getloadavg()[0])
    found = {name: each[0] for name, each in runs.items()}
    assert len({round(run["nll"], 6) for each in runs.values() for run in each}) == 1
    middle, used = (
        {name: statistics.median(run[what] for run in each) for name, each in runs.items()}
        for what in ("seconds", "cpu")
    )
    plain, local, one, two = middle.values()
    rows = [
        f"| {name} | {middle[name]:.1f} | {min(r['seconds'] for r in each):.1f} to "
        f"{max(r['seconds'] for r in each):.1f} | {ROWS / middle[name] / 1e6:.2f} | "
        f"{used[name]:.1f} | {ROWS / used[name] / 1e6:.2f} | {max(r['memory'] for r in each):.0f} |"
        for name, each in runs.items()
    ]
    start = statistics.median(run["start"] for run in runs["refocal, Ray, 2 workers"])
    packages = ("ray", "pandas", "torch", "torchmetrics", "pyarrow", "numpy")
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    table = "\n".join(
        [
            "# Many files",
            "",
            f"{ROWS:,} x {CLASSES} float32 logits with labels in {FILES} Parquet files, {size / 1e6:.0f} MB, row "
            f"groups of {ROW_GROUP:,}, in the page cache. refocal measures ECE, RMS and largest gap, adaptive and "
            "classwise ECE, NLL, Brier, error and confidence, every value checked; the plain script ECE, accuracy and "
            "NLL. One thread per process. Imports, and for Ray the start of cluster and workers, do not count. "
            f"Medians of {ROUNDS} rounds in turn, with the least and the most; peak memory of the process, of Ray that "
            "of the largest worker.",
            "",
            "| | seconds | from, to | million rows per second | CPU seconds | million rows per CPU second | peak, MB |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            f"Local is {plain / local:.1f} times as fast as the plain script, and takes "
            f"{used['pandas + torchmetrics'] / used['refocal, local']:.1f} times less CPU time; two workers are "
            f"{one / two:.2f} times as fast as one. ECE is {found['refocal, local']['ece']:.5f} by refocal, in "
            f"float64, and {found['pandas + torchmetrics']['ece']:.5f} by the plain script, in float32. Starting Ray "
            f"and two workers took {start:.1f} s. A task sends {state_bytes():,} bytes.",
            "",
            f"Python {platform.python_version()}, {versions}, {cpu()}, {os.cpu_count()} cores, load average "
            f"{min(loads):.1f} to {max(loads):.1f} meanwhile; `python benchmarks/scale.py`.",
            "",
        ]
    )
    print(table)
    if out is not None:
        out.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
