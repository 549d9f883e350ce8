"""Draw docs/figures/properness.svg: expected losses around a known posterior, and the posterior maps of losses.

python docs/figures/properness.py docs/figures/properness.svg
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np
from style import BLACK, BLUE, GREEN, ORANGE, RED, SETTINGS, SKY, WIDTH, save

import refocal
from refocal.maps.inverse_focal import inverse_focal_posterior_from_logits

ETA, GAMMA = 0.8, 2


def draw_expected(axes: plt.Axes) -> None:
    """Draw what a prediction costs on average if class 1 has the probability 0.8, each curve above its minimum."""
    q = np.linspace(0.4, 0.98, 581)
    rows = np.stack([q, 1 - q], axis=1)
    proper = [refocal.proper_focal_partial(rows, np.full(len(q), label), gamma=GAMMA) for label in (0, 1)]
    focal = [refocal.focal_partial(np.log(p), np.log1p(-p), gamma=GAMMA) for p in rows.T]
    for (first, second), color, style, label in (
        (-np.log(rows.T), BLACK, "-", "cross-entropy"),
        (focal, ORANGE, "--", f"focal loss, γ = {GAMMA}"),
        (proper, BLUE, "-.", "its proper part"),
    ):
        expected = ETA * first + (1 - ETA) * second
        best = np.argmin(expected)
        axes.plot(q, expected, style, color=color, label=label, linewidth=1.6)
        axes.plot(q[best], expected[best], "o", color=color)
    axes.axvline(ETA, color="0.7", linestyle=":", linewidth=1.2)
    axes.set(xlim=(0.4, 1), ylim=(0, 1.25), xlabel="predicted probability of class 1", ylabel="expected loss")
    axes.set_title(f"True probability {ETA}")
    axes.legend(loc="upper left")


def draw_maps(axes: plt.Axes) -> None:
    """Draw the posterior that belongs to a score, two classes."""
    q = np.linspace(0.0005, 0.9995, 999)
    rows = np.stack([q, 1 - q], axis=1)
    logits = np.log(rows)
    for probs, color, style, label in (
        (rows, BLACK, ":", "cross-entropy"),
        (refocal.posterior(rows, gamma=GAMMA), ORANGE, "--", "focal, γ = 2"),
        (refocal.posterior(rows, gamma=GAMMA, detached=True), RED, "-", "the same, detached"),
        (inverse_focal_posterior_from_logits(logits, gamma=1), GREEN, "-.", "inverse focal, γ = 1"),
        (refocal.posterior(rows, gamma=0, weight=[3, 1]), SKY, "-", "class weights 3 : 1"),
    ):
        axes.plot(q, probs[:, 0], style, color=color, label=label, linewidth=1.6)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="softmax score of class 1", ylabel="p(class 1 | x)")
    axes.set_title("Posterior maps, two classes")
    axes.legend(loc="upper left", fontsize=8, handlelength=1.8, borderaxespad=0.2, labelspacing=0.25)


def main(path: str) -> None:
    """Write the figure."""
    with plt.rc_context(SETTINGS):
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.5), layout="constrained")
        draw_expected(left)
        draw_maps(right)
        save(figure, path)


if __name__ == "__main__":
    main(sys.argv[1])
