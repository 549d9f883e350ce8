"""How often intervals of the refinement and the resolution of the Brier score cover their true values.

python benchmarks/refinement_intervals.py --repeats 400 --out benchmarks/results/refinement_intervals.md
"""

from __future__ import annotations

import argparse
import multiprocessing
from pathlib import Path

import numpy as np
from intervals import FREQUENCIES, LARGE, LEVEL, RESAMPLES, confidences

from refocal import metrics

ROWS = 500
TRUTHS = ("calibrated", ".10 too confident", ".10 too unsure")
PARTS = ("refinement", "resolution")


def find_parts(truth: str) -> dict[str, float]:
    """The true parts: the mean variance of an outcome, and the variance of its frequency.

    The frequencies increase with the claims, so the best map gives them.
    """
    frequency = FREQUENCIES[truth](confidences(np.random.default_rng(99), LARGE, truth))
    return {"refinement": float(np.mean(frequency * (1 - frequency))), "resolution": float(np.var(frequency))}


def find_intervals(task: tuple[str, int]) -> list[tuple[float, float]]:
    """The limits of both parts in one sample."""
    truth, seed = task
    rng = np.random.default_rng(seed)
    claim = confidences(rng, ROWS, truth)
    labels = (rng.random(ROWS) < FREQUENCIES[truth](claim)).astype(int)
    found = []
    for part in PARTS:
        _, low, high = metrics.interval(
            metrics.brier_decomposition,
            claim,
            labels,
            part=part,
            task="binary",
            level=LEVEL,
            resamples=RESAMPLES,
            seed=rng,
        )
        found.append((low, high))
    return found


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--repeats", type=int, default=400, help="samples per row")
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    given = parser.parse_args()
    lines = [
        f"# Coverage of the intervals of refinement and resolution, level {LEVEL}",
        "",
        f"Shares of {given.repeats} samples of {ROWS} binary rows (standard error .011 at .95 of 400), {RESAMPLES} "
        "resamples each: how often the interval covers the true value, or misses it because it lies above or below it, "
        "and the mean length.",
        "",
        "| part | predictions are | true value | covered | above | below | length |",
        "|---|---|---|---|---|---|---|",
    ]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for truth in TRUTHS:
            parts = find_parts(truth)
            limits = np.array(pool.map(find_intervals, [(truth, seed) for seed in range(given.repeats)]))
            for part, (low, high) in zip(PARTS, limits.transpose(1, 2, 0), strict=True):
                above, below = np.mean(low > parts[part]), np.mean(high < parts[part])
                lines.append(
                    f"| {part} | {truth} | {parts[part]:.4f} | {1 - above - below:.3f} | {above:.3f} | {below:.3f} "
                    f"| {np.mean(high - low):.4f} |"
                )
                print(lines[-1], flush=True)
    lines += ["", f"`python benchmarks/refinement_intervals.py --repeats {given.repeats}`", ""]
    if given.out is not None:
        given.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
