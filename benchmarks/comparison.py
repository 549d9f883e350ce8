"""Time of top-label ECE and of temperature scaling beside six other packages, for the table of the README.

python benchmarks/comparison.py --out benchmarks/results/comparison.md

All in one process with one thread, on the same arrays; tasks take turns, so that a busy machine disturbs all of them
alike. `make bench-comparison` installs the other packages and runs this.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import logging
import os
import platform
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.special import log_softmax
from threadpoolctl import threadpool_limits

import calibrators
from refocal import metrics

SHAPE = (50_000, 100)
BINS = 15
REPEATS = 9
Task = Callable[[], float]


def ece_tasks(probs: np.ndarray, labels: np.ndarray) -> dict[str, Task]:
    """Top-label ECE of each package that has it."""
    from mapie.metrics.calibration import top_label_ece
    from netcal.metrics import ECE
    from probmetrics.metrics import Metrics
    from torchmetrics.functional.classification import multiclass_calibration_error

    scores, target = torch.from_numpy(probs), torch.from_numpy(labels)

    def with_probmetrics() -> float:
        name = f"ece-{BINS}"
        return float(Metrics.from_names([name]).compute_all_from_labels_probs(target, scores)[name])

    return {
        "refocal": lambda: metrics.ece(probs, labels, bins=BINS),
        "MAPIE": lambda: float(top_label_ece(labels, probs, num_bins=BINS)),
        "netcal": lambda: float(ECE(bins=BINS).measure(probs, labels)),
        "probmetrics": with_probmetrics,
        "torchmetrics": lambda: float(multiclass_calibration_error(scores, target, probs.shape[1], BINS)),
    }


def temperature_tasks(logits: np.ndarray, labels: np.ndarray) -> dict[str, Task]:
    """Temperature scaling by likelihood of each package that has it."""
    wide = logits.astype(np.float64)  # netcal returns T = 1 for float32
    return {
        "refocal": partial(calibrators.with_refocal, logits, labels),
        "netcal": partial(calibrators.with_netcal, wide, labels),
        "probmetrics": partial(calibrators.with_probmetrics, logits, labels),
        "scikit-learn": partial(calibrators.with_scikit_learn, logits, labels),
        "torch-uncertainty": partial(calibrators.with_torch_uncertainty, logits, labels),
    }


def measure(tasks: dict[str, Task]) -> dict[str, tuple[float, float]]:
    """Shortest seconds and the result of each task."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    results = {}
    for _ in range(REPEATS):
        for name, task in tasks.items():
            start = time.perf_counter()
            results[name] = task()
            times[name].append(time.perf_counter() - start)
    return {name: (min(values), results[name]) for name, values in times.items()}


def rows(what: str, found: dict[str, tuple[float, float]]) -> list[str]:
    """One line per package."""
    base = found["refocal"][0]
    return [
        f"| {what} | {name} {importlib.metadata.version(name)} | {seconds:.4f} | {seconds / base:.1f} | {value:.4f} |"
        for name, (seconds, value) in found.items()
    ]


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ["TQDM_DISABLE"] = "1"
    torch.set_num_threads(1)
    with threadpool_limits(1):
        logits, labels = calibrators.problem(*SHAPE)
        probs = np.exp(log_softmax(logits, axis=1))
        lines = rows("top-label ECE", measure(ece_tasks(probs, labels)))
        lines += rows("temperature scaling", measure(temperature_tasks(logits, labels)))
    text = "\n".join(
        [
            "# Two tasks beside six other packages",
            "",
            f"The shortest of {REPEATS} runs on {SHAPE[0]:,} x {SHAPE[1]:,} float32 scores, one thread, every package "
            f"in the same process on the same arrays. ECE: {BINS} bins of equal width, from probabilities. MAPIE "
            "defines it otherwise, so its value differs. Temperature: by likelihood; the true one is "
            f"{calibrators.TRUE_TEMPERATURE}. netcal gets float64, because it returns T = 1 for float32. "
            "torch-uncertainty's ECE is torchmetrics'. scikit-learn has no ECE, and MAPIE and torchmetrics have no "
            "temperature scaling.",
            "",
            "| task | package | seconds | times refocal | value |",
            "|---|---|---|---|---|",
            *lines,
            "",
            f"{datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}; {platform.machine()}, Python "
            f"{platform.python_version()}, NumPy {np.__version__}, PyTorch {torch.__version__}; "
            "`python benchmarks/comparison.py`.",
        ]
    )
    print(text)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
