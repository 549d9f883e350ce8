"""How often tests of calibration reject at the 5 % level: refocal's omnibus test, and six tests of one kind of error.

    python benchmarks/calibration_tests.py --jobs 16 --data FOLDER --out benchmarks/results/calibration_tests.md

FOLDER has one .npz file per network with `logits_test` and `labels_test`; without it, the real networks are left out.
The single tests are written out here, in a few lines each.
"""

from __future__ import annotations

import argparse
import functools
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from calibration_test_cases import SIZES, Case, list_cases
from scipy import stats

from refocal import metrics

LEVEL = 0.05
REPEATS = 500
RESAMPLES = 400  # half as many for the largest number of samples
_FIRST_SEED = 10_000  # other data sets than those that the shares of the omnibus test were chosen by
BLOCK = 25  # repeats of one task of a worker
ALLOWED = 0.05  # how much power the omnibus test may lose against the best single test
TESTS = ("omnibus", "ECE", "Spiegelhalter", "score", "frequencies", "binned", "cumulative")


def rank(observed: float, simulated: np.ndarray) -> float:
    """The p-value of a statistic among simulated ones."""
    return (1 + np.count_nonzero(simulated >= observed * (1 - 1e-9))) / (len(simulated) + 1)


def spiegelhalter(claims: np.ndarray, outcomes: np.ndarray, weights: np.ndarray) -> float:
    """Spiegelhalter's z of the Brier score of the claims."""
    slope = 1 - 2 * claims
    variance = (weights**2 * slope**2 * claims * (1 - claims)).sum()
    return float(2 * stats.norm.sf(abs((weights * slope * (outcomes - claims)).sum()) / np.sqrt(variance)))


def score_test(claims: np.ndarray, outcomes: np.ndarray, weights: np.ndarray) -> float:
    """Score test of slope 1 and intercept 0 in the log-odds of the claims (Cox), with two degrees of freedom."""
    inside = np.clip(claims, 1e-12, 1 - 1e-12)
    design = np.stack([np.ones_like(inside), np.log(inside) - np.log1p(-inside)], axis=1)
    score = (weights * (outcomes - claims)) @ design
    information = (design * (weights**2 * inside * (1 - inside))[:, None]).T @ design
    return float(stats.chi2.sf(score @ np.linalg.solve(information, score), 2))


