"""The style of the figures: readable in gray, and the same bytes for the same numbers."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

from refocal_lab.reproduce.computation import Numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.2  # inches, the text width of a page
GUIDE = "0.55"  # color of diagonals and other lines without data
_DPI = 260
_PAD = 5  # points between a panel and its name
_COLORS = 256  # of the PNG; with fewer, those of a few small marks are merged
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "lines.linewidth": 1.5,
    "mathtext.fontset": "dejavusans",
    "svg.hashsalt": "refocal",
    "path.simplify_threshold": 0.2,
}
# Lines differ in dash and lightness as well as in color.
_LINES: tuple[dict[str, Any], ...] = (
    {"color": "#000000", "linestyle": "-"},
    {"color": "#0a649f", "linestyle": (0, (6, 1.5))},
    {"color": "#b04a06", "linestyle": (0, (6, 1.5, 1.2, 1.5))},
    {"color": "#4e9a51", "linestyle": (0, (2.2, 1.2))},
    {"color": "#9a6fb0", "linestyle": (0, (1, 1.2))},
    {"color": "#e0a030", "linestyle": (0, (8, 1.5, 1, 1.5, 1, 1.5))},
)
MARKERS = ("o", "s", "^", "D", "v", "P")


def line(index: int, **more: Any) -> dict[str, Any]:
    """Return the style of a series: its own color and dash."""
    return {**_LINES[index % len(_LINES)], **more}


def color(index: int) -> str:
    """Return the color of a series, for dots and areas."""
    return str(_LINES[index % len(_LINES)]["color"])


def label_panel(ax: Axes, index: int, text: str = "") -> None:
    """Write the name of a panel above its left corner."""
    ax.set_title(name_panel(index, text), loc="left", pad=_PAD)


def label_panels(axes: Sequence[Axes], index: int, text: str) -> None:
    """Write one name above several panels side by side, however long it is."""
    axes[0].set_title(" ", pad=_PAD)  # keeps the height: the name itself has no part in the layout
    name = axes[0].annotate(
        name_panel(index, text), (0, 1), (0, _PAD), xycoords="axes fraction", textcoords="offset points"
    )
    name.set_in_layout(False)


def name_panel(index: int, text: str = "") -> str:
    """Name a panel (a), (b), ..., (z), (27), ..., with a title.

    Example:
        >>> name_panel(0, "CIFAR-10"), name_panel(26)
        ('(a) CIFAR-10', '(27)')
    """
    name = ascii_lowercase[index] if index < len(ascii_lowercase) else str(index + 1)
    return f"({name}) {text}".rstrip()


def start_at_zero(ax: Axes, *, horizontal: bool = False) -> None:
    """Start the vertical or horizontal axis at 0, with a margin at the other end so that no mark is cut off."""
    ax.update_datalim([(0, 0)], updatex=horizontal, updatey=not horizontal)
    ax.autoscale_view(scalex=horizontal, scaley=not horizontal)
    if horizontal:
        ax.set_xlim(left=0)
    else:
        ax.set_ylim(bottom=0)


def add_common_legend(figure: Figure, axes: Iterable[Axes], **more: Any) -> None:
    """Explain the series of all panels once, above them."""
    found = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if found:
        figure.legend(found.values(), found.keys(), loc="outside upper center", **{"ncols": len(found), **more})


def render(draw: Callable[[Figure, Any, Numbers], None], parameters: Any, numbers: Numbers) -> dict[str, bytes]:
    """Draw a figure as figure.svg and figure.png."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({**mpl.rcParamsDefault, "backend": mpl.rcParams["backend"], **_STYLE}):
        figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
        draw(figure, parameters, numbers)
        return to_files(figure)


def to_files(figure: Figure) -> dict[str, bytes]:
    """Write a figure as figure.svg and figure.png, in as few bytes as possible."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from PIL import Image

    svg, png = io.BytesIO(), io.BytesIO()
    # Use the canvases directly: `figure.savefig` would draw everything twice, for the layout and for the file.
    vectors: Any = FigureCanvasSVG(figure)
    vectors.print_svg(svg, metadata={"Date": None})
    figure.set_dpi(_DPI)
    pixels: Any = FigureCanvasAgg(figure)
    pixels.draw()
    image = Image.frombuffer("RGBA", pixels.get_width_height(), pixels.buffer_rgba(), "raw", "RGBA", 0, 1)
    image.convert("RGB").quantize(_COLORS).save(png, format="png", optimize=True)
    return {"figure.svg": _number_clip_paths(svg.getvalue()), "figure.png": png.getvalue()}


def _number_clip_paths(svg: bytes) -> bytes:
    """Number the clip paths. Matplotlib names them by positions whose last bits vary from one layout to the next."""
    names = dict.fromkeys(re.findall(rb'<clipPath id="(\w+)"', svg))
    numbers = {name: b"clip%d" % number for number, name in enumerate(names)}
    return re.sub(rb'(<clipPath id="|url\(#)(\w+)', lambda place: place[1] + numbers.get(place[2], place[2]), svg)
