"""Table 1 of Komisarenko and Kull (2024): temperature scaling and focal temperature scaling."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal import metrics
from refocal.calibrators import FocalTemperatureScaling
from refocal.calibrators.focal_temperature import Objective
from refocal_lab import zoo
from refocal_lab.papers import PAPERS
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import NO_ENTRY, Context, Numbers
from refocal_lab.reproduce.dot_rows import Group, Mark, Row, Section, Spread, draw_sections
from refocal_lab.reproduce.zoo_entries import (
    Entries,
    FittedMap,
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
from refocal_lab.zoo.measures import LogitPart, read_parts
from refocal_lab.zoo.published import parse_variant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BINS = 15
_METHODS = {"ts": "TS", "fts": "focal TS"}
_PAPER = "003"
_FACTORS = {"nll": 1.0, "adaptive_ece": 100.0}
_CRITERIA: dict[Objective, str] = {"nll": "log-loss", "adaptive_ece": "ECE"}
_PUBLISHED = {
    "ts, nll": "ts-nll",
    "fts, nll": "fts",
    "ts, adaptive_ece": "ts-adaptive-ece",
    "fts, adaptive_ece": "fts-adaptive-ece",
}
_HEAD = (
    "network",
    "loss",
    "method",
    "accuracy (%)",
    "log-loss",
    "T by log-loss",
    "ECE, equal mass (%)",
    "T by ECE",
    "γ by log-loss; by ECE",
)


@dataclass(frozen=True)
class Parameters:
    """The content of the table.

    Attributes:
        networks: For example "cifar10 resnet50". Other networks of the zoo on the same data sets are appended.
        losses: For example "focal 3".
        step: Step of the grid of temperatures up to 5.
    """

    networks: tuple[str, ...]
    losses: tuple[str, ...]
    step: float

    def wants(self, card: zoo.Card) -> bool:
        """Select the networks on these data sets that were trained with one of the losses."""
        data = {Network.parse(text).data for text in self.networks}
        return card.data in data and was_trained_with(card, self.losses)


def compute(given: Parameters, context: Context) -> Numbers:
    """Evaluate each entry with both methods, tuned by both criteria.

    Gains are per data set over all networks, per network of the paper, and the means of both.
    """
    found = select_entries(given, context)
    networks = list(dict.fromkeys([*map(Network.parse, given.networks), *found.networks]))
    rows: Rows = [_HEAD]
    measured: list[dict[str, Any]] = []
    for network in networks:
        for loss in given.losses:
            trials = _trials(given, found, network, loss, context)
            measured += [{"network": str(network), "loss": loss, "trials": trials}] if trials else []
            rows += _rows(network, loss, trials)
    values, absent = _all_gains(given, measured)
    return Numbers(values, {"networks": measured}, collapse_rows(rows, labels=3), absent)


def _all_gains(given: Parameters, measured: list[dict[str, Any]]) -> tuple[dict[str, float], tuple[str, ...]]:
    by_data: dict[str, list[dict[str, Any]]] = {}
    of_paper: dict[str, list[dict[str, Any]]] = {network: [] for network in given.networks}
    for network in (*given.networks, *(item["network"] for item in measured)):
        by_data.setdefault(Network.parse(network).data, [])
    for item in measured:
        by_data[Network.parse(item["network"]).data] += item["trials"]
        if item["network"] in of_paper:
            of_paper[item["network"]] += item["trials"]
    values, absent = _gains(by_data)
    own, own_absent = _gains(of_paper, of="the paper's networks")
    return values | own, absent + own_absent


def _trials(
    given: Parameters, found: Entries, network: Network, loss: str, context: Context
) -> list[dict[str, dict[str, float]]]:
    trials = []
    for entry in found.trials(network, parse_variant(loss)):
        context.progress(entry.card.name)
        val, test = read_parts(entry)
        trials.append(
            {
                f"{method}, {criterion}": _evaluate_choice(method, criterion, val, test, given.step)
                for method in _METHODS
                for criterion in _CRITERIA
            }
        )
    return trials


def temperatures(step: float) -> np.ndarray:
    """The temperature grid of Komisarenko and Kull (2024): multiples of the step up to 5."""
    return step * np.arange(1, round(5 / step) + 1)


def _evaluate_choice(
    method: str, criterion: Objective, val: LogitPart, test: LogitPart, step: float
) -> dict[str, float]:
    """Tune a method on the validation part and measure it on the test part."""
    grid = temperatures(step)
    if method == "ts":
        gamma = 0.0
        found = fit_temperature("ts-nll" if criterion == "nll" else "ts-adaptive-ece", val, grid=grid)
    else:
        search = FocalTemperatureScaling(objective=criterion, search="grid", temperature_grid=grid)
        fitted = search.fit(val.logits, val.labels)
        gamma, found = fitted.gamma_, FittedMap(fitted.temperature_, fitted.predict_proba)
    probs = found.predict(test.logits)
    return {
        "gamma": gamma,
        "temperature": found.temperature,
        "nll": metrics.nll(probs, test.labels),
        "adaptive_ece": metrics.adaptive_ece(probs, test.labels, bins=_BINS),
        "error": metrics.error(probs, test.labels),
    }


def _rows(network: Network, loss: str, trials: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Write one row per method. A cell has our number, and the paper's in brackets."""
    rows = []
    for method, words in _METHODS.items():
        accuracies = [1 - trial[f"{method}, nll"]["error"] for trial in trials]
        cells = [
            format_spread(accuracies) + _bracket(f"{100 * (1 - error):.1f}" for error in _errors(network, loss, method))
        ]
        for criterion, factor in _FACTORS.items():
            how = f"{method}, {criterion}"
            chosen = [trial[how] for trial in trials]
            digits = 3 if factor == 1 else 2
            score = format_spread([choice[criterion] for choice in chosen], factor=factor, digits=digits)
            theirs = _published(network, loss, how, criterion)
            cells.append(score + _bracket(f"{factor * value:.2f}" for value in theirs))
            temperature = f"{np.mean([choice['temperature'] for choice in chosen]):.2f}" if chosen else NO_ENTRY
            theirs = published_values(_PAPER, network, loss, _PUBLISHED[how], "temperature")
            cells.append(temperature + _bracket(f"{value:.2f}" for value in theirs))
        rows.append((network.label, loss_label(loss), words, *cells, _gammas(network, loss, method, trials)))
    return rows