def frequency_test(probs: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    """Chi-square of the frequencies of the classes, with their full covariance."""
    classes = probs.shape[1]
    residual = np.bincount(labels, weights, minlength=classes) - weights @ probs
    scaled = probs * weights[:, None]
    covariance = np.diag((scaled * weights[:, None]).sum(axis=0)) - scaled.T @ scaled
    distance = residual[1:] @ np.linalg.solve(covariance[1:, 1:], residual[1:])
    return float(stats.chi2.sf(distance, classes - 1))


def simulated_tests(
    claims: np.ndarray, outcomes: np.ndarray, weights: np.ndarray, rng: np.random.Generator, resamples: int
) -> tuple[float, float, float]:
    """P-values of ECE in 15 bins, of chi-square in 10 bins of equal mass, and of the largest cumulative residual."""
    order = np.argsort(claims, kind="stable")
    claims, outcomes, weights = claims[order], outcomes[order], weights[order]
    drawn = rng.random((resamples, len(claims))) < claims
    residuals = weights * (np.concatenate([outcomes[None], drawn]) - claims)
    cumulative = np.cumsum(residuals, axis=1)
    padded = np.pad(cumulative, ((0, 0), (1, 0)))
    width_edges = np.searchsorted(claims, np.arange(16) / 15, side="right")
    width_edges[[0, -1]] = 0, len(claims)
    mass_edges = np.arange(11) * len(claims) // 10
    errors = np.abs(np.diff(padded[:, width_edges], axis=1)).sum(axis=1)
    variance = np.diff(np.pad(np.cumsum(weights**2 * claims * (1 - claims)), (1, 0))[mass_edges])
    squares = (np.diff(padded[:, mass_edges], axis=1) ** 2 / np.maximum(variance, 1e-12)).sum(axis=1)
    largest = np.abs(cumulative).max(axis=1)
    errors_p, squares_p, largest_p = (rank(values[0], values[1:]) for values in (errors, squares, largest))
    return errors_p, squares_p, largest_p


def run_tests(case: Case, count: int, seed: int, resamples: int) -> list[float]:
    """The p-values of all tests on one data set."""
    rng = np.random.default_rng([_FIRST_SEED + seed, count])
    resamples = resamples // 2 if count == SIZES[-1] else resamples
    probs, labels, weights = case.draw(rng, count)
    binary = probs.ndim == 1
    options = {"sample_weight": weights, "task": "binary" if binary else "multiclass"}
    omnibus = metrics.calibration_test(probs, labels, resamples=resamples, seed=rng, **options).p_value
    scale = np.ones(count) if weights is None else weights
    rows = np.stack([1 - probs, probs], axis=1) if binary else probs
    claims = probs if binary else rows.max(axis=1)
    outcomes = (labels == (1 if binary else rows.argmax(axis=1))).astype(np.float64)
    ece, binned, cumulative = simulated_tests(claims, outcomes, scale, rng, resamples)
    single = spiegelhalter(claims, outcomes, scale), score_test(claims, outcomes, scale)
    return [omnibus, ece, *single, frequency_test(rows, labels, scale), binned, cumulative]


@functools.cache
def find_cases(folder: Path | None) -> list[Case]:
    """The cases, read once per process."""
    return list_cases(folder)


def run_block(task: tuple[int, int, int, int], folder: Path | None, resamples: int) -> np.ndarray:
    """P-values of some repeats of one case, and the seconds they took, (repeats, tests + 1)."""
    index, count, first, last = task
    rows = []
    for seed in range(first, last):
        start = time.process_time()
        found = run_tests(find_cases(folder)[index], count, seed, resamples)
        rows.append([*found, time.process_time() - start])
    return np.array(rows)


def write_row(case: Case, count: int, p_values: np.ndarray) -> tuple[str, bool]:
    """The row of one case, and whether its limit was kept."""
    rates = (p_values <= LEVEL).mean(axis=0)
    best = rates[1:].max()
    # two and a half standard errors of the simulation
    if case.truth is None:
        slack = 2.5 * (LEVEL * (1 - LEVEL) / len(p_values)) ** 0.5
        holds = 0.03 - slack <= rates[0] <= 0.07 + slack
        verdict = "size"
    else:
        holds = rates[0] >= best - ALLOWED
        verdict = f"{rates[0] - best:+.3f}"
    cells = " | ".join(f"{rate:.3f}" for rate in rates)
    return f"| {case.name} | {count:,} | {cells} | {verdict if holds else f'**{verdict}**'} |", bool(holds)


def summarize(behind: int) -> str:
    """Say in how many rows the power is too far below that of the best single test, and why."""
    return (
        f"In {behind} rows the omnibus test is more than {100 * ALLOWED:.0f} points behind the best single test. No "
        "joint test can avoid this: a test that looks for several kinds of error at once must have less power against "
        "each than the best test of that kind alone, by at least 5 points for two independent kinds and 13 for five "
        "where the single test has a power of 0.3 to 0.9 ([bound](joint_test_bound.md)). The best single test is "
        "known only after the error is."
    )


def main() -> None:
    """Run all cases, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="data sets per case and size")
    parser.add_argument("--resamples", type=int, default=RESAMPLES, help="simulated label sets per data set")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--data", type=Path, help="folder of logits of real networks, one .npz file each")
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--sizes", type=int, nargs="*", help="only these numbers of samples")
    options = parser.parse_args()
    tasks = [
        (index, count, first, min(first + BLOCK, options.repeats))
        for index, case in enumerate(find_cases(options.data))
        for count in case.sizes
        for first in range(0, options.repeats, BLOCK)
        if options.only in case.name and (not options.sizes or count in options.sizes)
    ]
    found: dict[tuple[int, int], list[np.ndarray]] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        work = functools.partial(run_block, folder=options.data, resamples=options.resamples)
        results = pool.map(work, tasks)
        for (index, count, *_), rows in zip(tasks, results, strict=True):
            found.setdefault((index, count), []).append(rows)
    kept = [0, 0]
    behind = 0
    seconds = 0.0
    lines = [
        "# How often tests of calibration reject",
        "",
        f"Shares of {options.repeats} data sets at the level {LEVEL}, {options.resamples} simulated label sets each "
        f"(half as many for {SIZES[-1]:,} samples). "
        "`omnibus` is `metrics.calibration_test`. The others are single tests: ECE with simulated labels, "
        "Spiegelhalter's z, the score test of slope and intercept, chi-square of the class frequencies, chi-square in "
        "10 bins of equal mass, and the largest cumulative residual; the last two with simulated labels. "
        "Spiegelhalter's test, the score test and the frequencies have asymptotic p-values, which are wrong for nearly "
        "certain predictions.",
        "",
        "`against the best`: the power of the omnibus test minus that of the best single test, which differs from row "
        "to row. Bold if it is below -0.05, or if the size of the omnibus test is outside 0.03 to 0.07 by more than "
        "2.5 standard errors.",
        "",
        f"| case | samples | {' | '.join(TESTS)} | against the best |",
        f"|---|---:|{'---:|' * len(TESTS)}---:|",
    ]
    for (index, count), parts in found.items():
        rows = np.concatenate(parts)
        case = find_cases(options.data)[index]
        row, holds = write_row(case, count, rows[:, :-1])
        behind += not holds and case.truth is not None
        lines.append(row)
        kept[0] += holds
        kept[1] += 1
        seconds += rows[:, -1].sum()
    lines += [
        "",
        f"Limits kept in {kept[0]} of {kept[1]} rows. {seconds / 60:.2f} core-minutes.",
        "",
        summarize(behind),
        "",
    ]
    lines.append("`python benchmarks/calibration_tests.py`, with `--data` for the real networks")
    table = "\n".join(lines) + "\n"
    print(table)
    if options.out is not None:
        options.out.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
