"""Draw docs/figures/limits.svg: confidence limits of ECE by inverting a test, and by bootstrap percentiles.

python docs/figures/limits.py docs/figures/limits.svg
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np
from ece_bias import draw_sample
from style import BLUE, ORANGE, RED, SETTINGS, WIDTH, save

from refocal import metrics

SAMPLES = 1_000
REPEATS = 40
RESAMPLES = 300


def bootstrap(probs: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Find the limits that percentiles of resampled rows give."""
    chosen = rng.integers(0, len(labels), (RESAMPLES, len(labels)))
    low, high = np.quantile([metrics.ece(probs[rows], labels[rows]) for rows in chosen], [0.025, 0.975])
    return float(low), float(high)


def draw(axes: plt.Axes, limits: np.ndarray, values: np.ndarray, color: str) -> None:
    """Draw one line per sample; those that miss 0 in another color."""
    for place, ((low, high), value) in enumerate(zip(100 * limits, 100 * values, strict=True)):
        axes.plot([low, high], [place, place], color=RED if low > 0 else color, linewidth=2)
        axes.plot(value, place, "|", color="black", markersize=6)
    axes.axvline(0, color="0.4", linestyle="--", linewidth=1.2)
    axes.set(xlim=(-0.3, 10), xlabel="ECE, percent", yticks=[], ylim=(-1, REPEATS))


def main(path: str) -> None:
    """Write the figure."""
    rng = np.random.default_rng(0)
    values, inverted, resampled = [], [], []
    for seed in range(REPEATS):
        probs, labels = draw_sample(rng, SAMPLES)
        value, low, high = metrics.interval(metrics.ece, probs, labels, resamples=RESAMPLES, seed=seed)
        values.append(value)
        inverted.append((low, high))
        resampled.append(bootstrap(probs, labels, rng))
    with plt.rc_context(SETTINGS):
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.6), layout="constrained", sharey=True)
        draw(left, np.array(inverted), np.array(values), BLUE)
        draw(right, np.array(resampled), np.array(values), ORANGE)
        left.set(title="refocal: an inverted test", ylabel=f"{REPEATS} samples of {SAMPLES:,} rows")
        right.set(title="bootstrap percentiles")
        save(figure, path)


if __name__ == "__main__":
    main(sys.argv[1])
