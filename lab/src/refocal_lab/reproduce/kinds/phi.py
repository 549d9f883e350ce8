"""phi^gamma, the ratio of the gradients of focal loss and cross-entropy.

Reference: Charoenphakdee et al. (2021), Figure 1; Mukhoti et al. (2020), Figure 4a.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import refocal
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import Context, Kind, Numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_UNDER, _BETWEEN, _OVER = "0.94", "0.87", "0.78"
_STRIP = -0.14  # lower limit of the axis, to make room for the names of the regions


@dataclass(frozen=True)
class Parameters:
    """The curves.

    Attributes:
        gammas: One curve each.
        points: Number of points per curve.
        regions_of: Gamma whose overconfident and underconfident regions are shaded; 0 for none.
        name: Label of the vertical axis.
        evaluated_at: Probabilities at which the values are recorded.
    """

    gammas: tuple[float, ...]
    points: int
    regions_of: float
    name: str
    evaluated_at: tuple[float, ...]


def compute(given: Parameters, _: Context) -> Numbers:
    """Compute the curves, their thresholds, and their values at some probabilities."""
    p = np.linspace(0, 1, given.points)
    values = {}
    for gamma in given.gammas:
        for at, found in zip(given.evaluated_at, refocal.phi(np.array(given.evaluated_at), gamma=gamma), strict=True):
            values[f"phi({at:g}, {gamma:g})"] = float(found)
        if gamma > 0:
            values[f"tau_oc({gamma:g})"], values[f"tau_uc({gamma:g})"] = refocal.thresholds(gamma)
    return Numbers(values, {"p": p, "phi": [refocal.phi(p, gamma=gamma) for gamma in given.gammas]})


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw one panel."""
    figure.set_size_inches(style.WIDTH * 0.72, 3.3)
    ax = figure.subplots()
    if given.regions_of:
        _shade(ax, numbers.values, given.regions_of)
    ax.axhline(1, color=style.GUIDE, linewidth=0.8)
    for index, (gamma, curve) in enumerate(zip(given.gammas, numbers.curves["phi"], strict=True)):
        ax.plot(numbers.curves["p"], curve, label=f"γ = {gamma:g}", **style.line(index))
    top = max(map(max, numbers.curves["phi"]))
    ax.set(xlim=(0, 1), ylim=(_STRIP if given.regions_of else 0, 1.15 * top))
    # The regions refer to the largest score, whatever the true class.
    ax.set(xlabel="top score" if given.regions_of else "probability of the true class", ylabel=given.name)
    ax.legend(loc="upper right")


def _shade(ax: Axes, values: dict[str, float], gamma: float) -> None:
    low, high = values[f"tau_oc({gamma:g})"], values[f"tau_uc({gamma:g})"]
    regions = (
        (0, low, _OVER, "over"),
        (low, high, _BETWEEN, "depends"),
        (high, 1, _UNDER, "underconfident"),
    )
    for start, end, shade, words in regions:
        ax.axvspan(start, end, color=shade, linewidth=0, zorder=0)
        ax.text((start + end) / 2, _STRIP / 2, words, ha="center", va="center", fontsize=7.5)
    for tau, name in ((low, "oc"), (high, "uc")):
        ax.axvline(tau, color=style.GUIDE, linewidth=0.8)
        ax.annotate(f"$τ_{{{name}}}$", (tau, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom")


KIND = Kind(Parameters, compute, draw)
