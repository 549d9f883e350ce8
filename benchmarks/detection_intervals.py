"""How often the intervals of `refocal.detection` cover, on boxes whose true calibration error is known.

python benchmarks/detection_intervals.py --repeats 200 --out benchmarks/results/detection_intervals.md
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy

from refocal import metrics
from refocal.detection.coco import Annotations, Detections
from refocal.detection.intervals import error_interval
from refocal.detection.matching import Matches
from refocal.detection.measures import LOCALIZATION_BINS, bin_by_category, bin_detections
from refocal.metrics.defaults import BINS
from refocal.stats.binning import width_index

RESAMPLES = 300
LARGE = 1_000_000  # boxes behind a true value
MEAN_IOU = 0.75  # of right boxes, whose IoU is uniform from 0.5 to 1
CATEGORIES = 5
TRUTHS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "calibrated": lambda s: s,
    ".10 too high": lambda s: np.maximum(0.0, s - 0.1),
    ".10 too low": lambda s: s + 0.1,
}
INDEPENDENT, ALIKE, RIVALS = "independent", "alike in an image", "rivals in pairs"


class Case(NamedTuple):
    """One row of the table."""

    measure: str
    boxes: str  # how those of an image depend on each other
    truth: str
    images: int


CASES = [
    *(
        Case("d_ece", boxes, truth, images)
        for images in (5, 10, 50, 200)
        for boxes in (INDEPENDENT, ALIKE, RIVALS)
        for truth in TRUTHS
    ),
    *(Case("d_ece", ALIKE, truth, 800) for truth in TRUTHS),
    *(Case("la_ece", ALIKE, truth, images) for images in (50, 200) for truth in TRUTHS),
]


def draw_scores(rng: np.random.Generator, count: int) -> np.ndarray:
    """Scores from 0 to 0.6, more of them near 0."""
    return 0.6 * rng.beta(1, 2, count)


def draw(rng: np.random.Generator, case: Case) -> Matches:
    """About 6 boxes per image: whether each is right, and its IoU."""
    counts = 2 * rng.poisson(3, case.images)
    image = np.repeat(np.arange(case.images), counts)
    scores = draw_scores(rng, len(image))
    chance = TRUTHS[case.truth](scores) / (MEAN_IOU if case.measure == "la_ece" else 1.0)
    if case.boxes == RIVALS:  # of each pair at most one box is right, as if both wanted one object
        scores[1::2] = scores[::2]
        chance = np.minimum(TRUTHS[case.truth](scores), 0.5)
        toss = np.repeat(rng.random(len(image) // 2), 2)
        right = np.where(np.arange(len(image)) % 2 == 0, toss < chance, toss > 1 - chance)
    else:
        share = 0.3 if case.boxes == ALIKE else 0.0
        common, own = rng.standard_normal(case.images)[image], rng.standard_normal(len(image))
        right = scipy.special.ndtr(np.sqrt(share) * common + np.sqrt(1 - share) * own) < chance
    iou = np.where(right, 0.5 + 0.5 * rng.random(len(image)), 0.0)
    categories = {each: str(each) for each in range(CATEGORIES)}
    own_category = tuple(rng.integers(0, CATEGORIES, len(image)).tolist())
    empty, none = np.zeros((0, 4)), np.zeros(0, dtype=bool)
    images = tuple(range(case.images))
    truth = Annotations(images, categories, (), (), empty, none, none)
    found = Detections(tuple(image.tolist()), own_category, np.zeros((len(image), 4)), scores, ({},) * len(image))
    return Matches(found, truth, 0.5, right, np.zeros(len(image), dtype=bool), iou)


def find_truth(case: Case) -> float:
    """The true error, from scores with frequencies instead of outcomes."""
    scores = draw_scores(np.random.default_rng(1), LARGE)
    chance = TRUTHS[case.truth](scores)
    chance = np.minimum(chance, 0.5) if case.boxes == RIVALS else chance
    bins = BINS if case.measure == "d_ece" else LOCALIZATION_BINS
    index = width_index(scores, bins=bins)
    return float(np.abs(np.bincount(index, weights=scores - chance)).sum() / LARGE)


def measure(case: Case, repeats: int) -> list[str]:
    """One row of the table: coverage, and that of an interval that treats boxes as independent."""
    truth = find_truth(case)
    above = below = naive = alarms = 0
    lengths = []
    compared = case.measure == "d_ece" and case.images == 200
    for seed in range(repeats):
        matches = draw(np.random.default_rng(seed), case)
        binned = (
            bin_detections(matches, bins=BINS)
            if case.measure == "d_ece"
            else bin_by_category(matches, bins=LOCALIZATION_BINS)
        )
        found = error_interval(binned, resamples=RESAMPLES, seed=seed)
        above += found.low > truth + 1e-9
        below += found.high < truth - 1e-9
        lengths.append(found.high - found.low)
        if compared:
            scores, right = matches.detections.scores, matches.matched
            other = metrics.interval(metrics.ece, scores, right, task="binary", resamples=RESAMPLES, seed=seed)
            naive += other.low - 1e-9 <= truth <= other.high + 1e-9
            alarms += metrics.diagnose(scores, right, task="binary").p_value <= 0.05
    shares = [1 - (above + below) / repeats, above / repeats, below / repeats]
    more = [f"{naive / repeats:.3f}", f"{alarms / repeats:.3f}"] if compared else ["", ""]
    return [f"{truth:.4f}", *(f"{share:.3f}" for share in shares), f"{np.mean(lengths):.4f}", *more]


def main() -> None:
    """Run all cases and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    repeats = {"d_ece": options.repeats, "la_ece": options.repeats // 2}
    lines = [
        "# Coverage of the intervals of D-ECE and LaECE, level 0.95",
        "",
        f"`python benchmarks/detection_intervals.py --repeats {options.repeats} --out FILE`",
        "",
        f"Shares of {repeats['d_ece']} samples of images for D-ECE ({BINS} bins) and {repeats['la_ece']} for LaECE "
        f"({LOCALIZATION_BINS} bins, {CATEGORIES} categories), {RESAMPLES} resamples each, about 6 boxes per image. "
        f"Standard error at .95: {np.sqrt(0.95 * 0.05 / repeats['d_ece']):.3f} and "
        f"{np.sqrt(0.95 * 0.05 / repeats['la_ece']):.3f}. `alike in an image`: the boxes of an image tend to be right "
        "or wrong together (Gaussian copula, correlation 0.3). `rivals in pairs`: of two boxes with equal scores at "
        "most one is right. `rows`: coverage of `metrics.interval(metrics.ece, ...)`, which treats boxes as "
        "independent. `alarms`: how often the tests behind the verdict, which do so, too, give p <= 0.05; the goal is "
        "0.050 for calibrated scores.",
        "",
        "| measure | boxes are | scores are | images | true value | covered | above | below | length | rows | alarms |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        row = [case.measure, case.boxes, case.truth, str(case.images), *measure(case, repeats[case.measure])]
        lines.append(f"| {' | '.join(row)} |")
        print(lines[-1], flush=True)
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
