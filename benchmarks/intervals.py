"""How often intervals of `refocal.metrics` cover, on samples whose true calibration error is known.

python benchmarks/intervals.py --jobs 16 --repeats 400 --out benchmarks/results/intervals.md
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refocal import metrics
from refocal.metrics.inputs import Events
from refocal.metrics.smooth_error import find_smooth_error
from refocal.stats.binning import bin_index

RESAMPLES = 300
LEVEL = 0.95
GOAL = (0.93, 0.98)  # of the share of intervals that cover
LARGE = 2_000_000  # samples behind a true value; they have frequencies instead of labels, so there is no label noise
# what confidence c is right with: the frequency of correct decisions
FREQUENCIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "calibrated": lambda c: c,
    ".05 too confident": lambda c: c - 0.05,
    ".10 too confident": lambda c: c - 0.10,
    ".05 too unsure": lambda c: np.minimum(1.0, c + 0.05),
    ".10 too unsure": lambda c: np.minimum(1.0, c + 0.10),
    "alternating by .05": lambda c: np.clip(c + 0.05 * np.sign(np.sin(40 * c)), 0, 1),
    ".20 too confident above .97": lambda c: np.where(c > 0.97, c - 0.2, c),
    "always 1, right in .99": lambda c: 0.99 * c,
}
BRIER = "brier_decomposition calibration"
# powers of the posterior, renormalized: what models of several classes predict
POWERS = {"calibrated": 1.0, "too confident": 1.5, "too unsure": 0.7}


class Case(NamedTuple):
    """One row of the table."""

    measure: str  # its name, and its part after a space
    truth: str  # a key of FREQUENCIES or of POWERS
    count: int
    classes: int = 1
    divisor: int = 1  # the repeats of a slow case are divided by it


CASES = [
    *(
        Case(measure, truth, count)
        for measure in ("ece", "adaptive_ece")
        for count in (300, 1_000, 5_000)
        for truth in list(FREQUENCIES)[:-1]
    ),
    *(Case("ece", truth, count) for count in (1, 5, 20) for truth in ("calibrated", ".10 too confident")),
    *(Case("ece", "always 1, right in .99", count) for count in (20, 100, 1_000)),
    *(
        Case(BRIER, truth, count)
        for count in (1, 5, 20, 100, 1_000)
        for truth in ("calibrated", ".10 too confident", ".10 too unsure", "always 1, right in .99")
    ),
    *(
        Case("smooth_ece", truth, count, divisor=2)
        for count in (300, 1_000, 5_000)
        for truth in ("calibrated", ".05 too unsure", ".10 too unsure", ".10 too confident")
    ),
    *(
        Case(measure, truth, count, classes, divisor)
        for measure in ("classwise_ece", "thresholded_ece")
        for classes, count, divisor in ((10, 300, 1), (10, 1_000, 2), (10, 5_000, 2), (100, 1_000, 4), (100, 5_000, 4))
        for truth in POWERS
    ),
]


def confidences(rng: np.random.Generator, count: int, truth: str) -> np.ndarray:
    """Confidences in [1/2, 1], more of them near 1; or 1 alone."""
    if truth.startswith("always 1"):
        return np.ones(count)
    return 0.5 + 0.5 * rng.beta(2, 1, count)


def rows(rng: np.random.Generator, count: int, classes: int, truth: str) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and posteriors, (count, classes) each."""
    posterior = np.exp(2 * rng.standard_normal((count, classes)))
    posterior /= posterior.sum(axis=1, keepdims=True)
    probs = posterior ** POWERS[truth]
    return probs / probs.sum(axis=1, keepdims=True), posterior


