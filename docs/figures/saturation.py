"""Draw docs/figures/saturation.svg: the map in float32 at saturated logits, as written in papers and as computed here.

python docs/figures/saturation.py docs/figures/saturation.svg
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np
from style import BLUE, ORANGE, SETTINGS, WIDTH, save

import refocal

GAMMA = 3
GAPS = np.linspace(0, 22, 221)


def plain(logits: np.ndarray) -> np.ndarray:
    """Compute the map from probabilities by the formula of the paper."""
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        phi = (1 - p) ** GAMMA - GAMMA * (1 - p) ** (GAMMA - 1) * p * np.log(p)
        h = p / phi
        return h / h.sum(axis=1, keepdims=True)


def main(path: str) -> None:
    """Write the figure."""
    logits = np.stack([GAPS, np.zeros_like(GAPS), np.zeros_like(GAPS)], axis=1)
    exact = refocal.posterior_from_logits(logits, gamma=GAMMA)[:, 1]  # float64
    narrow = logits.astype(np.float32)
    with plt.rc_context(SETTINGS):
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.2), layout="constrained", sharex=True)
        for values, color, style, label in (
            (refocal.posterior_from_logits(narrow, gamma=GAMMA)[:, 1], BLUE, "-", "refocal"),
            (plain(narrow)[:, 1], ORANGE, "--", "formula as printed"),
        ):
            left.plot(GAPS, values, style, color=color, label=label, linewidth=1.8)
            with np.errstate(divide="ignore", invalid="ignore"):
                error = np.abs(values.astype(np.float64) - exact) / exact
            right.plot(GAPS, error, style, color=color, linewidth=1.4)
        end = GAPS[np.isnan(plain(narrow)[:, 0])].min()
        for axes in (left, right):
            axes.axvline(end, color="0.7", linestyle=":", linewidth=1.2)
        left.text(end + 0.3, 1e-3, "0 here,\nNaN for the\ntop class", color=ORANGE, va="top")
        left.set(yscale="log", ylabel="Ψ of the second class")
        left.legend(loc="lower left")
        left.set_yticks(10.0 ** np.arange(-35, 1, 5))
        right.set(yscale="log", ylim=(1e-9, 3), ylabel="relative error")
        right.set_yticks(10.0 ** np.arange(-9, 1))
        for axes in (left, right):
            axes.minorticks_off()  # which of them are drawn depends on the version of Matplotlib
        figure.supxlabel("lead of the top logit over two others, float32", fontsize=10)
        save(figure, path)


if __name__ == "__main__":
    main(sys.argv[1])
