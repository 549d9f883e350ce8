"""Draw docs/figures/flatness.svg: curvature and calibration of ResNet-20 on CIFAR-10 by gamma.

python docs/figures/flatness.py docs/figures/flatness.svg

The numbers are the lab's, of 26 trained networks (`refocal-lab reproduce 004-fig-2-zoo`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from style import BLACK, BLUE, ORANGE, SETTINGS, WIDTH, save

RESULTS = Path(__file__).parents[2] / "lab/experiments/results/004-fig-2-zoo/small/numbers.json"
NETWORK = "cifar10 resnet20"


def draw(axes: plt.Axes, runs: list[dict[str, float]], key: str, *, factor: float = 1.0, **style: str) -> None:
    """Draw one mark per network, and a line through the means."""
    gammas = sorted({run["gamma"] for run in runs})
    means = [factor * np.mean([run[key] for run in runs if run["gamma"] == gamma]) for gamma in gammas]
    label = style.pop("label", None)
    axes.plot(gammas, means, linewidth=1.4, label=label, **style)
    for run in runs:
        axes.plot(run["gamma"], factor * run[key], ".", color=style["color"], markersize=5)
    axes.set(xlabel="γ of training", ylim=(0, None), xticks=gammas)


def main(path: str) -> None:
    """Write the figure."""
    curves = json.loads(RESULTS.read_text(encoding="utf-8"))["curves"]
    runs = [run for run in curves["runs"] if run["network"] == NETWORK]
    with plt.rc_context(SETTINGS):
        figure, panels = plt.subplots(1, 3, figsize=(WIDTH, 2.9), layout="constrained")
        for axes, key, title in zip(panels, ("lambda_max", "trace"), ("λmax", "trace"), strict=False):
            draw(axes, runs, f"{key}_cross_entropy", color=ORANGE, linestyle="--", label="cross-entropy")
            draw(axes, runs, f"{key}_trained", color=BLUE, label="training loss")
            axes.set_title(f"{title} of the Hessian")
            axes.set_ylabel(title)
        panels[0].legend(loc="lower left", handlelength=1.8)
        draw(panels[2], runs, "ece", factor=100, color=BLACK)
        panels[2].set(title="Calibration error", ylabel="ECE of the softmax, percent")
        save(figure, path)


if __name__ == "__main__":
    main(sys.argv[1])
