"""Draw a table as rows of marks: one row per network and loss, and one panel per column and data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import NO_ENTRY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_ROW = 0.165  # height of a row in inches
_AROUND = 0.78  # height of a section's title, ticks and labels
_LEGEND = 0.22  # height of a line of the legend
_LINE = 95  # characters of a line of the legend


class Spread(NamedTuple):
    """A number with its spread; a single value has none."""

    mean: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> Spread:
        """The mean of all seeds, from the lowest to the highest.

        Example:
            >>> Spread.over([1.0, 2.0, 6.0])
            Spread(mean=3.0, low=1.0, high=6.0)
        """
        return cls(float(np.mean(values)), min(values), max(values))


class Mark(NamedTuple):
    """What stands for one meaning in the whole figure.

    Attributes:
        label: The meaning, for the legend.
        marker: A marker of Matplotlib.
        color: Color of the outline and of the spread.
        face: Color of the inside.
        offset: Distance from the middle of the row, in rows downward.
    """

    label: str
    marker: str
    color: str
    face: str
    offset: float = 0.0


class Row(NamedTuple):
    """A row: its label, and the numbers by column and mark."""

    label: str
    cells: Mapping[tuple[str, str], Sequence[Spread]]

    def rank(self, column: str, mark: str) -> float:
        """The number by which rows are sorted; rows without it come last."""
        found = self.cells.get((column, mark), ())
        return found[0].mean if found else float("inf")


class Group(NamedTuple):
    """The rows of one network, which is their heading; there is no heading if the title is empty."""

    title: str
    rows: Sequence[Row]


class Section(NamedTuple):
    """The groups of one data set, which share their axes."""

    title: str
    groups: Sequence[Group]

    @property
    def height(self) -> int:
        """Number of rows with the headings of the groups."""
        return sum(bool(group.title) + len(group.rows) for group in self.groups)


def draw_sections(
    figure: Figure,
    sections: Sequence[Section],
    *,
    columns: Mapping[str, str],
    marks: Mapping[str, Mark],
    not_from_zero: Sequence[str] = (),
    same_scale: bool = False,
) -> None:
    """Draw one row of panels per section, one panel per column, and one legend.

    Args:
        figure: An empty figure; its height is set.
        sections: What to draw, from top to bottom. If there is none, the figure says so.
        columns: Names of the columns with the labels of their axes.
        marks: Names of the marks with what they look like.
        not_from_zero: Columns whose axes do not start at 0.
        same_scale: Whether the columns of a section have the same axis.
    """
    if not sections:
        figure.subplots().set_axis_off()
        figure.axes[0].text(0.5, 0.5, NO_ENTRY, ha="center", transform=figure.axes[0].transAxes)
        return
    heights = [section.height for section in sections]
    handles = _make_handles(sections, marks)
    wide = sum(len(str(handle.get_label())) for handle in handles) > _LINE
    figure.set_size_inches(style.WIDTH, _LEGEND * (1 + wide) + sum(_AROUND + _ROW * height for height in heights))
    panels = figure.subplots(
        len(sections), len(columns), squeeze=False, height_ratios=heights, sharex="row" if same_scale else False
    )
    for index, (axes, section) in enumerate(zip(panels, sections, strict=True)):
        for ax, (column, label) in zip(axes, columns.items(), strict=True):
            _draw_panel(ax, section, column, marks)
            ax.set_xlabel(label)
            if ax is not axes[0]:
                ax.tick_params(labelleft=False)
        for ax, column in zip(axes, columns, strict=True):  # after all are drawn, because they may share a scale
            if column not in not_from_zero:
                style.start_at_zero(ax, horizontal=True)
        style.label_panels(axes, index, section.title)
    figure.legend(handles=handles, loc="outside upper center", ncols=2 if wide else len(handles))


def _draw_panel(ax: Axes, section: Section, column: str, marks: Mapping[str, Mark]) -> None:
    labels: list[str] = []
    headings = []
    for group in section.groups:
        if group.title:
            place = len(labels)
            headings.append(place)
            labels.append(group.title)
            ax.axhspan(place - 0.5, place + 0.5, color="0.94", linewidth=0)
        for row in group.rows:
            place = len(labels)
            labels.append(row.label)
            ax.axhline(place, color="0.88", linewidth=0.5, zorder=0)
            for name, mark in marks.items():
                for spread in row.cells.get((column, name), ()):
                    _draw_spread(ax, place + mark.offset, spread, mark)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_yticks(range(len(labels)), labels)
    ax.tick_params(axis="y", length=0)
    for heading in headings:
        ax.get_yticklabels()[heading].set_fontweight("bold")


def _draw_spread(ax: Axes, height: float, spread: Spread, mark: Mark) -> None:
    if spread.high > spread.low:
        ax.plot([spread.low, spread.high], [height, height], color=mark.color, linewidth=1.1, solid_capstyle="butt")
    ax.plot([spread.mean], [height], **_look(mark))


def _look(mark: Mark) -> dict[str, Any]:
    return {
        "marker": mark.marker,
        "markersize": 5 if mark.marker != "|" else 6,
        "linestyle": "none",
        "color": mark.color,
        "markerfacecolor": mark.face,
        "markeredgewidth": 1.0,
    }


def _make_handles(sections: Sequence[Section], marks: Mapping[str, Mark]) -> list[Line2D]:
    """Make the legend of the marks that occur."""
    from matplotlib.lines import Line2D

    rows = [row for section in sections for group in section.groups for row in group.rows]
    used = {name for row in rows for (_, name), spreads in row.cells.items() if spreads}
    return [Line2D([], [], label=mark.label, **_look(mark)) for name, mark in marks.items() if name in used]
