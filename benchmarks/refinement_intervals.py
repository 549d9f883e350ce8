"""How often intervals of the refinement and the resolution of the Brier score cover their true values.

python benchmarks/refinement_intervals.py --repeats 400 --out benchmarks/results/refinement_intervals.md
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
from pathlib import Path

import numpy as np
from intervals import FREQUENCIES, GOAL, LARGE, LEVEL, RESAMPLES, confidences

from refocal import metrics

SIZES = (20, 100, 500, 2_000)
FIRST_SEED = 10_000  # other samples than those by which the scale of the limits was chosen
UNIFORM = "calibrated, uniform"
TRUTHS = ("calibrated", UNIFORM, ".10 too confident", ".10 too unsure")
PARTS = ("refinement", "resolution")
FEW = "few rows for each step of the isotonic recalibration"


def draw_claims(rng: np.random.Generator, count: int, truth: str) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and the frequencies of 1, both increasing: those of `intervals.py`, or uniform in [0, 1]."""
    if truth == UNIFORM:
        claim = rng.random(count)
        return claim, claim
    claim = confidences(rng, count, truth)
    return claim, FREQUENCIES[truth](claim)


def find_parts(truth: str) -> dict[str, float]:
    """The true parts: the mean variance of an outcome, and the variance of its frequency.

    The frequencies increase with the claims, so the best map gives them.
    """
    _, frequency = draw_claims(np.random.default_rng(99), LARGE, truth)
    return {"refinement": float(np.mean(frequency * (1 - frequency))), "resolution": float(np.var(frequency))}


def find_intervals(task: tuple[str, int, int]) -> list[tuple[float, float]]:
    """The limits of both parts in one sample."""
    truth, count, seed = task
    rng = np.random.default_rng(FIRST_SEED + seed)
    claim, frequency = draw_claims(rng, count, truth)
    labels = (rng.random(count) < frequency).astype(int)
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


def remark(covered: float) -> str:
    """Why the coverage lies outside the goal."""
    return "" if GOAL[0] <= round(covered, 3) <= GOAL[1] else FEW


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--repeats", type=int, default=400, help="samples per row")
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    given = parser.parse_args()
    error = (LEVEL * (1 - LEVEL) / given.repeats) ** 0.5
    lines = [
        f"# Coverage of the intervals of refinement and resolution, level {LEVEL}",
        "",
        f"Shares of {given.repeats:,} samples (standard error {error:.3f} at .95), {RESAMPLES} resamples each: how "
        "often the interval covers the true value, or misses it because it lies above or below it, and the mean "
        f"length. All rows are binary. Shares should be {GOAL[0]} to {GOAL[1]}; the others have a reason.",
        "",
        "| part | predictions are | rows | true value | covered | above | below | length | |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    truths = {truth: find_parts(truth) for truth in TRUTHS}
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for count, truth in itertools.product(SIZES, TRUTHS):
            limits = np.array(pool.map(find_intervals, [(truth, count, seed) for seed in range(given.repeats)]))
            for part, (low, high) in zip(PARTS, limits.transpose(1, 2, 0), strict=True):
                value = truths[truth][part]
                above, below = float(np.mean(low > value)), float(np.mean(high < value))
                covered = 1 - above - below
                lines.append(
                    f"| {part} | {truth} | {count:,} | {value:.4f} | {covered:.3f} | {above:.3f} "
                    f"| {below:.3f} | {np.mean(high - low):.4f} | {remark(covered)} |"
                )
                print(lines[-1], flush=True)
    lines += ["", f"`python benchmarks/refinement_intervals.py --repeats {given.repeats}`", ""]
    if given.out is not None:
        given.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
