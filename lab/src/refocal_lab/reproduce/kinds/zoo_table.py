"""Tables of Mukhoti et al. (2020): measures of networks by loss, before and after temperature scaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from refocal_lab import zoo
from refocal_lab.papers import PAPERS
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import NO_ENTRY, Context, Numbers
from refocal_lab.reproduce.zoo_entries import (
    Entries,
    Network,
    Rows,
    collapse_rows,
    fit_temperature,
    format_spread,
    loss_label,
    published_values,
    select_entries,
    was_trained_with,
    zoo_kind,
)
from refocal_lab.zoo.published import parse_variant
from refocal_lab.zoo.scoring import read_as_published

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_METHODS = {"raw": "pre T", "ts-ece": "post T", "ts-adaptive-ece": "post T", "ts-nll": "post T"}
_MEASURES = {
    "error": "error (%)",
    "nll": "NLL (%)",
    "ece_15": "ECE, 15 bins (%)",
    "adaptive_ece_15": "adaptive ECE, 15 bins (%)",
    "mce_15": "MCE, 15 bins (%)",
    "confident_99": "confidence of 0.99 or more (%)",
    "accuracy_99": "accuracy if confident (%)",
}


@dataclass(frozen=True)
class Parameters:
    """The content of the table.

    Attributes:
        paper: Number of the paper.
        networks: For example "cifar10 resnet50". Other networks of the zoo are appended.
        losses: The columns, for example "focal 3".
        methods: "raw", or temperature scaling on the validation part: "ts-nll", "ts-ece" or "ts-adaptive-ece".
        measures: Names of `refocal_lab.zoo.measures.FUNCTIONS`.
    """

    paper: str
    networks: tuple[str, ...]
    losses: tuple[str, ...]
    methods: tuple[str, ...]
    measures: tuple[str, ...]

    def wants(self, card: zoo.Card) -> bool:
        """Select every network that was trained with one of the losses."""
        return was_trained_with(card, self.losses)


def compute(given: Parameters, context: Context) -> Numbers:
    """Measure each entry and write the rows of the table."""
    found = select_entries(given, context)
    networks = list(dict.fromkeys([*map(Network.parse, given.networks), *found.networks]))
    measured = [
        _measure(given, found, network, loss, context)
        for network in networks
        for loss in given.losses
        if found.trials(network, parse_variant(loss))
    ]
    cells = {(item["network"], item["loss"]): item for item in measured}
    values = {
        f"{measure}({network}, {loss}, {method})": float(np.mean(item[measure][method]))
        for (network, loss), item in cells.items()
        for measure in given.measures
        for method in given.methods
        if item[measure][method]
    }
    rows: Rows = [("network", "", *(loss_label(loss) for loss in given.losses))]
    for network in networks:
        for measure in given.measures:
            for method in given.methods:
                words = [_MEASURES[measure]] * (len(given.measures) > 1) + [_METHODS[method]] * (len(given.methods) > 1)
                row = [
                    _cell(CellKey(network, loss, method, measure), given.paper, cells.get((str(network), loss)))
                    for loss in given.losses
                ]
                rows.append((network.label, ", ".join(words), *row))
    return Numbers(values, {"networks": measured}, collapse_rows(rows, labels=2))


def _measure(given: Parameters, found: Entries, network: Network, loss: str, context: Context) -> dict[str, Any]:
    """Compute measures and temperatures by method, with one value per trial; undefined values are left out."""
    item: dict[str, Any] = {
        "network": str(network),
        "loss": loss,
        "temperature": {method: [] for method in given.methods},
    }
    item |= {measure: {method: [] for method in given.methods} for measure in given.measures}
    for entry in found.trials(network, parse_variant(loss)):
        context.progress(entry.card.name)
        val, test, scoring = read_as_published(entry)
        for method in given.methods:
            fitted = fit_temperature(method, val, scoring=scoring)
            item["temperature"][method].append(fitted.temperature)
            probs = fitted.predict(test.logits)
            for measure in given.measures:
                value = scoring.value(measure, probs, test.labels)
                item[measure][method] += [value] if np.isfinite(value) else []
    return item


class CellKey(NamedTuple):
    """The key of a cell of the table."""

    network: Network
    loss: str
    method: str
    measure: str

    def published(self, paper: str) -> float | None:
        """Look up the paper's number for the same network; None if there is none."""
        return next(iter(published_values(paper, self.network, self.loss, self.method, self.measure)), None)


