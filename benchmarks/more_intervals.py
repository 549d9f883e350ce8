"""How often other limits, tests and standard errors of refocal keep what they promise, on simulated data.

`intervals.py`, `refinement_intervals.py`, `paired_tests.py` and `calibration_tests.py` measure the rest.

python benchmarks/more_intervals.py --repeats 600 --out benchmarks/results/more_intervals.md
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from intervals import (
    FREQUENCIES,
    GOAL,
    LARGE,
    LEVEL,
    PLACE,
    RESAMPLES,
    ZERO,
    Case,
    binned_error,
    confidences,
    draw,
    find_interval,
    rows,
)
from scipy.special import log_softmax, softmax
from verdict_situations import labels_of

from refocal import metrics, posterior
from refocal.calibrators import FocalPosterior, FocalTemperatureScaling, TemperatureScaling, refinement
from refocal.conformal import PredictionSets
from refocal.metrics.inputs import Events
from refocal.metrics.kernel_error import event_kernel_error
from refocal.report.prediction_sets import measure_sets
from refocal.stats import label_sums
from refocal.stats.kernel_sums import laplacian_vector_products

Trial = Callable[[np.random.Generator], float]  # whether one sample keeps the promise, or the share of its parts
KERNEL = "kernel_calibration_error"
RIGHT, WRONG, SURE = "calibrated", ".10 too confident", "too confident"
WIDTH, TOP, GAMMA = 0.4, 2, 2.0  # of the kernel, of `top_k_ece` and of `focal_score`
Z = 1.959964  # two standard errors, to six digits
TARGET = 0.9  # coverage of prediction sets
CHEAP = 20  # times as many samples for rows that need no resamples
ONE_PART = "the size is what one part of the test sees; the others see it, too"


class Row(NamedTuple):
    """One row of the table."""

    promise: str
    data: str
    count: int  # rows of a sample
    goal: float
    make: Callable[[], Trial]
    divisor: int = 1  # the repeats of a slow row are divided by it
    factor: int = 1  # those of a cheap row are multiplied by it
    reason: str = ""  # why the share lies outside the goal, if it does


def draw_labels(rng: np.random.Generator, probs: np.ndarray) -> np.ndarray:
    """Class indices with these probabilities, (N, K)."""
    return (probs.cumsum(axis=1) < rng.random((len(probs), 1))).sum(axis=1).clip(0, probs.shape[1] - 1)


def find_true_measure(case: Case, **settings: Any) -> float:
    """The true value of a measure whose noise does not enlarge it, from very many rows."""
    name, _, part = case.measure.partition(" ")
    scores, labels = draw(case._replace(count=LARGE // case.classes), np.random.default_rng(99))
    found = getattr(metrics, name)(scores, labels, task="binary" if case.classes == 1 else "multiclass", **settings)
    return float(getattr(found, part) if part else found)


def find_gap(case: Case, **_: Any) -> float:
    """The gap of all predictions. Every norm of equal gaps is the gap."""
    return 0.0 if case.truth == RIGHT else 0.1


def find_true_kernel_error(case: Case) -> float:
    """The true kernel error of P(y = 1)."""
    claim = confidences(np.random.default_rng(99), LARGE, case.truth)
    return event_kernel_error(Events(claim, FREQUENCIES[case.truth](claim), None), width=WIDTH, unbiased=False)


def find_true_vector_kernel_error(case: Case, **_: Any) -> float:
    """The true kernel error of all classes, with posteriors instead of labels."""
    probs, truth = rows(np.random.default_rng(99), 4_000, case.classes, case.truth)
    shares = np.full(len(probs), 1 / len(probs))
    return float(laplacian_vector_products(probs, probs - truth, shares[None], width=WIDTH)[0] @ shares) ** 0.5


def find_true_top_error(case: Case, **_: Any) -> float:
    """The true ECE of the claim that the label is among the most probable."""
    probs, truth = rows(np.random.default_rng(99), LARGE // case.classes, case.classes, case.truth)
    top = np.argsort(probs, axis=1)[:, -TOP:]
    claim, frequency = (np.take_along_axis(each, top, axis=1).sum(axis=1) for each in (probs, truth))
    return binned_error(claim, frequency, equal_mass=False)


def remark(row: Row, share: float) -> str:
    """Why the share lies outside the goal for intervals; tests at .05 have another goal."""
    low, high = GOAL
    return row.reason if row.goal == LEVEL and not low <= round(share, 3) <= high else ""


def cover(case: Case, find_truth: Callable[..., float], *, factor: int = 1, reason: str = "", **settings: Any) -> Row:
    """Intervals of `metrics.interval`."""

    def make() -> Trial:
        true = find_truth(case, **settings)

        def trial(rng: np.random.Generator) -> float:
            _, low, high = find_interval((case, rng), **settings)
            return float(low <= true <= high)

        return trial

    shown = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    title = case.measure if not settings else f"{case.measure}, {shown}"
    kind = "binary" if case.classes == 1 else f"{case.classes} classes"
    return Row(f"interval of {title}", f"{kind}, {case.truth}", case.count, LEVEL, make, case.divisor, factor, reason)


def cover_divergence(count: int) -> Row:
    """Intervals of `kl_to_posterior`, which has posteriors instead of labels."""

    def make() -> Trial:
        probs, truth = rows(np.random.default_rng(99), LARGE // 10, 10, SURE)
        true = metrics.kl_to_posterior(probs, truth)

        def trial(rng: np.random.Generator) -> float:
            _, low, high = metrics.interval(metrics.kl_to_posterior, *rows(rng, count, 10, SURE))
            return float(low <= true <= high)

        return trial

    return Row("interval of kl_to_posterior", f"10 classes, {SURE}", count, LEVEL, make, factor=CHEAP)


def reject_multilabel(rng: np.random.Generator) -> float:
    """Whether `calibration_test` rejects calibrated labels of ten classes that may occur together."""
    probs = labels_of(10)(rng, 500)
    labels = (rng.random(probs.shape) < probs).astype(int)
    return float(
        metrics.calibration_test(probs, labels, task="multilabel", resamples=RESAMPLES, seed=rng).p_value <= 0.05
    )


def reject_in_pieces(rng: np.random.Generator, *, misses: float) -> float:
    """Whether `calibration_test` rejects calibrated labels if more than so many misses are drawn in pieces."""
    probs = rng.dirichlet(np.ones(10), PIECED)
    usual, label_sums._MOST_MISSES = label_sums._MOST_MISSES, misses
    try:
        return float(metrics.calibration_test(probs, draw_labels(rng, probs), seed=rng).p_value <= 0.05)
    finally:
        label_sums._MOST_MISSES = usual


def hold_bands(rng: np.random.Generator, *, count: int) -> float:
    """The share of bins whose accuracy lies in the band of a reliability diagram."""
    case = Case("", RIGHT, count)
    found = metrics.reliability_diagram(*draw(case, rng), task="binary", level=LEVEL, seed=rng)
    return float(np.mean((found.low <= found.accuracy) & (found.accuracy <= found.high)))


def fit_temperature(rng: np.random.Generator) -> float:
    """Whether T is within its error."""
    logits = 3 * rng.standard_normal((500, 5))
    found = TemperatureScaling(input="logits").fit(logits, draw_labels(rng, softmax(logits / 1.5, axis=1)))
    return float(abs(found.temperature_ - 1.5) <= Z * found.temperature_error_)


def fit_gamma(rng: np.random.Generator) -> float:
    """Whether γ is within its error."""
    logits = 3 * rng.standard_normal((500, 5))
    labels = draw_labels(rng, posterior(softmax(logits, axis=1), gamma=3.0))
    found = FocalPosterior(gamma="fit", input="logits").fit(logits, labels)
    return float(abs(found.gamma_ - 3.0) <= Z * found.gamma_error_)


def fit_both(rng: np.random.Generator, *, name: str, true: float) -> float:
    """Whether a parameter of focal temperature scaling, T = 1.5 or γ = 1, is within its error."""
    logits = 3 * rng.standard_normal((2_000, 5))
    labels = draw_labels(rng, posterior(softmax(logits / 1.5, axis=1), gamma=1.0))
    found = FocalTemperatureScaling(input="logits").fit(logits, labels)
    return float(abs(getattr(found, f"{name}_") - true) <= Z * getattr(found, f"{name}_error_"))


def split_loss(part: str) -> Trial:
    """Whether a part of the log loss is within its error: logits three times too large."""
    logits = 2 * np.random.default_rng(99).standard_normal((LARGE // 3, 3))
    best, given = (log_softmax(scale * logits, axis=1) for scale in (1, 3))
    entropy = -float(np.mean(np.sum(np.exp(best) * best, axis=1)))
    true = {"refinement": entropy, "calibration": -float(np.mean(np.sum(np.exp(best) * given, axis=1))) - entropy}[part]

    def trial(rng: np.random.Generator) -> float:
        logits = 2 * rng.standard_normal((500, 3))
        found = refinement(3 * logits, draw_labels(rng, softmax(logits, axis=1)), input="logits")
        return float(abs(getattr(found, part) - true) <= Z * getattr(found, f"{part}_error"))

    return trial


def cover_sets(count: int) -> Trial:
    """Whether the limits of a report hold the coverage of the sets whose threshold comes from the same rows."""
    later, truth = rows(np.random.default_rng(99), 100_000, 10, SURE)

    def trial(rng: np.random.Generator) -> float:
        probs, own = rows(rng, count, 10, SURE)
        labels = draw_labels(rng, own)
        deployed = PredictionSets(coverage=TARGET, input="probs", classes=10).fit(probs, labels)
        coverage = float(np.mean(np.sum(truth, axis=1, where=deployed.predict_set(later))))
        limits = measure_sets([probs], labels, None, TARGET).given.coverage
        return float(limits.low <= coverage <= limits.high)

    return trial


def see_error(rng: np.random.Generator, *, groups: int, stated: str) -> float:
    """Whether `diagnose` sees an error as large as the one that it says it would see, which changes its sign."""
    p = np.sort(rng.beta(0.8, 0.8, 2_000))
    variance = p * (1 - p)
    found = metrics.diagnose(p, (rng.random(len(p)) < p).astype(int), task="binary")
    information = np.cumsum(variance) - variance / 2
    sign = np.where(np.floor(groups * information / variance.sum()) % 2 == 0, -1, 1)
    truth = p + sign * getattr(found, stated) * variance / variance.mean()  # stays within 0 and 1
    return float(metrics.diagnose(p, (rng.random(len(p)) < truth).astype(int), task="binary").p_value <= 0.05)


PIECED = 20_000
MEANS = ("nll", "brier", "error", "confidence_share share", "confidence_share accuracy")
RANKINGS = ("auroc", "aurc")
SIZES = (100, 1_000)
ROWS = [
    *(cover(Case(name, WRONG, count), find_true_measure, factor=CHEAP) for name in MEANS for count in SIZES),
    *(cover(Case("focal_score", SURE, count, 10), find_true_measure, factor=CHEAP, gamma=GAMMA) for count in SIZES),
    *(cover_divergence(count) for count in SIZES),
    *(cover(Case(name, WRONG, count), find_true_measure, factor=2) for name in RANKINGS for count in SIZES),
    *(
        cover(Case("mce", truth, 300, divisor=2), find_gap, reason=reason)
        for truth, reason in ((RIGHT, ZERO), (WRONG, PLACE))
    ),
    *(cover(Case("ece", truth, 300, divisor=2), find_gap, norm="l2") for truth in (RIGHT, WRONG)),
    *(cover(Case(KERNEL, truth, 300, divisor=2), find_true_kernel_error) for truth in (RIGHT, WRONG)),
    *(cover(Case(KERNEL, truth, 300, 3), find_true_vector_kernel_error, classes="all") for truth in (RIGHT, SURE)),
    *(cover(Case("top_k_ece", truth, 300, 10, 2), find_true_top_error, k=TOP) for truth in (RIGHT, SURE)),
    Row(
        "calibration_test rejects",
        "10 labels that may occur together, calibrated",
        500,
        0.05,
        lambda: reject_multilabel,
        2,
    ),
    *(
        Row(
            f"calibration_test rejects, {how}",
            "10 classes, calibrated",
            PIECED,
            0.05,
            functools.partial(functools.partial, reject_in_pieces, misses=misses),
            2,
        )
        for how, misses in (("more than 10 million drawn labels", 1e7), ("pieces forced at 1 million", 1e6))
    ),
    *(
        Row(
            "band of a bin of reliability_diagram",
            f"binary, {RIGHT}",
            count,
            LEVEL,
            functools.partial(functools.partial, hold_bands, count=count),
        )
        for count in (300, 3_000)
    ),
    Row("temperature_error_ of TemperatureScaling", "5 classes, T = 1.5", 500, LEVEL, lambda: fit_temperature),
    Row("gamma_error_ of FocalPosterior", "5 classes, γ = 3", 500, LEVEL, lambda: fit_gamma),
    *(
        Row(
            f"{name}_error_ of FocalTemperatureScaling",
            "5 classes, T = 1.5, γ = 1",
            2_000,
            LEVEL,
            functools.partial(functools.partial, fit_both, name=name, true=true),
            2,
        )
        for name, true in (("temperature", 1.5), ("gamma", 1.0))
    ),
    *(
        Row(
            f"{part}_error of refinement",
            "3 classes, logits times 3",
            500,
            LEVEL,
            functools.partial(split_loss, part),
            2,
        )
        for part in ("refinement", "calibration")
    ),
    *(
        Row(
            "limits of the coverage of sets, for the threshold from the same rows",
            f"10 classes, {SURE}",
            count,
            LEVEL,
            functools.partial(cover_sets, count),
        )
        for count in (100, 500, 2_000)
    ),
    *(
        Row(
            f"diagnose sees an error of the size {stated}",
            f"binary, {signs}",
            2_000,
            LEVEL,
            functools.partial(functools.partial, see_error, groups=groups, stated=stated),
            2,
            reason=ONE_PART,
        )
        for stated, groups, signs in (
            ("detectable", 8, "changing sign from eighth to eighth"),
            ("detectable_frequency", 1, "all too high"),
        )
    ),
]


def write_row(index: int, *, repeats: int) -> str:
    """Simulate one row of the table."""
    row = ROWS[index]
    samples = max(1, repeats * row.factor // row.divisor)
    trial = row.make()
    kept = [trial(np.random.default_rng([index, seed])) for seed in range(samples)]
    error = float(np.std(kept)) / samples**0.5
    return (
        f"| {row.promise} | {row.data} | {row.count:,} | {samples:,} | {row.goal:.2f} | {np.mean(kept):.3f} "
        f"| {error:.3f} | {remark(row, float(np.mean(kept)))} |"
    )


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--repeats", type=int, default=600, help="samples per row")
    parser.add_argument("--only", default="", help="rows whose promise contains this text")
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    given = parser.parse_args()
    lines = [
        "# Other limits, tests and standard errors",
        "",
        f"How often each keeps its promise. Intervals and bands have the level {LEVEL}; a standard error keeps its "
        f"promise if the true value is at most {Z:.2f} of them away; tests run at .05. {RESAMPLES} resamples per "
        f"interval. Shares whose goal is {LEVEL} should be {GOAL[0]} to {GOAL[1]}; the others have a reason.",
        "",
        "| promise | data | rows | samples | goal | share | standard error | |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    chosen = [index for index, row in enumerate(ROWS) if given.only in row.promise]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for line in pool.imap(functools.partial(write_row, repeats=given.repeats), chosen):
            lines.append(line)
            print(line, flush=True)
    lines += ["", f"`python benchmarks/more_intervals.py --repeats {given.repeats}`", ""]
    if given.out is not None:
        given.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
