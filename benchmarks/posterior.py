"""Time and memory of `posterior_from_logits`, beside `scipy.special.log_softmax` on the same array in the same run.

python benchmarks/posterior.py --out benchmarks/results/posterior.md
"""

from __future__ import annotations

import argparse
import os
import platform
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy
from scipy.special import log_softmax

import refocal

SHAPES = [(50_000, 1_000), (1_000_000, 10), (5_000, 100)]
REPEATS = 7


def seconds(functions: list[Callable[[], object]]) -> list[float]:
    """Median time of each function; they take turns, so that a busy machine disturbs all of them alike."""
    times = np.empty((REPEATS, len(functions)))
    for function in functions:
        function()
    for repeat in range(REPEATS):
        for index, function in enumerate(functions):
            start = time.perf_counter()
            function()
            times[repeat, index] = time.perf_counter() - start
    return [float(median) for median in np.median(times, axis=0)]


def peak_arrays(function: Callable[[], object], size: int) -> float:
    """Peak extra memory, result included, in arrays of the input's size."""
    tracemalloc.start()
    function()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / size


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    out = parser.parse_args().out
    rows = []
    for dtype in ("float32", "float64"):
        for shape in SHAPES:
            logits = 3 * np.random.default_rng(0).standard_normal(shape, dtype=dtype)

            def softmax(logits: np.ndarray = logits) -> object:
                return log_softmax(logits, axis=-1)

            def scalar(logits: np.ndarray = logits) -> object:
                return refocal.posterior_from_logits(logits, gamma=2.0)

            def in_logs(logits: np.ndarray = logits) -> object:
                return refocal.posterior_from_logits(logits, gamma=2.0, log=True)

            def per_class(logits: np.ndarray = logits) -> object:
                return refocal.posterior_from_logits(logits, gamma=np.linspace(0, 5, logits.shape[-1]))

            base, *times = seconds([softmax, scalar, in_logs, per_class])
            ratios = " | ".join(f"{value / base:.2f}" for value in times)
            memory = peak_arrays(scalar, logits.nbytes)
            rows.append(f"| {shape[0]:,} x {shape[1]:,} {dtype} | {base:.3f} | {ratios} | {memory:.2f} |")
    table = "\n".join(
        [
            "# `posterior_from_logits` on the CPU",
            "",
            "Times as multiples of `scipy.special.log_softmax` on the same array in the same run (medians of "
            f"{REPEATS}, taking turns); peak extra memory, the result included, in arrays of the input's size.",
            "",
            "| logits | log_softmax, s | gamma = 2 | gamma = 2, log | one gamma per class | memory |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}, "
            f"{platform.machine()}, {os.cpu_count()} cores; `python benchmarks/posterior.py`.",
            "",
        ]
    )
    print(table)
    if out is not None:
        out.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
