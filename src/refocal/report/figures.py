"""Matplotlib figures of a report. Each function draws on the Axes it is given and changes no global setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from refocal import _check
from refocal.metrics import ReliabilityDiagram
from refocal.report.live import map_two_classes
from refocal.report.record import Diagram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

BEFORE, AFTER = "#b04a06", "#0a649f"  # the colors of the page; color-blind readers can distinguish them
_BAND, _LINE = "0.88", "0.45"


def draw_reliability(
    ax: Axes, diagram: Diagram | ReliabilityDiagram, *, color: str = AFTER, label: str | None = None
) -> None:
    """Draw a reliability diagram.

    The area of a dot grows with the number of samples. Filled dots lie outside the consistency band.

    Args:
        ax: The Axes to draw on.
        diagram: Diagram of a report, of the top label or of a class; or what `refocal.metrics.reliability_diagram`
            returns.
        color: Color of the dots.
        label: Label in the legend.
    """
    confidence, accuracy = np.asarray(diagram.confidence), np.asarray(diagram.accuracy)
    low, high = np.asarray(diagram.low), np.asarray(diagram.high)
    count = np.asarray(diagram.samples if isinstance(diagram, ReliabilityDiagram) else diagram.count)
    ax.fill_between(confidence, low, high, color=_BAND, linewidth=2, zorder=1)
    ax.plot([0, 1], [0, 1], color=_LINE, linewidth=1, linestyle=(0, (4, 4)), zorder=2)
    ax.vlines(confidence, confidence, accuracy, color=color, alpha=0.5, linewidth=1.2, zorder=3)
    inside = (low <= accuracy) & (accuracy <= high)
    area = 20 + 100 * count / max(count.max(initial=0), 1)
    faces = [ax.get_facecolor() if held else color for held in inside]
    dots = ax.scatter(confidence, accuracy, s=area, c=faces, edgecolors=color, linewidths=1.6, zorder=4, label=label)
    dots.set_clip_on(False)  # dots at 0 and 1 are drawn in full
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    ax.set(xlabel="predicted probability", ylabel="observed frequency")


def draw_histogram(ax: Axes, before: Sequence[float], after: Sequence[float]) -> None:
    """Draw a histogram of confidence, with bars upward before calibration and downward after it.

    Args:
        ax: The Axes to draw on.
        before: Number of samples in equal parts of [0, 1], such as `Method.histogram`.
        after: The same after calibration.
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
    ax.yaxis.set_major_formatter(lambda value, _: f"{abs(value):,.0f}")  # counts below the axis are positive, too
    ax.set(xlim=(0, 1), xlabel="confidence", ylabel="samples")


def draw_map(ax: Axes, gamma: float, temperature: float, *, color: str = AFTER, label: str | None = None) -> None:
    """Draw the map from a softmax score of two classes to Psi^gamma(softmax(logits / T)), with the diagonal.

    Args:
        ax: The Axes to draw on.
        gamma: Focusing parameter, > -1.
        temperature: T, > 0.
        color: Color of the curve.
        label: Label in the legend.
    """
    gamma, temperature = _check.scalar_gamma(gamma), _check.positive(temperature, "temperature")
    p, mapped = map_two_classes(gamma=gamma, temperature=temperature)
    ax.plot([0, 1], [0, 1], color=_LINE, linewidth=1, linestyle=(0, (4, 4)))
    ax.plot(p, mapped, color=color, linewidth=2, label=label)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="softmax score", ylabel="probability")
