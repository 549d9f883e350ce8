"""The charts of the page as SVG, so that they show and print without a script.

To redraw a chart, the script replaces the path `.band` and the content of `.shapes`, in the same coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from refocal.report import words
from refocal.report.live import map_two_classes
from refocal.report.markup import escape_text
from refocal.report.record import Diagram

# The square in which frequencies are drawn against probabilities, and the strip of sample counts below it.
LEFT, TOP, SIZE = 46, 10, 300
STRIP_TOP, STRIP_BOTTOM = 322, 362
# The area of the bars of the histogram.
_BARS_LEFT, _BARS_WIDTH, _BARS_TOP, _BARS_HEIGHT = 46, 340, 22, 216


def draw_reliability(diagram: Diagram, *, name: str, series: str, title: str, axes: tuple[str, str]) -> str:
    """Draw a reliability diagram with its consistency band and sample counts. Element ids begin with `name`."""
    inner = (
        f"{_grid()}<path class='band' d='{_band(diagram)}'/>{_diagonal()}"
        f"<line class='axis' x1='{LEFT}' x2='{LEFT + SIZE}' y1='{STRIP_BOTTOM}' y2='{STRIP_BOTTOM}'/>"
        f"<g class='shapes'>{_shapes(diagram)}</g>"
        f"<text class='label' x='{LEFT - 8}' y='{STRIP_BOTTOM}' text-anchor='end'>0</text>"
        f"<text class='label most' x='{LEFT - 8}' y='{STRIP_TOP + 9}' text-anchor='end'>{_most(diagram)}</text>"
        f"{_ticks_below(STRIP_BOTTOM + 16)}{_axis_titles(*axes, y=STRIP_BOTTOM + 34)}"
    )
    return _svg(
        inner, name=name, series=series, size=(360, 404), title=title, description=words.describe_diagram(diagram)
    )


def draw_overview(
    diagrams: Sequence[tuple[str, Diagram]], *, title: str, axes: tuple[str, str], name: str = "overview"
) -> str:
    """Draw reliability diagrams on the same axes, each with its color, and the band of the last one."""
    shapes = "".join(f"<g class='{series}'>{_dots(diagram)}</g>" for series, diagram in diagrams)
    inner = (
        f"{_grid()}<path class='band' d='{_band(diagrams[-1][1])}'/>{_diagonal()}{shapes}"
        f"{_ticks_below(TOP + SIZE + 16)}{_axis_titles(*axes, y=TOP + SIZE + 34)}"
    )
    texts = [words.describe_diagram(diagram) for _, diagram in diagrams]
    labels = ("Before: ", "After: ") if len(texts) > 1 else ("",)
    description = " ".join(f"{label}{text}" for label, text in zip(labels, texts, strict=True))
    return _svg(inner, name=name, series="after", size=(360, 350), title=title, description=description)


def draw_histogram(counts: Mapping[str, tuple[int, ...]], *, what: str = "confidence") -> str:
    """Draw a histogram of `what`: bars upward before and downward after, or only upward, on one scale."""
    left, width, bottom = _BARS_LEFT, _BARS_WIDTH, _BARS_TOP + _BARS_HEIGHT
    highest = [max(values) for values in counts.values()]
    scale = _BARS_HEIGHT / max(sum(highest), 1)
    middle = _BARS_TOP + highest[0] * scale
    alone = len(counts) == 1
    bars = []
    for (series, values), up in zip(counts.items(), (True, False), strict=False):
        step = width / len(values)
        for index, value in enumerate(values):
            share = f"{100 * index / len(values):g}% to {100 * (index + 1) / len(values):g}%"
            when = "" if alone else f"{series}, "
            bars.append(
                f"<rect class='{series}' x='{left + index * step + 1:.1f}' width='{step - 2:.1f}' "
                f"y='{middle - value * scale if up else middle:.1f}' height='{value * scale:.1f}'>"
                f"<title>{when}{what} {share}: {words.format_count(value)} samples</title></rect>"
            )
    ticks = "".join(
        f"<text class='label' x='{left + width * tick / 100:g}' y='{bottom + 18}' text-anchor='middle'>{tick}</text>"
        for tick in range(0, 101, 20)
    )
    heights = [(highest[0], _BARS_TOP), (0, middle)] + [(value, bottom) for value in highest[1:]]
    limits = "".join(
        f"<text class='label' x='{left - 8}' y='{y + 4:.1f}' text-anchor='end'>{format_short_count(value)}</text>"
        for value, y in heights
    )
    # The name below stands where the bars are short.
    free, anchor = (left, "start") if _mode(list(counts.values())[-1]) > 0.5 else (left + width, "end")
    names = (
        f"<text class='name before' x='{left + width}' y='{_BARS_TOP - 8}' text-anchor='end'>before ↑</text>"
        f"<text class='name after' x='{free}' y='{bottom}' text-anchor='{anchor}'>after ↓</text>"
    )
    inner = (
        f"{''.join(bars)}<line class='axis' x1='{left}' x2='{left + width}' y1='{middle:.1f}' y2='{middle:.1f}'/>"
        f"{'' if alone else names}{limits}{ticks}<text class='label' x='{left + width / 2:g}' y='{bottom + 36}' "
        f"text-anchor='middle'>{what} (%)</text>"
    )
    modes = [words.format_percent(_mode(values), 0) for values in counts.values()]
    largest = [words.format_count(value) for value in highest]
    first = f"Bars for 20 equal parts of the {what}. Most samples lie near "
    description = f"{first}{modes[0]}; the largest bar holds {largest[0]} samples."
    if not alone:
        description = (
            f"{first}{modes[0]} before and near {modes[1]} after; the largest bars hold {largest[0]} and {largest[1]} "
            "samples."
        )
    title = f"Histogram of {what}" + ("" if alone else ", before and after")
    return _svg(inner, name="histogram", series="bars", size=(400, 280), title=title, description=description)


def draw_map(*, gamma: float, temperature: float) -> str:
    """Draw the map from softmax score to probability for two classes: as fitted, and as the script sets it."""
    x, y = map_two_classes(gamma=gamma, temperature=temperature)
    curve = "M" + "L".join(f"{_x(a):.1f} {_y(b):.1f}" for a, b in zip(x, y, strict=True))
    at = [words.format_percent(float(np.interp(p, x, y))) for p in (0.6, 0.8, 0.95)]
    titles = _axis_titles("probability as given (%)", "probability (%)", y=TOP + SIZE + 34)
    inner = (
        f"{_grid()}{_diagonal()}<path class='fitted' d='{curve}'/><path class='now' d='{curve}'/>"
        f"{_ticks_below(TOP + SIZE + 16)}{titles}"
    )
    return _svg(
        inner,
        name="map",
        series="live",
        size=(360, 352),
        title="From the probability as given to the mapped one, for two classes",
        description=f"As fitted, 60% becomes {at[0]}, 80% becomes {at[1]} and 95% becomes {at[2]}.",
    )


def _svg(inner: str, *, name: str, series: str, size: tuple[int, int], title: str, description: str) -> str:
    return (
        f"<svg id='{name}' class='chart {series}' viewBox='0 0 {size[0]} {size[1]}' role='img' "
        f"aria-labelledby='{name}-title' aria-describedby='{name}-desc'>"
        f"<title id='{name}-title'>{escape_text(title)}</title>"
        f"<desc id='{name}-desc'>{escape_text(description)}</desc>{inner}</svg>"
    )


def _x(value: float) -> float:
    return LEFT + SIZE * value


def _y(value: float) -> float:
    return TOP + SIZE * (1 - value)


def _grid() -> str:
    lines = []
    for tick in range(0, 101, 20):
        at = _y(tick / 100)
        lines.append(f"<line class='grid' x1='{LEFT}' x2='{LEFT + SIZE}' y1='{at:g}' y2='{at:g}'/>")
        lines.append(f"<text class='label' x='{LEFT - 8}' y='{at + 4:g}' text-anchor='end'>{tick}</text>")
    return "".join(lines)


def _diagonal() -> str:
    return f"<line class='diagonal' x1='{LEFT}' y1='{TOP + SIZE}' x2='{LEFT + SIZE}' y2='{TOP}'/>"


def _ticks_below(y: int) -> str:
    return "".join(
        f"<text class='label' x='{_x(tick / 100):g}' y='{y}' text-anchor='middle'>{tick}</text>"
        for tick in range(0, 101, 20)
    )


def _axis_titles(across: str, up: str, *, y: int) -> str:
    return (
        f"<text class='label' x='{LEFT + SIZE / 2:g}' y='{y}' text-anchor='middle'>{across}</text>"
        f"<text class='label' transform='translate(11 {TOP + SIZE / 2:g}) rotate(-90)' text-anchor='middle'>{up}</text>"
    )


def _band(diagram: Diagram) -> str:
    along = list(zip(diagram.confidence, diagram.low, strict=True))
    back = list(zip(diagram.confidence, diagram.high, strict=True))[::-1]
    return "M" + "L".join(f"{_x(p):.1f} {_y(limit):.1f}" for p, limit in along + back) + "Z" if along else ""


def _shapes(diagram: Diagram) -> str:
    """The dots with their gaps, and the bars of the sample counts."""
    most = max(diagram.count, default=1)
    bars = []
    for n, confidence in zip(diagram.count, diagram.confidence, strict=True):
        tall = (STRIP_BOTTOM - STRIP_TOP) * n / most
        bars.append(
            f"<rect class='count' x='{_x(confidence) - 4:.1f}' y='{STRIP_BOTTOM - tall:.1f}' width='8' "
            f"height='{tall:.1f}'/>"
        )
    return _dots(diagram) + "".join(bars)


def _dots(diagram: Diagram) -> str:
    parts = []
    columns = (diagram.count, diagram.confidence, diagram.accuracy, diagram.low, diagram.high)
    for n, confidence, accuracy, low, high in zip(*columns, strict=True):
        x, y = f"{_x(confidence):.1f}", f"{_y(accuracy):.1f}"
        where = "inside" if low <= accuracy <= high else "outside"
        predicted, observed, least, greatest = (words.format_percent(p) for p in (confidence, accuracy, low, high))
        text = (
            f"{words.format_count(n)} samples: predicted {predicted}, observed {observed}; "
            f"calibrated: {least} to {greatest}"
        )
        parts.append(
            f"<line class='gap' x1='{x}' x2='{x}' y1='{_y(confidence):.1f}' y2='{y}'/>"
            f"<circle class='{where}' cx='{x}' cy='{y}' r='4.5'><title>{text}</title></circle>"
        )
    return "".join(parts)


def _most(diagram: Diagram) -> str:
    return format_short_count(max(diagram.count, default=0))


def format_short_count(value: float) -> str:
    """Format a count for an axis, in at most five characters."""
    for limit, divisor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= limit:
            return f"{value / divisor:.3g}{unit}"
    return f"{value:.0f}"


def _mode(counts: tuple[int, ...]) -> float:
    return (int(np.argmax(counts)) + 0.5) / len(counts)
