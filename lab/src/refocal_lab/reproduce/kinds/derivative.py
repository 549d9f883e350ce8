"""Figure 1 of Kimura and Naganuma (2024): focal loss, its derivative, and the derivative as printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import refocal
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import Context, Kind, Numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NEAR_ONE = 1 - 1e-9


@dataclass(frozen=True)
class Parameters:
    """The curves.

    Attributes:
        gammas: One curve per panel each.
        points: Number of points per curve.
    """

    gammas: tuple[float, ...]
    points: int


def printed_gradient(p: np.ndarray, gamma: float) -> np.ndarray:
    """Equation 30 as printed: (1 - p)^gamma (gamma p (1 - p)^(gamma - 1) - (1 - p)^gamma log p).

    Reference: Kimura and Naganuma (2024), Eq. 30.
    """
    q = 1 - p
    return q**gamma * (gamma * p * q ** (gamma - 1) - q**gamma * np.log(p))


def derivative_size(p: np.ndarray, gamma: float) -> np.ndarray:
    """-d/dp of -(1 - p)^gamma log p, which is phi(p) / p."""
    return refocal.phi(p, gamma=gamma) / p


def compute(given: Parameters, _: Context) -> Numbers:
    """Compute the loss, its derivative, the printed expression, and their values near p = 1."""
    p = np.linspace(0, 1, given.points + 2)[1:-1]
    near_one = np.array([_NEAR_ONE])
    losses = [refocal.focal_partial(np.log(p), np.log1p(-p), gamma=gamma) for gamma in given.gammas]
    distance = [float(np.max(np.abs(loss + np.log(p)))) for loss in losses]
    values = {"gamma of cross-entropy": given.gammas[int(np.argmin(distance))]}
    for gamma in given.gammas:
        values[f"printed at 1({gamma:g})"] = float(printed_gradient(near_one, gamma)[0])
        values[f"derivative at 1({gamma:g})"] = float(derivative_size(near_one, gamma)[0])
    curves = {
        "p": p,
        "loss": losses,
        "derivative": [derivative_size(p, gamma) for gamma in given.gammas],
        "printed": [printed_gradient(p, gamma) for gamma in given.gammas],
    }
    return Numbers(values, curves)


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw the loss, the derivative and the printed expression."""
    figure.set_size_inches(style.WIDTH, 2.9)
    panels = figure.subplots(1, 3)
    shown = {
        "loss": ("loss (nats)", 4),
        "derivative": ("absolute derivative by p", 6),
        "printed": ("Eq. 30 as printed", 2),
    }
    for index, (ax, (name, (words, top))) in enumerate(zip(panels, shown.items(), strict=True)):
        for series, gamma in enumerate(given.gammas):
            ax.plot(numbers.curves["p"], numbers.curves[name][series], label=f"γ = {gamma:g}", **style.line(series))
        ax.set(xlim=(0, 1), ylim=(0, top), xlabel="probability p of the true class", ylabel=words)
        style.label_panel(ax, index)
    panels[0].legend(loc="upper right")


KIND = Kind(Parameters, compute, draw)
