"""How often the paired tests of `refocal.metrics` reject at .05: models that are equal, and models that are not.

python benchmarks/paired_tests.py --jobs 16 --repeats 400 --out benchmarks/results/paired_tests.md
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from refocal import metrics

RESAMPLES = 200
LEVEL = 0.05
SIZES = (300, 1_000)
Pair = tuple[np.ndarray, np.ndarray, np.ndarray]  # two predictions, and labels


def noisy_copies(rng: np.random.Generator, count: int) -> Pair:
    """Two models of the same quality, each with its own noise, both too confident."""
    score = 2 * rng.standard_normal(count)
    one, two = (scipy.special.expit(score + rng.standard_normal(count)) for _ in range(2))
    return one, two, (rng.random(count) < scipy.special.expit(score)).astype(int)


def noisy_copies_of_ten_classes(rng: np.random.Generator, count: int) -> Pair:
    """The same for ten classes: two models of the same quality, each with its own noise, both too confident."""
    score = 1.5 * rng.standard_normal((count, 10))
    one, two = (scipy.special.softmax(score + 0.7 * rng.standard_normal(score.shape), axis=1) for _ in range(2))
    truth = scipy.special.softmax(score, axis=1)
    return one, two, (truth.cumsum(axis=1) < rng.random((count, 1))).sum(axis=1).clip(0, 9)


def both_calibrated(rng: np.random.Generator, count: int) -> Pair:
    """A calibrated model, and a coarse one that predicts its means over four intervals."""
    score = rng.standard_normal(count)
    edges = np.array([-9.0, -1.0, 0.0, 1.0, 9.0])
    grid = np.linspace(-9, 9, 180_001)
    mass, place = np.exp(-(grid**2) / 2), np.searchsorted(edges, grid, side="right").clip(1, 4) - 1
    means = np.bincount(place, weights=mass * scipy.special.expit(1.5 * grid)) / np.bincount(place, weights=mass)
    coarse = means[np.searchsorted(edges, score, side="right").clip(1, 4) - 1]
    sharp = scipy.special.expit(1.5 * score)
    return sharp, coarse, (rng.random(count) < sharp).astype(int)


def same_gap(rng: np.random.Generator, count: int) -> Pair:
    """A sharp and a constant model, both .05 too high."""
    frequency = rng.uniform(0.1, 0.9, count)
    return frequency + 0.05, np.full(count, 0.55), (rng.random(count) < frequency).astype(int)


def opposite_gaps(rng: np.random.Generator, count: int) -> Pair:
    """A model that is .1 too high, and one that is .1 too low."""
    frequency = rng.uniform(0.2, 0.8, count)
    return frequency + 0.1, frequency - 0.1, (rng.random(count) < frequency).astype(int)


def one_too_sure(rng: np.random.Generator, count: int) -> Pair:
    """A calibrated model, and the same with doubled log-odds: they differ in all but their ranking."""
    score = rng.standard_normal(count)
    frequency = scipy.special.expit(score)
    return frequency, scipy.special.expit(2 * score), (rng.random(count) < frequency).astype(int)


def one_noisy(rng: np.random.Generator, count: int) -> Pair:
    """A calibrated model, and the same with noise: they differ in every measure."""
    score = 1.5 * rng.standard_normal(count)
    frequency = scipy.special.expit(score)
    noisy = scipy.special.expit(score + rng.standard_normal(count))
    return frequency, noisy, (rng.random(count) < frequency).astype(int)


ERRORS = ("ece", "adaptive_ece", "smooth_ece", "brier_decomposition calibration")
KERNEL = "kernel_calibration_error"
PARTS = ("brier_decomposition refinement", "brier_decomposition resolution")
MEANS = ("nll", "brier", "auroc")
SHARES = ("error", "confidence_share share", "confidence_share accuracy")
CHEAP = ("nll", "brier", *SHARES)  # they need no resamples, so they get FACTOR times as many samples
BY_CLASS = ("classwise_ece", "thresholded_ece", "top_k_ece")  # they need the probabilities of both classes
NORMS: dict[str, dict[str, Any]] = {"ece, norm='l2'": {"norm": "l2"}, "ece, debias=True": {"debias": True}}
FACTOR = 50
# The measures in which the models of a situation are equal; the last two situations show power.
SITUATIONS: dict[Callable[..., Pair], tuple[str, ...]] = {
    noisy_copies: (*ERRORS, KERNEL, *BY_CLASS, "mce", *NORMS, *PARTS, *MEANS, "aurc", *SHARES),
    noisy_copies_of_ten_classes: ("ece", "adaptive_ece", "classwise_ece", "thresholded_ece"),
    both_calibrated: (*ERRORS, KERNEL),
    same_gap: ERRORS,
    opposite_gaps: (*ERRORS, KERNEL, "brier"),
    one_too_sure: (*ERRORS, KERNEL, "classwise_ece", "nll", "brier"),
    one_noisy: (*ERRORS, KERNEL, "classwise_ece", *PARTS, *MEANS),
}
UNEQUAL = (one_too_sure, one_noisy)


def find_p_value(task: tuple[Callable[..., Pair], str, int, int]) -> float:
    """The p-value of one sample."""
    situation, name, count, seed = task
    rng = np.random.default_rng(seed)
    first, second, labels = situation(rng, count)
    measure, _, part = name.partition(",")[0].partition(" ")
    settings = NORMS.get(name, {"part": part} if part else {"k": 1} if measure == "top_k_ece" else {})
    if measure in BY_CLASS and first.ndim == 1:
        first, second = (np.stack([1 - claim, claim], axis=1) for claim in (first, second))
    kind = "binary" if first.ndim == 1 else "multiclass"
    test = metrics.paired_test(
        getattr(metrics, measure), first, second, labels, task=kind, resamples=RESAMPLES, seed=rng, **settings
    )
    return test.p_value


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--repeats", type=int, default=400, help="samples per row")
    parser.add_argument("--only", nargs="+", help="only these measures")
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    given = parser.parse_args()
    lines = [
        f"# Paired tests at level {LEVEL}",
        "",
        f"Shares of {given.repeats} samples (standard error .011 at .05 of 400), {RESAMPLES} resamples each, in which "
        "the test rejects that two models are equal. The tests of "
        f"{', '.join(CHEAP)} need no resamples; their shares are of {FACTOR * given.repeats:,} samples (standard "
        "error .0015 at .05 of 20,000). In the rows above the line the models are equal; below it they are not.",
        "",
        "| situation | measure | " + " | ".join(f"{count:,} samples" for count in SIZES) + " |",
        "|---|---|" + "---|" * len(SIZES),
    ]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for situation, names in SITUATIONS.items():
            if situation is UNEQUAL[0]:
                lines.append("| *unequal models* | |" + " |" * len(SIZES))
            for name in names if given.only is None else [name for name in names if name in given.only]:
                shares = []
                repeats = given.repeats * (FACTOR if name in CHEAP else 1)
                for count in SIZES:
                    tasks = [(situation, name, count, seed) for seed in range(repeats)]
                    shares.append(np.mean(np.array(pool.map(find_p_value, tasks)) <= LEVEL))
                title = situation.__name__.replace("_", " ")
                lines.append(f"| {title} | {name} | " + " | ".join(f"{share:.3f}" for share in shares) + " |")
                print(lines[-1], flush=True)
    lines += ["", f"`python benchmarks/paired_tests.py --repeats {given.repeats}`", ""]
    if given.out is not None:
        given.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