def draw(case: Case, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and labels."""
    if case.classes == 1:
        confidence = confidences(rng, case.count, case.truth)
        return confidence, (rng.random(case.count) < FREQUENCIES[case.truth](confidence)).astype(int)
    probs, posterior = rows(rng, case.count, case.classes, case.truth)
    labels = (posterior.cumsum(axis=1) < rng.random((case.count, 1))).sum(axis=1)
    return probs, labels.clip(0, case.classes - 1)


def binned_error(claim: np.ndarray, frequency: np.ndarray, *, equal_mass: bool) -> float:
    """ECE over 15 bins, with frequencies instead of labels."""
    index, _ = bin_index(claim, None, bins=15, binning="equal_mass" if equal_mass else "equal_width")
    return float(np.sum(np.abs(np.bincount(index, weights=claim - frequency))) / len(claim))


@functools.cache
def find_truth(case: Case) -> float:
    """The true value of the measure."""
    rng = np.random.default_rng(99)
    if case.classes == 1:
        claim = confidences(rng, LARGE, case.truth)
        frequency = FREQUENCIES[case.truth](claim)
        if case.measure == "smooth_ece":
            return find_smooth_error(Events(claim, frequency, None)).value
        if case.measure == BRIER:  # these frequencies increase with the claims, so the best map gives them
            return float(np.mean((claim - frequency) ** 2))
        return binned_error(claim, frequency, equal_mass=case.measure == "adaptive_ece")
    probs, posterior = rows(rng, 2 * LARGE // case.classes, case.classes, case.truth)
    thresholded = case.measure == "thresholded_ece"
    errors = []
    for claim, frequency in zip(probs.T, posterior.T, strict=True):
        keep = claim > (0.01 if thresholded else -1.0)
        errors.append(binned_error(claim[keep], frequency[keep], equal_mass=thresholded))
    return float(np.mean(errors))


def find_interval(task: tuple[Case, int | np.random.Generator], **settings: str | float) -> tuple[float, float, float]:
    """Value and limits of one sample, with these settings of the measure."""
    case, seed = task
    rng = np.random.default_rng(seed)
    scores, labels = draw(case, rng)
    name, _, part = case.measure.partition(" ")
    return metrics.interval(
        getattr(metrics, name),
        scores,
        labels,
        part=part or None,  # type: ignore[arg-type]
        task="binary" if case.classes == 1 else "multiclass",
        level=LEVEL,
        resamples=RESAMPLES,
        seed=rng,  # the same seed would repeat the random numbers of the sample
        **settings,
    )


FEW, ZERO, PLACE = "few outcomes are possible", "0 is missed only from above", "the place of the gaps is unknown"


def remark(case: Case, covered: float) -> str:
    """Why an interval covers more often than .98."""
    if round(covered, 6) <= GOAL[1]:
        return ""
    if case.count <= 20 or case.truth.startswith("always 1"):
        return FEW
    return ZERO if case.truth == "calibrated" else PLACE


def summarize(covered: list[float], remarks: list[str]) -> str:
    """Say what the least coverage is, how many rows are above .98, and why."""
    counts = {reason: remarks.count(reason) for reason in (FEW, ZERO, PLACE)}
    return (
        f"The least coverage of these {len(covered)} rows is {min(covered):.3f}. In {sum(counts.values())} rows it is "
        f"above the goal of .98, so these intervals are longer than necessary. In {counts[FEW]} of them, few outcomes "
        "are possible, and no interval has a coverage between those of neighboring outcomes. In "
        f"{counts[ZERO]} the predictions are calibrated: the true value, 0, is missed only from above, so the coverage "
        "should be .975 and not .95. Shares of 100 to 400 samples vary around it, and with 100 classes fewer than .025 "
        f"of the intervals miss 0, so the test of 0 is conservative there. In {counts[PLACE]} the bins "
        "where the gaps lie are not clear, and the limits are the widest over several assumptions."
    )


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--repeats", type=int, default=400, help="samples per row")
    parser.add_argument("--only", default="", help="rows whose measure, number of classes and truth contain this text")
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    given = parser.parse_args()
    cases = [case for case in CASES if given.only in f"{case.measure} {case.classes} {case.truth}"]
    lines = [
        f"# Coverage of the intervals of level {LEVEL}",
        "",
        f"Shares of {given.repeats} samples (fewer where stated; standard error .011 at .95 of 400), {RESAMPLES} "
        "resamples each, 15 bins: how often the interval covers the true value, misses it because it lies above or "
        "below it, and the mean length. Goal: .93 to .98. A share above .98 has its reason in the last column. If a "
        "calibrated model explains a value, the lower limit is 0, so that an interval misses 0 only from above: its "
        "coverage should be .975. If the bins where the gaps lie are not clear, the limits are the widest over several "
        "assumptions, which costs length.",
        "",
        "| measure | classes | predictions are | samples | repeats | true value | covered | above | below | length | |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    shares, remarks = [], []
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for case in cases:
            truth = find_truth(case)
            repeats = max(1, given.repeats // case.divisor)
            found = np.array(pool.map(find_interval, [(case, seed) for seed in range(repeats)]))
            above, below = np.mean(found[:, 1] > truth), np.mean(found[:, 2] < truth)
            covered = 1 - above - below
            shares.append(float(covered))
            remarks.append(remark(case, shares[-1]))
            length = np.mean(found[:, 2] - found[:, 1])
            lines.append(
                f"| {case.measure} | {case.classes if case.classes > 1 else 'binary'} | {case.truth} | {case.count:,} "
                f"| {repeats} | {truth:.4f} | {covered:.3f} | {above:.3f} | {below:.3f} | {length:.4f} "
                f"| {remarks[-1]} |"
            )
            print(lines[-1], flush=True)
    lines += ["", summarize(shares, remarks), "", f"`python benchmarks/intervals.py --repeats {given.repeats}`", ""]
    if given.out is not None:
        given.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