def _gammas(network: Network, loss: str, method: str, trials: list[dict[str, Any]]) -> str:
    if method == "ts":
        return ""
    ours = "; ".join(
        ", ".join(f"{trial[f'{method}, {criterion}']['gamma']:g}" for trial in trials) for criterion in _CRITERIA
    )
    theirs = published_values(_PAPER, network, loss, "fts", "gamma")
    return (ours if trials else NO_ENTRY) + _bracket(f"{value:g}" for value in theirs)


def _errors(network: Network, loss: str, method: str) -> list[float]:
    return published_values(_PAPER, network, loss, "raw" if method == "ts" else "fts", "error")


def _bracket(numbers: Iterable[str]) -> str:
    return "".join(f" [{number}]" for number in numbers)


def _published(network: Network, loss: str, how: str, criterion: str) -> list[float]:
    measure = "nll" if criterion == "nll" else "adaptive_ece_15"
    return published_values(_PAPER, network, loss, _PUBLISHED[how], measure)


def _gains(groups: dict[str, list[dict[str, Any]]], *, of: str = "") -> tuple[dict[str, float], tuple[str, ...]]:
    """Compute relative gains in percent on the test part: from the means of each group, and averaged over these.

    Args:
        groups: Trials by data set or network. Gains of groups without trials are absent.
        of: What the average is of; not said for data sets.
    """
    compared = {
        "gain in ECE of focal TS": ("ts, adaptive_ece", "fts, adaptive_ece", "adaptive_ece"),
        "gain in log-loss of focal TS": ("ts, nll", "fts, nll", "nll"),
    }
    for method in _METHODS:
        by_nll, by_ece = f"{method}, nll", f"{method}, adaptive_ece"
        compared[f"gain in ECE by choosing by ECE({method})"] = by_nll, by_ece, "adaptive_ece"
        compared[f"gain in log-loss by choosing by log-loss({method})"] = by_ece, by_nll, "nll"
    values: dict[str, float] = {}
    absent: list[str] = []
    for name, (old, new, key) in compared.items():
        gains = {
            f"{name}, {group}": 100
            * (1 - sum(trial[new][key] for trial in trials) / sum(trial[old][key] for trial in trials))
            for group, trials in groups.items()
            if trials
        }
        average = f"{name}, {of}" if of else name
        values |= gains | ({average: float(np.mean(list(gains.values())))} if gains else {})
        absent += [each for each in (average, *(f"{name}, {group}" for group in groups)) if each not in values]
    return values, tuple(absent)


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw one row per network and loss, with log-loss and ECE as columns and the methods as marks."""
    measured = numbers.curves["networks"]
    networks = sorted({Network.parse(item["network"]) for item in measured}, key=lambda network: network.sort_key)
    sections = []
    for data in dict.fromkeys(Network.parse(text).data for text in given.networks):
        groups = [_make_group(given, network, measured) for network in networks if network.data == data]
        sections += [Section(Network(data, "").data_label, groups)] if groups else []
    theirs = " or ".join(dict.fromkeys(Network.parse(text).model_label for text in given.networks))
    whose = f"{PAPERS[_PAPER].citation}, {theirs}"
    marks = {}
    for method, words, offset in (("ts", "TS", -0.2), ("fts", "focal TS", 0.2)):
        face = "white" if method == "ts" else None
        marks[f"paper {method}"] = Mark(f"{whose}, {words}", "D", "0.55", face or "0.55", offset)
        marks[f"ours {method}"] = Mark(f"ours, {words}", "o", style.color(1), face or style.color(1), offset)
    columns = {"nll": "log-loss (nats),\ntuned by log-loss", "adaptive_ece": "ECE (%),\ntuned by ECE"}
    draw_sections(figure, sections, columns=columns, marks=marks, not_from_zero=["nll"])


def _make_group(given: Parameters, network: Network, measured: list[dict[str, Any]]) -> Group:
    """Make the rows of a network, sorted by its log-loss with temperature scaling."""
    items = [item for item in measured if item["network"] == str(network)]
    rows = [Row(loss_label(item["loss"]), _make_cells(given, network, item)) for item in items]
    return Group(network.model_label, sorted(rows, key=lambda row: row.rank("nll", "ours ts")))


def _make_cells(given: Parameters, network: Network, item: dict[str, Any]) -> dict[tuple[str, str], list[Spread]]:
    """Collect our numbers, and those of the paper's network on the same data set."""
    theirs = [one for one in map(Network.parse, given.networks) if one.data == network.data]
    cells: dict[tuple[str, str], list[Spread]] = {}
    for method, (criterion, factor) in product(_METHODS, _FACTORS.items()):
        how = f"{method}, {criterion}"
        ours = [factor * trial[how][criterion] for trial in item["trials"]]
        cells[criterion, f"ours {method}"] = [Spread.over(ours)]
        found = [value for one in theirs for value in _published(one, item["loss"], how, criterion)]
        cells[criterion, f"paper {method}"] = [Spread.over([factor * value]) for value in found]
    return cells


KIND = zoo_kind(Parameters, compute, draw)
