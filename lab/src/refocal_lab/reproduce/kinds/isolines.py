"""Figure 4 of Komisarenko and Kull (2024): isolines of the expected loss on the simplex of three classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import refocal
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import Context, Kind, Numbers
from refocal_lab.reproduce.simplex import draw_frame, from_plane, interior_grid, to_plane

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BISECTIONS = 40


@dataclass(frozen=True)
class Parameters:
    """Losses and levels.

    Attributes:
        truth: True posterior.
        gammas: Gammas of the proper parts of focal loss, in addition to the Brier score and cross-entropy.
        percentiles: Percentiles of the expected loss over the simplex, one isoline each.
        side: Points per side of the grid for the percentiles.
        directions: Number of points per isoline.
    """

    truth: tuple[float, ...]
    gammas: tuple[float, ...]
    percentiles: tuple[float, ...]
    side: int
    directions: int


def risks(truth: np.ndarray, gammas: tuple[float, ...]) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Make functions that compute the expected losses of predictions (n, 3)."""

    def proper(gamma: float) -> Callable[[np.ndarray], np.ndarray]:
        def risk(probs: np.ndarray) -> np.ndarray:
            labels = [np.full(len(probs), label) for label in range(3)]
            losses = [refocal.proper_focal_partial(probs, label, gamma=gamma) for label in labels]
            return np.stack(losses, axis=-1) @ truth

        return risk

    return {
        "Brier score": lambda probs: np.sum(probs**2, axis=1) - 2 * probs @ truth + 1,
        "cross-entropy": lambda probs: -np.log(probs) @ truth,
        **{f"proper part, γ = {gamma:g}": proper(gamma) for gamma in gammas},
    }


def isoline(risk: Callable[[np.ndarray], np.ndarray], level: float, truth: np.ndarray, directions: int) -> np.ndarray:
    """Find the distances from the true posterior at which the risk reaches a level; NaN if the triangle ends before.

    The risk of a proper loss grows along every ray from the true posterior, so bisection finds the only such distance.
    """
    angle = 2 * np.pi * np.arange(directions) / directions
    unit = np.column_stack([np.cos(angle), np.sin(angle)])
    slope = from_plane(unit) - from_plane(np.zeros(2))
    with np.errstate(divide="ignore"):
        edge = np.min(np.where(slope < 0, -truth / slope, np.inf), axis=1) * (1 - 1e-9)

    def at(distance: np.ndarray) -> np.ndarray:
        return risk(truth + slope * distance[:, None])

    low, high = np.zeros(directions), edge
    reached = at(edge) >= level
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        above = at(middle) >= level
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.where(reached, high, np.nan)


def compute(given: Parameters, context: Context) -> Numbers:
    """Compute the isolines of each loss, the place of its minimum, and how far its inner isoline is from a circle."""
    truth, grid = np.array(given.truth), interior_grid(given.side)
    values, lines = {}, {}
    for name, risk in risks(truth, given.gammas).items():
        context.progress(name)
        found = risk(grid)
        values[f"distance of the minimum({name})"] = float(np.max(np.abs(grid[np.argmin(found)] - truth)))
        levels = np.percentile(found, given.percentiles)
        radii = [isoline(risk, level, truth, given.directions) for level in levels]
        values[f"longest by shortest radius({name})"] = float(np.max(radii[0]) / np.min(radii[0]))
        lines[name] = [[None if np.isnan(r) else float(r) for r in line] for line in radii]
    return Numbers(values, {"radii": lines})


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw one triangle per loss."""
    count = len(numbers.curves["radii"])
    figure.set_size_inches(style.WIDTH * 0.85, 2.65 * -(-count // 2))
    panels = figure.subplots(-(-count // 2), 2).ravel()
    for ax in panels[count:]:
        ax.axis("off")
    center = to_plane(np.array(given.truth))
    for index, (ax, (name, lines)) in enumerate(zip(panels, numbers.curves["radii"].items(), strict=False)):
        draw_frame(ax)
        for series, (line, percentile) in enumerate(zip(lines, given.percentiles, strict=True)):
            radii = np.array(line, dtype=float)
            angle = 2 * np.pi * np.arange(len(radii)) / len(radii)
            around = center + radii[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
            ax.plot(*np.vstack([around, around[:1]]).T, label=f"{percentile:g} %", **style.line(series, linewidth=1.2))
        ax.plot(*center, marker="+", color="black", markersize=5)
        style.label_panel(ax, index, name)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(given.percentiles))


KIND = Kind(Parameters, compute, draw)
