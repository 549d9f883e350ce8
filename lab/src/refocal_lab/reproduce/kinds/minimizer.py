"""The top score of a focal risk minimizer against the top posterior.

Reference: Charoenphakdee et al. (2021), Figure 2; Mukhoti et al. (2020), Figure 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import refocal
from refocal import _check
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import Context, Kind, Numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_AXES = {"score": "top score of the minimizer, max q", "posterior": "top posterior probability, max η"}


@dataclass(frozen=True)
class Parameters:
    """The curves; there is one panel per number of classes.

    Attributes:
        classes: Numbers of classes; all classes except the first are equally likely.
        gammas: One curve each.
        points: Number of points per curve.
        horizontal: Horizontal axis: "score" or "posterior".
        whole_axis: Whether the axis starts at 0; the first class is the top class only above 1 / classes.
        posteriors: Top posteriors, for two classes, whose scores are recorded.
    """

    classes: tuple[int, ...]
    gammas: tuple[float, ...]
    points: int
    horizontal: str
    whole_axis: bool
    posteriors: tuple[float, ...]


def rows(top: np.ndarray, classes: int) -> np.ndarray:
    """Make rows with these probabilities of the first class; the other classes are equally likely."""
    rest = np.repeat((1 - top)[:, None] / (classes - 1), classes - 1, axis=1)
    return np.concatenate([top[:, None], rest], axis=1)


def compute(given: Parameters, _: Context) -> Numbers:
    """Compute the curves, the scores of some posteriors, and by how much a score exceeds its posterior."""
    _check.one_of(given.horizontal, "horizontal", tuple(_AXES))
    change = refocal.posterior if given.horizontal == "score" else refocal.minimizer
    values, panels = {}, []
    for classes in given.classes:
        top = np.linspace(0 if given.whole_axis else 1 / classes, 1, given.points)
        curves = [change(rows(top, classes), gamma=gamma)[:, 0] for gamma in given.gammas]
        panels.append({"top": top, "curves": curves})
        sign = 1 if given.horizontal == "score" else -1
        at_top = top >= 1 / classes  # below, another class is the top class
        for gamma, curve in zip(given.gammas, curves, strict=True):
            values[f"excess({classes}, {gamma:g})"] = float(np.max(sign * (top - curve)[at_top]))
    for posterior in given.posteriors:
        for gamma in given.gammas:
            score = refocal.minimizer(np.array([posterior, 1 - posterior]), gamma=gamma)[0]
            values[f"q({posterior:g}, {gamma:g})"] = float(score)
    return Numbers(values, {"panels": panels})


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw one square panel per number of classes."""
    count = len(given.classes)
    figure.set_size_inches(style.WIDTH * (0.98 if count > 1 else 0.55), 3.5)
    panels = figure.subplots(1, count, squeeze=False)[0]
    vertical = next(name for name in _AXES if name != given.horizontal)
    for index, (ax, classes, panel) in enumerate(zip(panels, given.classes, numbers.curves["panels"], strict=True)):
        ax.plot([0, 1], [0, 1], color=style.GUIDE, linewidth=0.8)
        for series, (gamma, curve) in enumerate(zip(given.gammas, panel["curves"], strict=True)):
            ax.plot(panel["top"], curve, label=f"γ = {gamma:g}", **style.line(series))
        names = {"score": "score q of the minimizer", "posterior": "posterior probability η"}
        axes = names if given.whole_axis else _AXES
        ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel=axes[given.horizontal])
        if index == 0:
            ax.set_ylabel(axes[vertical])
        if count > 1:
            style.label_panel(ax, index, f"{classes:,} classes")
    panels[-1].legend(loc="lower right" if given.horizontal == "score" else "upper left")


KIND = Kind(Parameters, compute, draw)
