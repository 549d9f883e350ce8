"""What the figures of the documentation share: size, colors, and how a file is written."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np

WIDTH = 7.2  # inches: 700 px on the page
# Okabe and Ito's colors, which people with any common color blindness can tell apart
BLACK, ORANGE, SKY, GREEN, BLUE, RED = "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00"
SETTINGS = {
    "svg.hashsalt": "refocal",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "savefig.facecolor": "white",
}


def shades(count: int) -> np.ndarray:
    """Colors of an ordered family of curves, from light to dark."""
    return plt.get_cmap("viridis")(np.linspace(0.85, 0.05, count))


def save(figure: plt.Figure, path: str) -> None:
    """Write the figure, with the same bytes each time."""
    figure.savefig(path, metadata={"Date": None} if path.endswith("svg") else None, dpi=150)
    plt.close(figure)
