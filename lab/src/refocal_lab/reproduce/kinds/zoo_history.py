"""Figures 1 to 3 of Mukhoti et al. (2020): measures after each epoch, from the training histories of the zoo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from refocal_lab import zoo
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import NO_ENTRY, Context, Numbers
from refocal_lab.reproduce.zoo_entries import (
    Network,
    Rows,
    choose_networks,
    loss_label,
    select_entries,
    was_trained_with,
    zoo_kind,
)
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
        networks: The paper's network, then others; those up to the first that has all losses are drawn.
        losses: For example "focal 3".
        panels: Title and measures of each panel, such as "NLL, test: test.nll, test.correct.nll".
        columns: Number of columns of panels.
    """

    networks: tuple[str, ...]
    losses: tuple[str, ...]
    panels: tuple[str, ...]
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

    The rise is the difference between the last epoch and the mean of the first five epochs after the first drop. A
    network that fits its training part perfectly makes no mistakes there. Means are over the seeds that have a value;
    values that no seed has are left out.
    """
    found = select_entries(given, context)
    measures = list(dict.fromkeys(measure for text in given.panels for measure in Panel.parse(text).measures))
    values: dict[str, float] = {}
    absent: list[str] = []
    paths: dict[str, dict[str, dict[str, list[float | None]]]] = {
        str(network): {} for network in choose_networks(given.networks, given.losses, found)
    }
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
                measured = dict(zip(names, (path[0], path[-1], _rise(path, histories[0])), strict=True))
                values |= {name: float(value) for name, value in measured.items() if np.isfinite(value)}
                absent += [name for name in names if name not in values]
                if str(network) in paths:
                    drawn = [None if np.isnan(value) else float(value) for value in path]
                    paths[str(network)].setdefault(loss, {})[measure] = drawn
        rows.append((network.label, *cells))
    return Numbers(values, {"paths": paths}, tuple(rows), tuple(absent))


def _rise(path: np.ndarray, history: list[dict[str, Any]]) -> float:
    """Compute how much a mean rises after the first drop of the learning rate; NaN if the rate never drops."""
    rates = np.array([epoch["learning_rate"] for epoch in history])
    after = path[np.flatnonzero(rates < rates[0])][:_EPOCHS]
    return float(path[-1] - after.mean()) if len(after) else float("nan")


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
    """Draw one panel per network and group of measures, with lines by loss, or by measure if there is one loss."""
    paths = numbers.curves["paths"] or {"": {}}
    panels = [Panel.parse(text) for text in given.panels]
    count = -(-len(panels) // given.columns)
    around, height = 0.5 if len(given.losses) > 1 else 1.4, 2.2 if len(paths) == 1 else 1.75
    figure.set_size_inches(style.WIDTH, around + (height * count + 0.3) * len(paths))
    axes: list[Axes] = []
    for part, (network, by_loss) in zip(figure.subfigures(len(paths), squeeze=False)[:, 0], paths.items(), strict=True):
        if by_loss:
            epochs = len(next(iter(next(iter(by_loss.values())).values())))
            part.suptitle(f"{Network.parse(network).label}, {epochs} epochs", x=0.01, ha="left", fontweight="bold")
        for index, (ax, panel) in enumerate(
            zip(part.subplots(count, given.columns, squeeze=False).ravel(), panels, strict=False)
        ):
            _draw_panel(ax, panel, by_loss, given.losses)
            style.label_panel(ax, len(axes), panel.title)
            axes.append(ax)
            ax.set_ylabel(_label_axis(panel))
            if index >= len(panels) - given.columns:
                ax.set_xlabel("epoch")
            if len(panel.measures) > 1 and by_loss:
                ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=7.5)
    if len(given.losses) > 1:
        style.add_common_legend(figure, axes)


def _draw_panel(
    ax: Axes, panel: Panel, paths: dict[str, dict[str, list[float | None]]], losses: tuple[str, ...]
) -> None:
    """Draw one line per loss and measure; a loss looks the same in all panels."""
    if not paths:
        ax.text(0.5, 0.5, NO_ENTRY, ha="center", transform=ax.transAxes)
    for loss, measures in paths.items():
        for index, measure in enumerate(panel.measures, start=losses.index(loss) * len(panel.measures)):
            path = np.array(measures[measure], dtype=float)
            label = loss_label(loss) if len(panel.measures) == 1 else _label(measure)
            ax.plot(range(1, len(path) + 1), path, label=label, **style.line(index, linewidth=1.0))


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
