"""Draw docs/figures/recovery.svg: calibration error as trained, after the closed form, and after a fitted temperature.

python docs/figures/recovery.py docs/figures/recovery.svg

The numbers of the synthetic density and of SST are stored results of the lab; those of CIFAR-10 and SVHN are measured
from the logits in the zoo.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from style import BLACK, BLUE, ORANGE, SETTINGS, WIDTH, save

import refocal
from refocal import metrics
from refocal.calibrators import TemperatureScaling
from refocal.predictions import Predictions

LAB = Path(__file__).parents[2] / "lab"


class Errors(NamedTuple):
    """Mean ECE over the seeds of one network, in percent."""

    title: str
    raw: float
    mapped: float
    fitted: float


def of_synthetic(gamma: int) -> Errors:
    """Read the result on a known density (Charoenphakdee et al., 2021, Figure 3, on our data)."""
    values = read_values("001-fig-3")
    return Errors(
        f"known density, γ = {gamma}", *(100 * values[f"ECE({how}, {gamma})"] for how in ("raw", "psi", "TS"))
    )


def of_sst(gamma: int) -> Errors:
    """Read the result on SST."""
    values = read_values("002-text-sst")
    numbers = (values[f"ece_15(sst tree-lstm, focal {gamma}, {how})"] for how in ("raw", "psi", "ts-nll"))
    return Errors(f"SST, Tree LSTM, γ = {gamma}", *numbers)


def read_values(name: str) -> dict[str, float]:
    """Read the numbers of a reproduced figure."""
    return json.loads((LAB / f"experiments/results/{name}/small/numbers.json").read_text(encoding="utf-8"))["values"]


def of_zoo(title: str, stem: str, gamma: int) -> Errors:
    """Measure all seeds of a network of the zoo."""
    found = []
    for file in sorted((LAB / "zoo").glob(f"{stem}-focal-g{gamma}-s?.npz")):
        predictions = Predictions.read(file)
        val, test = predictions.select("val"), predictions.select("test")
        logits = test.scores.astype(np.float64)
        fitted = TemperatureScaling().fit(val.scores.astype(np.float64), val.labels).predict_proba(logits)
        mapped = refocal.posterior_from_logits(logits, gamma=gamma)
        raw = refocal.posterior_from_logits(logits, gamma=0)
        found.append([100 * metrics.ece(probs, test.labels) for probs in (raw, mapped, fitted)])
    return Errors(f"{title}, γ = {gamma}", *np.mean(found, axis=0))


def main(path: str) -> None:
    """Write the figure."""
    rows = [
        *(of_synthetic(gamma) for gamma in (1, 5)),
        *(of_sst(gamma) for gamma in (1, 2, 3)),
        *(of_zoo("SVHN, ResNet-20", "svhn-resnet20", gamma) for gamma in (1, 2, 3)),
        *(of_zoo("CIFAR-10, ResNet-20", "cifar10-resnet20", gamma) for gamma in (1, 2, 3)),
    ]
    with plt.rc_context(SETTINGS):
        figure, axes = plt.subplots(figsize=(WIDTH, 4.2), layout="constrained")
        places = np.arange(len(rows))[::-1]
        marks = (
            ("raw", "o", ORANGE, "softmax"),
            ("mapped", "D", BLUE, "Ψ, no data"),
            ("fitted", "|", BLACK, "T, fitted"),
        )
        axes.hlines(places, *np.transpose([(row.raw, row.mapped) for row in rows]), color="0.8", linewidth=3, zorder=0)
        for name, marker, color, label in marks:
            values = [getattr(row, name) for row in rows]
            axes.scatter(values, places, marker=marker, color=color, s=70 if marker == "|" else 36, label=label)
        axes.set(
            yticks=places, yticklabels=[row.title for row in rows], xlim=(0, 26), xlabel="ECE on test data, percent"
        )
        axes.tick_params(axis="y", length=0)
        axes.legend(loc="lower right")
        save(figure, path)


if __name__ == "__main__":
    main(sys.argv[1])
