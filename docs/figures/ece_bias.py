"""Draw docs/figures/ece_bias.svg: the ECE of a calibrated classifier, which is 0, as samples show it.

python docs/figures/ece_bias.py docs/figures/ece_bias.svg
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np
from style import BLUE, ORANGE, SETTINGS, WIDTH, save, shades

from refocal import metrics

SIZES = (100, 300, 1_000, 3_000, 10_000, 30_000)
BINS = (5, 15, 50)
REPEATS = 60
SPREAD = 2.0  # of the logits


def draw_sample(rng: np.random.Generator, samples: int, *, sharpness: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Draw probabilities of ten classes and labels; calibrated if the sharpness is 1."""
    logits = SPREAD * rng.standard_normal((samples, 10))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    probs = np.exp(sharpness * logits)
    return probs / probs.sum(axis=1, keepdims=True), labels


def draw_bias(axes: plt.Axes) -> None:
    """Draw the mean ECE against the number of samples."""
    rng = np.random.default_rng(0)
    means: dict[object, list[float]] = {key: [] for key in (*BINS, "debiased")}
    for samples in SIZES:
        drawn = [draw_sample(rng, samples) for _ in range(REPEATS)]
        for bins in BINS:
            means[bins].append(float(np.mean([metrics.ece(*rows, bins=bins) for rows in drawn])))
        means["debiased"].append(float(np.mean([metrics.ece(*rows, bins=15, debias=True) for rows in drawn])))
    for bins, shade in zip(BINS, shades(len(BINS)), strict=True):
        axes.plot(SIZES, 100 * np.array(means[bins]), "o-", color=shade, markersize=4, label=f"{bins} bins")
    axes.plot(SIZES, 100 * np.array(means["debiased"]), "s--", color=ORANGE, markersize=4, label="15 bins, debiased")
    axes.set(xscale="log", ylim=(0, None), xlabel="number of samples", ylabel="mean ECE, percent")
    axes.set_title("A calibrated classifier: true ECE 0")
    axes.legend()


def draw_overlap(axes: plt.Axes) -> None:
    """Draw the distribution of the ECE of 1,000 samples for two classifiers."""
    rng = np.random.default_rng(1)
    edges = np.linspace(0, 8, 41)
    for sharpness, color, label in ((1.0, BLUE, "calibrated"), (1.1, ORANGE, "logits 10% too large")):
        found = [100 * metrics.ece(*draw_sample(rng, 1_000, sharpness=sharpness)) for _ in range(1_500)]
        exact = 0.0 if sharpness == 1.0 else 100 * metrics.ece(*draw_sample(rng, 1_000_000, sharpness=sharpness))
        axes.hist(found, edges, color=color, alpha=0.45, label=label)
        axes.axvline(exact, color=color, linestyle="--", linewidth=1.6)
    axes.set(xlabel="ECE of 1,000 samples, percent", ylabel="samples of 1,500", xlim=(-0.1, 8), ylim=(0, 195))
    axes.set_title("Dashed: the true ECE")
    axes.legend()


def main(path: str) -> None:
    """Write the figure."""
    with plt.rc_context(SETTINGS):
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.3), layout="constrained")
        draw_bias(left)
        draw_overlap(right)
        save(figure, path)


if __name__ == "__main__":
    main(sys.argv[1])