def _cell(place: CellKey, paper: str, item: dict[str, Any] | None) -> str:
    """Write our number, the temperature in parentheses if any, and the paper's number in brackets."""
    ours = NO_ENTRY if item is None else format_spread(item[place.measure][place.method]).replace(NO_ENTRY, "–")
    if item is not None and place.method != "raw":
        ours += f" ({np.mean(item['temperature'][place.method]):.2f})"
    theirs = place.published(paper)
    return ours if theirs is None else f"{ours} [{100 * theirs:.2f}]"


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw one panel per data set and measure, with the paper's networks in gray and ours in black and blue."""
    networks = list(
        dict.fromkeys(
            [*map(Network.parse, given.networks), *(Network.parse(i["network"]) for i in numbers.curves["networks"])]
        )
    )
    held = [item["network"].split()[0] for item in numbers.curves["networks"]]
    shown = list(dict.fromkeys(held)) or ["cifar10"]
    figure.set_size_inches(style.WIDTH, 0.6 + 2.6 * len(given.measures) * len(shown))
    panels = figure.subplots(len(shown) * len(given.measures), 1, squeeze=False)[:, 0]
    for index, ax in enumerate(panels):
        data, measure = shown[index // len(given.measures)], given.measures[index % len(given.measures)]
        of_data = [network for network in networks if network.data == data]
        _draw_panel(ax, given, measure, of_data, numbers.curves["networks"])
        ax.set_ylabel(_MEASURES[measure])
        style.label_panel(ax, index, of_data[0].label.split(",")[0])
    handles = {label: handle for ax in panels for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=2)


def _draw_panel(
    ax: Axes, given: Parameters, measure: str, networks: list[Network], measured: list[dict[str, Any]]
) -> None:
    width = 0.8 / len(given.methods)
    for m, method in enumerate(given.methods):
        when = "as given" if method == "raw" else "after temperature scaling"
        offset = (m - (len(given.methods) - 1) / 2) * width
        theirs = [
            (column + offset, 100 * number)
            for column, loss in enumerate(given.losses)
            for network in networks
            if (number := CellKey(network, loss, method, measure).published(given.paper)) is not None
        ]
        if theirs:
            ax.plot(
                [x for x, _ in theirs],
                [y for _, y in theirs],
                linestyle="none",
                marker="_x+1"[m],
                markersize=7 if m == 0 else 5,
                color="0.6",
                label=f"{PAPERS[given.paper].citation}, {when}",
            )
        held = [item for item in measured if Network.parse(item["network"]) in networks]
        for n, network in enumerate(dict.fromkeys(item["network"] for item in held)):
            ours = [
                (given.losses.index(item["loss"]) + offset + 0.05 * (n + 1), 100 * value)
                for item in held
                if item["network"] == network
                for value in item[measure][method]
            ]
            marker, words = style.MARKERS[n % len(style.MARKERS)], Network.parse(network).label.split(", ")[1]
            face = "white" if method == "raw" else style.color(1)
            ax.plot(
                [x for x, _ in ours],
                [y for _, y in ours],
                linestyle="none",
                marker=marker,
                markersize=4.5,
                markerfacecolor=face,
                color=style.color(m),
                label=f"{words}, {when}",
            )
    empty = [
        loss
        for loss in given.losses
        if not any(item["loss"] == loss and Network.parse(item["network"]) in networks for item in measured)
    ]
    short = {"cross-entropy": "cross-\nentropy", "brier": "Brier"}
    ticks = [short.get(loss, loss_label(loss)) + (f"\n({NO_ENTRY})" if loss in empty else "") for loss in given.losses]
    ax.set_xticks(range(len(given.losses)), ticks)
    ax.set_xlim(-0.6, len(given.losses) - 0.4)
    if measure != "accuracy_99":
        style.start_at_zero(ax)


KIND = zoo_kind(Parameters, compute, draw)
