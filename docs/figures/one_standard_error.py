"""Draw docs/figures/one_standard_error.svg: how the demo's calibrator is chosen.

python docs/figures/one_standard_error.py docs/figures/one_standard_error.svg
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np
from style import BLACK, BLUE, SETTINGS, WIDTH, save

import refocal
from refocal import demo

SHOWN = 8


def main(path: str) -> None:
    """Write the figure."""
    val = demo.load().select("val")
    choice = refocal.calibrate(val.scores, val.labels, gamma=demo.GAMMA).choice
    methods = choice.methods[:SHOWN]
    places = np.arange(len(methods))[::-1]
    with plt.rc_context(SETTINGS):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.1), layout="constrained")
        for place, method in zip(places, methods, strict=True):
            color = BLUE if method == choice.chosen else BLACK
            axes.errorbar(method.behind, place, xerr=method.error, fmt="o", color=color, capsize=3)
        axes.axvline(0, color="0.5", linestyle="--", linewidth=1.2)
        names = [f"{method.title} ({method.parameters:.3g})" for method in methods]
        axes.set(yticks=places, yticklabels=names, xlabel="cross-validated NLL above the lowest, ± one standard error")
        axes.tick_params(axis="y", length=0)
        axes.get_yticklabels()[methods.index(choice.chosen)].set_color(BLUE)
        save(figure, path)


if __name__ == "__main__":
    main(sys.argv[1])
