"""How often the intervals of `SegmentationCalibration` cover, on images whose pixels err together.

python benchmarks/segmentation_intervals.py --out benchmarks/results/segmentation_intervals.md
"""

from __future__ import annotations

import argparse
import functools
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import ndimage, special

from refocal import metrics
from refocal.metrics import Interval
from refocal.segmentation import SegmentationCalibration, SegmentationSummary

LEVEL = 0.95
LEAST = 0.93  # the goal
RESAMPLES = 300
CLASSES = 3
SIZE = 20  # pixels in a row and in a column
LARGE = 8_000  # images behind a true value
# the logits that the network gives, from the true ones
MODELS = {
    "calibrated": lambda logits: logits,
    "too confident": lambda logits: 1.5 * logits,
    "too unsure": lambda logits: 0.6 * logits,
    "biased to class 2": lambda logits: logits + np.array([0.0, 0.0, 1.0])[:, None, None],
}
IMAGES = (30, 100)
MEASURES = {
    "ECE": lambda found: found.overall.ece,
    "ECE near boundaries": lambda found: found.boundary.ece,
    "ECE in the interior": lambda found: found.interior.ece,
    "ECE of class 2": lambda found: found.classes[2].ece,
    "classwise ECE": lambda found: found.classwise_ece,
    "overconfidence": lambda found: found.overall.overconfidence,
    "NLL": lambda found: found.overall.nll,
    "accuracy": lambda found: found.overall.accuracy,
}
PIXELWISE = "ECE, pixels as samples"


class Case(NamedTuple):
    """A network and a number of images."""

    model: str
    images: int


def smooth_noise(rng: np.random.Generator, shape: tuple[int, ...], width: float) -> np.ndarray:
    """Noise of variance 1 in each pixel that varies smoothly over the last two axes."""
    widths = (0.0,) * (len(shape) - 2) + (width, width)
    noise = ndimage.gaussian_filter(rng.standard_normal(shape), widths, mode="wrap")
    return noise * (2 * width * np.sqrt(np.pi))  # the scale for pixels much smaller than the width


def draw(rng: np.random.Generator, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a network (N, K, H, W), and labels (N, H, W).

    Each pixel has its label with the probabilities of the true logits, but the labels of an image are drawn together:
    15% of the variance behind them is one number per image, 65% varies smoothly within it, and 20% is independent.
    Images differ in difficulty, too.
    """
    shape = (case.images, SIZE, SIZE)
    ease = np.exp(0.5 * rng.standard_normal((case.images, 1, 1, 1)))
    logits = 2.0 * ease * smooth_noise(rng, (case.images, CLASSES, SIZE, SIZE), 3.0)
    joint = (
        np.sqrt(0.15) * rng.standard_normal((case.images, 1, 1))
        + np.sqrt(0.65) * smooth_noise(rng, shape, 2.0)
        + np.sqrt(0.20) * rng.standard_normal(shape)
    )
    below = np.cumsum(special.softmax(logits, axis=1), axis=1)[:, :-1]
    labels = (below < special.ndtr(joint)[:, None]).sum(axis=1)
    return MODELS[case.model](logits), labels


def measure(logits: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> SegmentationSummary:
    """All measures with their intervals."""
    calibration = SegmentationCalibration(CLASSES)
    calibration.update(logits, labels)
    return calibration.compute(level=LEVEL, resamples=RESAMPLES, seed=rng)


@functools.cache
def find_truths(model: str) -> dict[str, float]:
    """The true value of each measure, from many images.

    The errors of a calibrated network are 0, except near boundaries and away from them: the labels decide which pixels
    these are, so the outcomes there are not those of all pixels with the same probabilities.
    """
    calibration = SegmentationCalibration(CLASSES)
    rng = np.random.default_rng(99)
    for _ in range(LARGE // 100):
        calibration.update(*draw(rng, Case(model, 100)))
    found = calibration.compute(resamples=100)
    truths = {name: choose(found).value for name, choose in MEASURES.items()}
    if model == "calibrated":
        truths |= dict.fromkeys(("ECE", "ECE of class 2", "classwise ECE", "overconfidence"), 0.0)
    return truths | {PIXELWISE: truths["ECE"]}


def find_intervals(case: Case, seed: int, *, pixelwise: bool) -> dict[str, Interval]:
    """The intervals of one sample of images."""
    rng = np.random.default_rng([seed, case.images])
    logits, labels = draw(rng, case)
    found = measure(logits, labels, rng)
    intervals = {name: choose(found) for name, choose in MEASURES.items()}
    if pixelwise:
        intervals[PIXELWISE] = metrics.interval(
            metrics.ece, logits, labels, input="logits", level=LEVEL, resamples=RESAMPLES, seed=rng
        )
    return intervals


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200, help="samples of images per row")
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    given = parser.parse_args()
    lines = [
        f"# Coverage of the intervals of `SegmentationCalibration`, level {LEVEL}",
        "",
        f"Shares of {given.repeats} samples of images (standard error .015 at .95 of 200), {RESAMPLES} resamples each, "
        f"{CLASSES} classes, {SIZE} x {SIZE} pixels, 15 bins, a band of 2 pixels: how often the interval covers the "
        "true value, misses it because it lies above or below it, and the mean length. Goal: .93 to .98. The pixels of "
        "an image err together, and images differ in difficulty (`draw`). If a calibrated network explains an ECE, its "
        "lower limit is 0, so that an interval misses 0 only from above: the goal is .975. If it is not clear in which "
        "bins the gaps lie, the limits are the widest over several assumptions, and cover more often. The last row of "
        "each group is `refocal.metrics.interval` of the same pixels, which treats each pixel as a sample (a quarter "
        "of the repeats).",
        "",
        "| network is | images | measure | true value | covered | above | below | length |",
        "|---|---|---|---|---|---|---|---|",
    ]
    short = []
    start = time.process_time()
    for case in (Case(model, images) for model in MODELS for images in IMAGES):
        truths = find_truths(case.model)
        found = [find_intervals(case, seed, pixelwise=seed % 4 == 0) for seed in range(given.repeats)]
        for name, truth in truths.items():
            limits = np.array([each[name][1:] for each in found if name in each])
            above, below = np.mean(limits[:, 0] > truth), np.mean(limits[:, 1] < truth)
            lines.append(
                f"| {case.model} | {case.images} | {name} | {truth:.4f} | {1 - above - below:.3f} | {above:.3f} "
                f"| {below:.3f} | {np.mean(limits[:, 1] - limits[:, 0]):.4f} |"
            )
            print(lines[-1], flush=True)
            if name != PIXELWISE and round(1 - above - below, 6) < LEAST:
                short.append(f"{name}, {case.images} images, {case.model}: {1 - above - below:.3f}")
    print(f"{time.process_time() - start:.0f} s")
    lines += ["", f"Below the goal: {'; '.join(short) or 'none'}."]
    lines += ["", f"`python benchmarks/segmentation_intervals.py --repeats {given.repeats}`", ""]
    if given.out is not None:
        given.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
