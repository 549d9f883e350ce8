"""How often intervals and tests of `refocal.metrics` are right, on samples whose true calibration error is known.

python benchmarks/intervals.py --out benchmarks/results/intervals.md
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from refocal import metrics
from refocal.metrics.inputs import Events
from refocal.metrics.reliability import find_ece_p_value
from refocal.stats.binning import width_index

REPEATS = 200
RESAMPLES = 300
SIZES = (300, 2_000, 10_000)
LEVEL = 0.95
# what confidence c is right with: the frequency of correct decisions
FREQUENCIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "calibrated": lambda c: c,
    ".02 too confident": lambda c: c - 0.02,
    ".05 too confident": lambda c: c - 0.05,
    ".10 too confident": lambda c: c - 0.10,
    "alternating by .02": lambda c: np.clip(c + 0.02 * np.sign(np.sin(40 * c)), 0, 1),
    "alternating by .05": lambda c: np.clip(c + 0.05 * np.sign(np.sin(40 * c)), 0, 1),
    ".20 too confident above .97": lambda c: np.where(c > 0.97, c - 0.2, c),
}


def confidences(rng: np.random.Generator, count: int) -> np.ndarray:
    """Confidences in [1/2, 1], more of them near 1."""
    return 0.5 + 0.5 * rng.beta(2, 1, count)


def error_of(index: np.ndarray, residual: np.ndarray) -> float:
    """ECE over 15 bins, from each sample's bin and confidence - correct."""
    return float(np.sum(np.abs(np.bincount(index, weights=residual, minlength=15))) / len(index))


def percentile_interval(confidence: np.ndarray, correct: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """The plain bootstrap, for comparison."""
    index, residual = width_index(confidence, bins=15), confidence - correct
    values = []
    for _ in range(RESAMPLES):
        draw = rng.integers(0, len(correct), len(correct))
        values.append(error_of(index[draw], residual[draw]))
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def row(name: str, frequency: Callable[[np.ndarray], np.ndarray], count: int) -> str:
    """Coverage of both intervals, and how often the test of ECE rejects at .05."""
    many = confidences(np.random.default_rng(99), 4_000_000)
    truth = error_of(width_index(many, bins=15), many - frequency(many))
    covered = plain = rejected = 0
    width = 0.0
    for seed in range(REPEATS):
        rng = np.random.default_rng(seed)
        confidence = confidences(rng, count)
        correct = rng.random(count) < frequency(confidence)
        _, low, high = metrics.interval(
            metrics.ece, confidence, correct, task="binary", level=LEVEL, resamples=RESAMPLES, seed=rng
        )
        covered += low <= truth <= high
        width += (high - low) / REPEATS
        low, high = percentile_interval(confidence, correct, rng)
        plain += low <= truth <= high
        rejected += find_ece_p_value(Events(confidence, correct, None), resamples=RESAMPLES, seed=rng) <= 1 - LEVEL
    return (
        f"| {name} | {count:,} | {truth:.4f} | {covered / REPEATS:.3f} | {width:.4f} | {plain / REPEATS:.3f} | "
        f"{rejected / REPEATS:.3f} |"
    )


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    out = parser.parse_args().out
    table = "\n".join(
        [
            f"# Intervals of level {LEVEL} for ECE, and the test of ECE at {1 - LEVEL:.2f}",
            "",
            f"Shares of {REPEATS} samples (standard error .015 at .95), {RESAMPLES} resamples each, 15 bins: "
            "how often the interval covers the true ECE, its mean length, how often the percentile interval of a plain "
            "bootstrap would, and how often the test of ECE rejects.",
            "",
            "| confidence is | samples | true ECE | covered | length | percentile bootstrap | rejected |",
            "|---|---|---|---|---|---|---|",
            *(row(name, frequency, count) for count in SIZES for name, frequency in FREQUENCIES.items()),
            "",
            "`python benchmarks/intervals.py`",
            "",
        ]
    )
    print(table)
    if out is not None:
        out.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
