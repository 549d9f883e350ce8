"""The simplex of three classes: grids of points, and their coordinates in the plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])


def interior_grid(side: int) -> np.ndarray:
    """List the probabilities that are positive multiples of 1 / side, shape (points, 3).

    Example:
        >>> interior_grid(4).tolist()
        [[0.25, 0.25, 0.5], [0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]
    """
    first, second = (axis.ravel() for axis in np.meshgrid(np.arange(1, side), np.arange(1, side), indexing="ij"))
    inside = first + second < side
    first, second = first[inside], second[inside]
    return np.column_stack([first, second, side - first - second]) / side


def closed_grid(side: int, *, margin: float) -> np.ndarray:
    """List the multiples of 1 / side, edges included, moved toward the center so that no value is below the margin."""
    inner = interior_grid(side + 3) * (side + 3) - 1
    return margin + (1 - 3 * margin) * inner / side


def to_plane(probs: np.ndarray) -> np.ndarray:
    """Map probabilities to an equilateral triangle with sides of length 1, shape (..., 2)."""
    return np.asarray(probs) @ _CORNERS


def from_plane(points: np.ndarray) -> np.ndarray:
    """Map points in the plane to probabilities; they are negative outside of the triangle."""
    third = points[..., 1] / _CORNERS[2, 1]
    second = points[..., 0] - third / 2
    return np.stack([1 - second - third, second, third], axis=-1)


def draw_frame(ax: Axes) -> None:
    """Draw the triangle and the names of its corners."""
    corners = np.vstack([_CORNERS, _CORNERS[:1]])
    ax.plot(*corners.T, color="black", linewidth=0.8)
    for index, (x, y) in enumerate(_CORNERS):
        below = y == 0
        ax.text(
            x,
            y - 0.03 if below else y + 0.02,
            f"class {index + 1}",
            fontsize=7.5,
            ha="center",
            va="top" if below else "bottom",
        )
    ax.set(xlim=(-0.12, 1.12), ylim=(-0.09, 0.97), aspect="equal")
    ax.axis("off")
