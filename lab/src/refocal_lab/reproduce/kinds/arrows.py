"""Figure 5 of Komisarenko and Kull (2024): the focal map and the nearest temperature scaling as arrows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import refocal
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import Context, Kind, Numbers
from refocal_lab.reproduce.simplex import draw_frame, interior_grid, to_plane

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Parameters:
    """The maps and the grid of arrows.

    Attributes:
        gammas: One column of panels each.
        recorded: Further gammas whose nearest temperatures are recorded.
        side: Arrows start at the inner points of a grid with this many steps per side.
        logit_range: Bound on the absolute value of the logits in the search for the nearest temperature.
    """

    gammas: tuple[float, ...]
    recorded: tuple[float, ...]
    side: int
    logit_range: float


def scale_probs(probs: np.ndarray, temperature: float) -> np.ndarray:
    """Apply temperature scaling to probabilities."""
    return refocal.posterior_from_logits(np.log(probs) / temperature, gamma=0)


def compute(given: Parameters, _: Context) -> Numbers:
    """Apply both maps to the grid, and count arrows that lower the largest probability."""
    start = interior_grid(given.side)
    values, ends = {}, {}
    for gamma in (*given.gammas, *given.recorded):
        values[f"T({gamma:g})"] = refocal.closest_temperature(
            gamma, classes=3, logit_range=given.logit_range
        ).temperature
    for gamma in given.gammas:
        focal = refocal.posterior(start, gamma=gamma)
        values[f"arrows that lower confidence({gamma:g})"] = float(
            np.sum(focal.max(axis=1) < start.max(axis=1) - 1e-12)
        )
        ends[f"{gamma:g}"] = {
            "focal": to_plane(focal),
            "temperature": to_plane(scale_probs(start, values[f"T({gamma:g})"])),
        }
    return Numbers(values, {"start": to_plane(start), "ends": ends})


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw focal maps above, temperature scalings below."""
    figure.set_size_inches(style.WIDTH, 6.1)
    panels = figure.subplots(2, len(given.gammas), squeeze=False)
    start = np.asarray(numbers.curves["start"])
    for column, gamma in enumerate(given.gammas):
        names = {"focal": f"focal map, γ = {gamma:g}", "temperature": f"T = {numbers.values[f'T({gamma:g})']:.3f}"}
        for row, (kind, name) in enumerate(names.items()):
            ax = panels[row, column]
            move = np.asarray(numbers.curves["ends"][f"{gamma:g}"][kind]) - start
            draw_frame(ax)
            ax.plot(*start.T, linestyle="none", marker=".", markersize=2.5, color=style.GUIDE)
            ax.quiver(
                *start.T, *move.T, angles="xy", scale_units="xy", scale=1, width=0.0045, color=style.color(row + 1)
            )
            style.label_panel(ax, row * len(given.gammas) + column, name)


KIND = Kind(Parameters, compute, draw)
