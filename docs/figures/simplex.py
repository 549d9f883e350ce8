"""Draw docs/figures/simplex.svg: how focal loss moves three-class posteriors.

python docs/figures/simplex.py docs/figures/simplex.svg
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np
from style import BLUE, SETTINGS, WIDTH, save

import refocal

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
STEPS = 12


def draw(axes: plt.Axes, gamma: float) -> None:
    """Draw an arrow from each posterior of a grid to the softmax at the minimum."""
    rows = [(i, j, STEPS - i - j) for i in range(1, STEPS) for j in range(1, STEPS - i)]
    posterior = np.array(rows) / STEPS
    tails, heads = posterior @ CORNERS, refocal.minimizer(posterior, gamma=gamma) @ CORNERS
    axes.add_patch(plt.Polygon(CORNERS, closed=True, fill=False, edgecolor="0.4"))
    for left, right in ((0, 1), (0, 2), (1, 2)):  # where two classes tie for the top
        axes.plot(*zip((CORNERS[left] + CORNERS[right]) / 2, CORNERS.mean(axis=0), strict=True), color="0.8", zorder=0)
    options = {"angles": "xy", "scale_units": "xy", "scale": 1, "color": BLUE, "width": 0.006, "minlength": 0.1}
    axes.quiver(*tails.T, *(heads - tails).T, **options)
    for name, (x, y), shift in zip("123", CORNERS, (-0.06, -0.06, 0.02), strict=True):
        axes.text(x, y + shift, f"class {name}", ha="center", va="bottom" if shift > 0 else "top")
    axes.set(xlim=(-0.08, 1.08), ylim=(-0.14, 0.98), aspect="equal", title=f"γ = {gamma:g}")
    axes.axis("off")


def main(path: str) -> None:
    """Write the figure."""
    with plt.rc_context(SETTINGS):
        figure, panels = plt.subplots(1, 2, figsize=(WIDTH, 3.4), layout="constrained")
        for axes, gamma in zip(panels, (1, 3), strict=True):
            draw(axes, gamma)
        save(figure, path)


if __name__ == "__main__":
    main(sys.argv[1])
