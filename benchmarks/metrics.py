"""Time and memory of `refocal.metrics`, beside other packages on the same arrays in the same run, on one thread.

python benchmarks/metrics.py --stream 100000000 --out benchmarks/results/metrics.md
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import os
import platform
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.special import softmax
from threadpoolctl import threadpool_limits

from refocal import metrics

SHAPES = [(50_000, 1_000), (1_000_000, 10), (10_000_000, 2)]
BINS = 15
REPEATS = 5
PEERS = ("mapie", "netcal", "torchmetrics", "uncertainty-calibration")
WINDOW = 1_000_000
Task = Callable[[], object]


def seconds(tasks: dict[str, Task]) -> dict[str, float]:
    """Median time of each task; they take turns, so that a busy machine disturbs all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(REPEATS):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            times[name].append(time.perf_counter() - start)
    return {name: float(np.median(values)) for name, values in times.items()}


def status(field: str) -> float:
    """A memory field of this process, in MB."""
    line = next(
        line for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines() if line.startswith(field)
    )
    return int(line.split()[1]) / 1024


def peak_memory(task: Task) -> float:
    """Peak resident memory beyond what was there, in MB, in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).malloc_trim(0)  # what earlier calls left in the heap would hide what this one needs
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak is counted from here
        task()
        os.write(writer, f"{status('VmHWM') - before:.1f}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    answer = os.read(reader, 64)
    os.close(reader)
    return float(answer)


def peers(probs: np.ndarray, labels: np.ndarray) -> dict[str, Task]:
    """Top-label ECE of each package."""
    import calibration
    from mapie.metrics.calibration import top_label_ece
    from netcal.metrics import ECE
    from torchmetrics.functional.classification import multiclass_calibration_error

    tensors = torch.from_numpy(probs), torch.from_numpy(labels)
    return {
        "MAPIE": lambda: top_label_ece(labels, probs, num_bins=BINS),
        "netcal": lambda: ECE(bins=BINS).measure(probs, labels),
        "torchmetrics": lambda: multiclass_calibration_error(*tensors, num_classes=probs.shape[1], n_bins=BINS),
        "uncertainty-calibration": lambda: calibration.get_ece(probs, labels, num_bins=BINS),
    }


def peers_from_logits(logits: np.ndarray, labels: np.ndarray) -> dict[str, Task]:
    """The same after a softmax; torchmetrics takes logits itself."""
    from mapie.metrics.calibration import top_label_ece
    from torchmetrics.functional.classification import multiclass_calibration_error

    tensors = torch.from_numpy(logits), torch.from_numpy(labels)
    return {
        "softmax, MAPIE": lambda: top_label_ece(labels, softmax(logits, axis=1), num_bins=BINS),
        "torchmetrics": lambda: multiclass_calibration_error(*tensors, num_classes=logits.shape[1], n_bins=BINS),
    }


def table_rows(shape: tuple[int, int], *, logits: bool) -> list[str]:
    """One row a package."""
    rng = np.random.default_rng(0)
    scores = 3 * rng.standard_normal(shape, dtype=np.float32)
    labels = rng.integers(0, shape[1], shape[0])
    if logits:
        ours: dict[str, Task] = {"refocal": lambda: metrics.ece(scores, labels, input="logits", bins=BINS)}
        others = peers_from_logits(scores, labels)
    else:
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        ours = {"refocal": lambda: metrics.ece(scores, labels, bins=BINS)}
        others = peers(scores, labels)
    tasks = {**ours, "probs.max(axis=1)" if not logits else "logits.max(axis=1)": lambda: scores.max(axis=1), **others}
    times = seconds(tasks)
    name = f"{shape[0]:,} x {shape[1]:,} {'logits' if logits else 'probs'}"
    unit = times["refocal"]
    return [
        f"| {name} | {task} | {times[task]:.4f} | {times[task] / unit:.1f} | {peak_memory(tasks[task]):.0f} |"
        for task in tasks
    ]


def uncertainty_rows() -> list[str]:
    """Intervals and tests at 50,000 x 10, 1,000 resamples."""
    rng = np.random.default_rng(1)
    probs = softmax(2 * rng.standard_normal((50_000, 10)), axis=1)
    other = softmax(2.4 * np.log(probs) / 2, axis=1)
    labels = (probs.cumsum(axis=1) < rng.random((50_000, 1))).sum(axis=1).clip(0, 9)
    measures = [
        metrics.ece,
        metrics.adaptive_ece,
        metrics.classwise_ece,
        metrics.smooth_ece,
        metrics.nll,
        metrics.auroc,
    ]
    tasks: dict[str, Task] = {
        f"interval({measure.__name__})": lambda measure=measure: metrics.interval(measure, other, labels)
        for measure in measures
    }
    tasks["calibration_test"] = lambda: metrics.calibration_test(other, labels)
    tasks["paired_test(ece)"] = lambda: metrics.paired_test(metrics.ece, probs, other, labels)
    return [f"| {name} | {value:.3f} |" for name, value in seconds(tasks).items()]


def stream(rows: int) -> list[str]:
    """One pass of an accumulator over a memory-mapped file of rows x 10 float32 probabilities."""
    classes = 10
    size = rows * (4 * classes + 1)
    with tempfile.TemporaryDirectory() as folder:
        free = shutil.disk_usage(folder).free
        if size > free // 2:
            msg = f"--stream needs {2 * size / 1e9:.0f} GB of free disk, got {free / 1e9:.0f} GB"
            raise SystemExit(msg)
        probs_path, labels_path = Path(folder) / "probs.f32", Path(folder) / "labels.u8"
        rng = np.random.default_rng(2)
        with probs_path.open("wb") as probs_file, labels_path.open("wb") as labels_file:
            for start in range(0, rows, WINDOW):
                part = rng.standard_exponential((min(WINDOW, rows - start), classes), dtype=np.float32) ** 3
                part /= part.sum(axis=1, keepdims=True)
                part.tofile(probs_file)
                rng.integers(0, classes, len(part), dtype=np.uint8).tofile(labels_file)
        results = []
        for classwise in (False, True):
            accumulator = metrics.CalibrationAccumulator(classwise=classwise)
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
            start_time = time.perf_counter()
            for start in range(0, rows, WINDOW):
                count = min(WINDOW, rows - start)
                probs = np.memmap(
                    probs_path, dtype=np.float32, mode="r", offset=4 * classes * start, shape=(count, classes)
                )
                labels = np.memmap(labels_path, dtype=np.uint8, mode="r", offset=start, shape=(count,))
                accumulator.update(probs, labels)
            taken = time.perf_counter() - start_time
            assert accumulator.compute().samples == rows
            results.append(
                f"| {rows:,} x {classes}, {'with' if classwise else 'without'} classwise bins | {taken:.1f} | "
                f"{size / 1e9:.1f} | {status('VmHWM'):.0f} |"
            )
    return results


def cpu() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    """Print the tables, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the tables to this Markdown file")
    parser.add_argument("--stream", type=int, metavar="ROWS", help="also stream this many rows from a file")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    threadpool_limits(1)
    # before the large arrays: what this process holds at its peak is then the stream's own
    streamed = stream(arguments.stream) if arguments.stream else []
    rows = [row for shape in SHAPES for row in table_rows(shape, logits=False)]
    rows += [row for shape in SHAPES[:2] for row in table_rows(shape, logits=True)]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "scipy", "torch", *PEERS))
    command = "python benchmarks/metrics.py" + (f" --stream {arguments.stream}" if arguments.stream else "")
    lines = [
        "# `refocal.metrics` on one CPU thread",
        "",
        f"Top-label ECE, {BINS} bins, float32 input: seconds (medians of {REPEATS}, taking turns), as a multiple of "
        "refocal's time, and peak memory beyond the input in MB. refocal checks every row (NaN, negative, sum) "
        "within this time.",
        "",
        "| input | | s | times refocal | MB |",
        "|---|---|---|---|---|",
        *rows,
        "",
        "Uncertainty at 50,000 x 10, 1,000 resamples:",
        "",
        "| | s |",
        "|---|---|",
        *uncertainty_rows(),
        "",
    ]
    if streamed:
        lines += [
            f"`CalibrationAccumulator` over a memory-mapped file, {WINDOW:,} rows at a time; peak memory of the whole "
            "process, imports and mapped pages included:",
            "",
            "| | s | file, GB | peak, MB |",
            "|---|---|---|---|",
            *streamed,
            "",
        ]
    lines += [f"Python {platform.python_version()}, {versions}; {cpu()}; `{command}`.", ""]
    table = "\n".join(lines)
    print(table)
    if arguments.out is not None:
        arguments.out.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
