"""Draw docs/figures/psi.svg: the top posterior probability against the top softmax score.

python docs/figures/psi.py docs/figures/psi.svg
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np

import refocal

GAMMAS = (0, 0.5, 1, 2, 3, 5)


def draw(axes, classes):
    """Curves for a row whose other classes share the rest evenly."""
    top = np.linspace(1 / classes, 1, 400)
    rest = np.repeat((1 - top)[:, None] / (classes - 1), classes - 1, axis=1)
    rows = np.concatenate([top[:, None], rest], axis=1)
    shades = plt.get_cmap("viridis")(np.linspace(0.85, 0.05, len(GAMMAS)))
    for gamma, shade in zip(GAMMAS, shades, strict=True):
        mapped = refocal.posterior(rows, gamma=gamma)[:, 0]
        style = {"color": "0.5", "linestyle": "--"} if gamma == 0 else {"color": shade}
        axes.plot(top, mapped, label=f"γ = {gamma:g}", linewidth=1.6, **style)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="top softmax score", title=f"{classes:,} classes")
    axes.spines[["top", "right"]].set_visible(False)


def main(path: str) -> None:
    """Write the figure."""
    with plt.rc_context({"svg.hashsalt": "refocal", "font.size": 10, "axes.titlesize": 10}):
        figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.5), sharey=True, layout="constrained")
        draw(left, 2)
        draw(right, 1000)
        left.set_ylabel("top posterior probability p(y|x)")
        right.legend(frameon=False, loc="lower right")
        figure.savefig(path, metadata={"Date": None} if path.endswith("svg") else None, dpi=150)


if __name__ == "__main__":
    main(sys.argv[1])
