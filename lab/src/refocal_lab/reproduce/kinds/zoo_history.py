"""Figures 1 to 3 of Mukhoti et al. (2020): measures after each epoch, from the training histories of the zoo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from refocal_lab import zoo
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import NO_ENTRY, Context, Numbers
from refocal_lab.reproduce.zoo_entries import Network, Rows, loss_label, select_entries, was_trained_with, zoo_kind
from refocal_lab.zoo.published import parse_variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WORDS = {
    "nll": "NLL",
    "error": "error",
    "ece": "ECE",
    "entropy": "entropy",
    "true_probability": "p(true class)",
    "head_norm": "L2 norm",
}
_UNITS = {"nll": "nats", "entropy": "nats", "error": "share", "ece": "share"}
_EPOCHS = 5  # a rise starts at the mean of these, because single epochs are noisy
_WHOSE = {"correct": "of correct samples", "wrong": "of mistakes"}


@dataclass(frozen=True)
class Parameters:
    """The networks, losses and panels.

    Attributes:
        networks: The paper's network, then others; the first one in the zoo is drawn.
        losses: For example "focal 3".
        panels: Title and measures of each panel, such as "NLL, test: test.nll, test.correct.nll".
        since: Share of the epochs before the first drop of the learning rate. A rise is the difference between the last
            epoch and the mean of the first five epochs after that drop.
        columns: Number of columns of panels.
    """

    networks: tuple[str, ...]
    losses: tuple[str, ...]
    panels: tuple[str, ...]
    since: float
    columns: int

    def wants(self, card: zoo.Card) -> bool:
        """Select these networks, trained with one of the losses."""
        return f"{card.data} {card.model}" in self.networks and was_trained_with(card, self.losses)


class Panel(NamedTuple):
    """A panel: a title and measures."""

    title: str
    measures: list[str]

    @classmethod
    def parse(cls, text: str) -> Panel:
        """Parse the form used in specs."""
        title, _, measures = text.rpartition(":")
        return cls(title, [measure.strip() for measure in measures.split(",")])


def compute(given: Parameters, context: Context) -> Numbers:
    """Compute means over seeds: every epoch, the first, the last, and the rise after the learning rate drops.

    A network that fits its training part perfectly makes no mistakes there. Means are over the seeds that have a value;
    values that no seed has are left out.
    """
    found = select_entries(given, context)
    measures = list(dict.fromkeys(measure for text in given.panels for measure in Panel.parse(text).measures))
    values: dict[str, float] = {}
    absent: list[str] = []
    curves: dict[str, dict[str, list[float | None]]] = {}
    rows: Rows = [("network", *(loss_label(loss) for loss in given.losses))]
    for network in map(Network.parse, given.networks):
        cells = []
        for loss in given.losses:
            trials = found.trials(network, parse_variant(loss))
            cells.append(f"{len(trials)} seed{'s' * (len(trials) > 1)}" if trials else NO_ENTRY)
            histories = [entry.history() for entry in trials]
            for measure in measures:
                names = [f"{what} {measure}({network}, {loss})" for what in ("first", "last", "rise of")]
                if not trials:
                    absent += names
                    continue
                path = _mean_path(histories, measure)
                after = round(given.since * len(path))
                rise = path[-1] - path[after : after + _EPOCHS].mean()
                measured = dict(zip(names, map(float, (path[0], path[-1], rise)), strict=True))
                values |= {name: value for name, value in measured.items() if np.isfinite(value)}
                absent += [name for name in names if name not in values]
                if network == _first_network(given, found.networks):
                    curves.setdefault(loss, {})[measure] = [None if np.isnan(v) else float(v) for v in path]
        rows.append((network.label, *cells))
    return Numbers(values, {"paths": curves}, tuple(rows), tuple(absent))


def _first_network(given: Parameters, held: list[Network]) -> Network | None:
    return next((network for network in map(Network.parse, given.networks) if network in held), None)


def _mean_path(histories: list[list[dict[str, Any]]], measure: str) -> np.ndarray:
    """Compute the mean over seeds after each epoch; NaN if no seed has a value."""
    found = np.array([[_at(epoch, measure) for epoch in history] for history in histories])
    held = np.sum(~np.isnan(found), axis=0)
    return np.divide(np.nansum(found, axis=0), held, out=np.full(len(held), np.nan), where=held > 0)


def _at(epoch: dict[str, Any], measure: str) -> float:
    """Look up a measure of an epoch; NaN if its group has no samples."""
    found: Any = epoch
    for key in measure.split("."):
        found = found[key]
        if found is None:
            return float("nan")
    return float(found)


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw one panel per group of measures, with lines by loss, or by measure if there is one loss."""
    panels = [Panel.parse(text) for text in given.panels]
    count = -(-len(panels) // given.columns)
    figure.set_size_inches(style.WIDTH, (0.5 if len(given.losses) > 1 else 1.4) + 2.2 * count)
    axes = figure.subplots(count, given.columns, squeeze=False).ravel()
    for index, (ax, panel) in enumerate(zip(axes, panels, strict=False)):
        _draw_panel(ax, panel, numbers.curves["paths"])
        style.label_panel(ax, index, panel.title)
        ax.set_ylabel(_label_axis(panel))
        if index >= len(panels) - given.columns:
            ax.set_xlabel("epoch")
        if len(panel.measures) > 1 and numbers.curves["paths"]:
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=7.5)
    if len(given.losses) > 1 and numbers.curves["paths"]:
        style.add_common_legend(figure, axes)


def _draw_panel(ax: Axes, panel: Panel, paths: dict[str, dict[str, list[float | None]]]) -> None:
    if not paths:
        ax.text(0.5, 0.5, NO_ENTRY, ha="center", transform=ax.transAxes)
    index = 0
    for loss, measures in paths.items():
        for measure in panel.measures:
            path = np.array(measures[measure], dtype=float)
            label = loss_label(loss) if len(panel.measures) == 1 else _label(measure)
            ax.plot(range(1, len(path) + 1), path, label=label, **style.line(index, linewidth=1.0))
            index += 1


def _label_axis(panel: Panel) -> str:
    """Label the vertical axis with the measures and their unit, such as "NLL, entropy (nats)"."""
    names = list(dict.fromkeys(measure.split(".")[-1] for measure in panel.measures))
    units = dict.fromkeys(_UNITS[name] for name in names if name in _UNITS)
    return ", ".join(_WORDS.get(name, name) for name in names) + "".join(f" ({unit})" for unit in units)


def _label(measure: str) -> str:
    """Label a line, such as "NLL of mistakes" for test.wrong.nll; the part is named unless the panel names it."""
    part, *whose, name = measure.split(".")
    words = [_WORDS.get(name, name), *(_WHOSE[word] for word in whose)]
    return " ".join(words) if whose or name == "nll" else f"{words[0]}, {'training' if part == 'train' else part}"


KIND = zoo_kind(Parameters, compute, draw)
