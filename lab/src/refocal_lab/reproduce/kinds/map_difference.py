"""Figure 7 of Komisarenko and Kull (2024): difference between the focal map and the nearest temperature scaling."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import refocal
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import Context, Kind, Numbers
from refocal_lab.reproduce.kinds.arrows import scale_probs
from refocal_lab.reproduce.simplex import closed_grid, draw_frame, to_plane

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEVELS = 7
_NEAR_CORNER = 0.75  # least top probability of points near a corner
_MARGIN = 1e-4  # about the smallest probability for logits in ±5


@dataclass(frozen=True)
class Parameters:
    """The maps and the grids.

    Attributes:
        gammas: One panel each.
        side: Points per side of the grid that is drawn.
        fine_side: Points per side of the grid for the largest differences.
        logit_range: Bound on the absolute value of the logits in the search for the nearest temperature.
    """

    gammas: tuple[float, ...]
    side: int
    fine_side: int
    logit_range: float


def difference(probs: np.ndarray, *, gamma: float, temperature: float) -> np.ndarray:
    """Compute the largest difference of a class probability between the focal map and temperature scaling."""
    return np.max(np.abs(refocal.posterior(probs, gamma=gamma) - scale_probs(probs, temperature)), axis=1)


def compute(given: Parameters, _: Context) -> Numbers:
    """Compute the differences on the drawn grid, and the largest ones on a finer grid."""
    drawn, fine = (closed_grid(side, margin=_MARGIN) for side in (given.side, given.fine_side))
    center = np.full((1, 3), 1 / 3)
    values: dict[str, float] = {}
    differences = []
    for gamma in given.gammas:
        temperature = refocal.closest_temperature(gamma, classes=3, logit_range=given.logit_range).temperature
        at = partial(difference, gamma=gamma, temperature=temperature)
        found = at(fine)
        largest, near = float(found.max()), float(found[fine.max(axis=1) >= _NEAR_CORNER].max())
        values |= {
            f"T({gamma:g})": temperature,
            f"largest({gamma:g})": largest,
            f"largest near a corner({gamma:g})": near,
            f"near a corner by largest({gamma:g})": near / largest,
            f"at the center({gamma:g})": float(at(center)[0]),
        }
        differences.append(at(drawn))
    return Numbers(values, {"points": to_plane(drawn), "difference": differences})


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw one triangle per gamma; darker means a larger difference."""
    figure.set_size_inches(style.WIDTH, 3.1)
    panels = figure.subplots(1, len(given.gammas), squeeze=False)[0]
    points = np.asarray(numbers.curves["points"])
    for index, (ax, gamma) in enumerate(zip(panels, given.gammas, strict=True)):
        percent = 100 * np.asarray(numbers.curves["difference"][index])
        draw_frame(ax)
        areas = ax.tricontourf(*points.T, percent, levels=_LEVELS, cmap="Blues")
        ax.tricontour(*points.T, percent, levels=areas.levels, colors="0.35", linewidths=0.4)
        bar = figure.colorbar(areas, ax=ax, shrink=0.8, pad=0.01)
        bar.set_label("largest difference (%)")
        bar.outline.set_linewidth(0.5)
        temperature = numbers.values[f"T({gamma:g})"]
        style.label_panel(ax, index, f"γ = {gamma:g}, T = {temperature:.3f}")


KIND = Kind(Parameters, compute, draw)
