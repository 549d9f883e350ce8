"""Draw docs/figures/minimizer.svg: what focal loss leads to, and when that is over- or underconfident.

python docs/figures/minimizer.py docs/figures/minimizer.svg
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np
from style import RED, SETTINGS, SKY, WIDTH, save, shades

import refocal

GAMMAS = (0, 1, 2, 3, 5)


def draw_minimizer(axes: plt.Axes) -> None:
    """Draw the score of class 1 at the minimum against its posterior, two classes."""
    posterior = np.linspace(0, 1, 401)
    rows = np.stack([posterior, 1 - posterior], axis=1)
    for gamma, shade in zip(GAMMAS, shades(len(GAMMAS)), strict=True):
        style = {"color": "0.5", "linestyle": "--"} if gamma == 0 else {"color": shade}
        score = refocal.minimizer(rows, gamma=gamma)[:, 0]
        axes.plot(posterior, score, label=f"γ = {gamma}", linewidth=1.6, **style)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", title="Two classes")
    axes.set(xlabel="true probability of class 1", ylabel="softmax score at the minimum")
    axes.legend(loc="upper left")


def draw_regions(axes: plt.Axes) -> None:
    """Draw the two thresholds of the top score against gamma."""
    gammas = np.geomspace(0.01, 10, 200)
    over, under = np.transpose([refocal.thresholds(float(gamma)) for gamma in gammas])
    axes.fill_between(gammas, under, 1, color=SKY, alpha=0.35, linewidth=0)
    axes.fill_between(gammas, 0, over, color=RED, alpha=0.35, linewidth=0)
    axes.plot(gammas, under, color="black", linewidth=1.2)
    axes.plot(gammas, over, color="black", linewidth=1.2)
    axes.text(5, 0.65, "underconfident", ha="center")
    axes.text(3.4, 0.155, "either", ha="center", va="center")
    axes.text(2.6, 0.03, "overconfident", ha="center", va="center")
    axes.text(9.9, under[-1] + 0.015, "τ_uc", ha="right", va="bottom")
    axes.text(9.9, over[-1] + 0.012, "τ_oc", ha="right", va="bottom")
    axes.set(xlim=(0, 10), ylim=(0, 1), title="Any number of classes", xlabel="γ", ylabel="top softmax score")


def main(path: str) -> None:
    """Write the figure."""
    with plt.rc_context(SETTINGS):
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.5), layout="constrained")
        draw_minimizer(left)
        draw_regions(right)
        save(figure, path)


if __name__ == "__main__":
    main(sys.argv[1])
