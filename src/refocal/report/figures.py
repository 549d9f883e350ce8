"""Matplotlib figures of a report: each draws on the Axes it is given and changes no global setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from refocal import _check
from refocal.report.live import binary_map
from refocal.report.record import Diagram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

BEFORE, AFTER = "#b04a06", "#0a649f"  # told apart by color-blind readers, and the page's own
_BAND, _LINE = "0.88", "0.45"


def draw_reliability(ax: Axes, diagram: Diagram, *, color: str = AFTER, label: str | None = None) -> None:
    """Draw a reliability diagram: filled dots lie outside the consistency band, their area grows with the samples.

    Args:
        ax: Where to draw.
        diagram: Of the top label or of a class.
        color: Of the dots.
        label: For the legend.
    """
    confidence, accuracy = np.asarray(diagram.confidence), np.asarray(diagram.accuracy)
    low, high, count = np.asarray(diagram.low), np.asarray(diagram.high), np.asarray(diagram.count)
    ax.fill_between(confidence, low, high, color=_BAND, linewidth=2, zorder=1)
    ax.plot([0, 1], [0, 1], color=_LINE, linewidth=1, linestyle=(0, (4, 4)), zorder=2)
    ax.vlines(confidence, confidence, accuracy, color=color, alpha=0.5, linewidth=1.2, zorder=3)
    inside = (low <= accuracy) & (accuracy <= high)
    area = 20 + 100 * count / max(count.max(initial=0), 1)
    faces = [ax.get_facecolor() if held else color for held in inside]
    dots = ax.scatter(confidence, accuracy, s=area, c=faces, edgecolors=color, linewidths=1.6, zorder=4, label=label)
    dots.set_clip_on(False)  # those at 0 and 1 stay whole
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    ax.set(xlabel="predicted probability", ylabel="came true")


def draw_histogram(ax: Axes, before: Sequence[float], after: Sequence[float]) -> None:
    """Draw how many samples have their confidence where: before upwards, after downwards.

    Args:
        ax: Where to draw.
        before: Samples in equal parts of [0, 1].
        after: The same, after calibration.
    """
    if len(before) != len(after):
        msg = f"before and after must have the same length, got {len(before)} and {len(after)}"
        raise ValueError(msg)
    edges = np.linspace(0, 1, len(before) + 1)
    width = 0.9 / len(before)
    middles = (edges[1:] + edges[:-1]) / 2
    ax.bar(middles, before, width=width, color=BEFORE, label="before")
    ax.bar(middles, [-count for count in after], width=width, color=AFTER, label="after")
    ax.axhline(0, color=_LINE, linewidth=1)
    ax.yaxis.set_major_formatter(lambda value, _: f"{abs(value):,.0f}")  # a count is none the less below the axis
    ax.set(xlim=(0, 1), xlabel="confidence", ylabel="samples")


def draw_map(ax: Axes, gamma: float, temperature: float, *, color: str = AFTER, label: str | None = None) -> None:
    """Draw the map for two classes: softmax score p to Psi^gamma(softmax(logits / T)), with the diagonal.

    Args:
        ax: Where to draw.
        gamma: Focusing parameter, > -1.
        temperature: T, > 0.
        color: Of the curve.
        label: For the legend.
    """
    gamma, temperature = _check.scalar_gamma(gamma), _check.positive(temperature, "temperature")
    p, mapped = binary_map(gamma=gamma, temperature=temperature)
    ax.plot([0, 1], [0, 1], color=_LINE, linewidth=1, linestyle=(0, (4, 4)))
    ax.plot(p, mapped, color=color, linewidth=2, label=label)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="softmax score", ylabel="probability")
