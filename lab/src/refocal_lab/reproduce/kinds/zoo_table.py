"""Tables of Mukhoti et al. (2020): measures of networks by loss, before and after temperature scaling."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from refocal_lab import zoo
from refocal_lab.papers import PAPERS
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import NO_ENTRY, Context, Numbers
from refocal_lab.reproduce.dot_rows import Group, Mark, Row, Section, Spread, draw_sections
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
    from matplotlib.figure import Figure

_METHODS = {"raw": "pre T", "ts-ece": "post T", "ts-adaptive-ece": "post T", "ts-nll": "post T"}
_WHEN = {
    "raw": "as given",
    "ts-ece": "after TS by ECE",
    "ts-adaptive-ece": "after TS by adaptive ECE",
    "ts-nll": "after TS by NLL",
}
_CHOSEN_BY = {"ts-ece": "ece_15", "ts-adaptive-ece": "adaptive_ece_15"}
_SHORT = {"confident_99": "confident (%)", "accuracy_99": "their accuracy (%)"}
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
        _name_value(network, loss, measure, method): float(np.mean(item[measure][method]))
        for (network, loss), item in cells.items()
        for measure in given.measures
        for method in given.methods
        if item[measure][method]
    }
    every = product(given.networks, given.losses, given.measures, given.methods)
    absent = tuple(name for name in (_name_value(*each) for each in every) if name not in values)
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
    return Numbers(values, {"networks": measured}, collapse_rows(rows, labels=2), absent)


def _name_value(network: str, loss: str, measure: str, method: str) -> str:
    return f"{measure}({network}, {loss}, {method})"


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

    def published_temperature(self, paper: str) -> float | None:
        """Look up the paper's temperature, which it prints beside the measure that chose it; None if there is none."""
        if _CHOSEN_BY.get(self.method) != self.measure:
            return None
        return self._replace(measure="temperature").published(paper)


def _cell(place: CellKey, paper: str, item: dict[str, Any] | None) -> str:
    """Write our number and the paper's in brackets, each with its temperature in parentheses if any."""
    ours = NO_ENTRY if item is None else format_spread(item[place.measure][place.method]).replace(NO_ENTRY, "–")
    if item is not None and place.method != "raw":
        ours += f" ({np.mean(item['temperature'][place.method]):.2f})"
    theirs, temperature = place.published(paper), place.published_temperature(paper)
    beside = "" if temperature is None else f" ({temperature:.2f})"
    return ours if theirs is None else f"{ours} [{100 * theirs:.2f}{beside}]"


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw one row per network and loss and one column per measure and method, on the data sets of the paper."""
    measured = numbers.curves["networks"]
    networks = sorted({Network.parse(item["network"]) for item in measured}, key=lambda network: network.sort_key)
    columns = {_column(*each): _label_column(given, *each) for each in product(given.measures, given.methods)}
    sections = []
    for data in dict.fromkeys(Network.parse(text).data for text in given.networks):
        groups = [_make_group(given, network, measured) for network in networks if network.data == data]
        sections += [Section(Network(data, "").data_label, groups)] if groups else []
    whose = PAPERS[given.paper].citation
    marks = {
        "others": Mark(f"{whose}, other networks", "|", "0.55", "0.55"),
        "paper": Mark(f"{whose}, same network", "D", style.color(2), "white"),
        "ours": Mark("ours, mean and range of seeds", "o", style.color(1), style.color(1)),
    }
    free = [_column("accuracy_99", method) for method in given.methods]
    draw_sections(figure, sections, columns=columns, marks=marks, not_from_zero=free)


def _column(measure: str, method: str) -> str:
    return f"{measure} {method}"


def _label_column(given: Parameters, measure: str, method: str) -> str:
    words = _SHORT.get(measure, _MEASURES[measure])
    return words + (f"\n{_WHEN[method]}" if len(given.methods) > 1 else "")


def _make_group(given: Parameters, network: Network, measured: list[dict[str, Any]]) -> Group:
    """Make the rows of a network, sorted by our numbers in the first column."""
    items = [item for item in measured if item["network"] == str(network)]
    rows = [Row(loss_label(item["loss"]), _make_cells(given, network, item)) for item in items]
    first = _column(given.measures[0], given.methods[0])
    return Group(network.model_label, sorted(rows, key=lambda row: row.rank(first, "ours")))


def _make_cells(given: Parameters, network: Network, item: dict[str, Any]) -> dict[tuple[str, str], list[Spread]]:
    cells: dict[tuple[str, str], list[Spread]] = {}
    others = [Network.parse(text) for text in given.networks if text != str(network)]
    for measure, method in product(given.measures, given.methods):
        column = _column(measure, method)
        ours = [100 * value for value in item[measure][method]]
        cells[column, "ours"] = [Spread.over(ours)] if ours else []
        for mark, of in (("paper", [network]), ("others", [one for one in others if one.data == network.data])):
            found = [CellKey(one, item["loss"], method, measure).published(given.paper) for one in of]
            cells[column, mark] = [Spread.over([100 * value]) for value in found if value is not None]
    return cells


KIND = zoo_kind(Parameters, compute, draw)
