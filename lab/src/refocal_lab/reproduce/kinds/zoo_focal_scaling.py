"""Table 1 of Komisarenko and Kull (2024): temperature scaling and focal temperature scaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal import metrics
from refocal.calibrators import FocalTemperatureScaling
from refocal.calibrators.focal_temperature import Objective
from refocal_lab import zoo
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import NO_ENTRY, Context, Numbers
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
_CRITERIA: dict[Objective, str] = {"nll": "log-loss", "adaptive_ece": "ECE"}
_PUBLISHED = {
    "ts, nll": "ts-nll",
    "fts, nll": "fts",
    "ts, adaptive_ece": "ts-adaptive-ece",
    "fts, adaptive_ece": "fts-adaptive-ece",
}


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
    """Evaluate each entry with both methods, tuned by both criteria; gains are means over all entries."""
    found = select_entries(given, context)
    networks = list(dict.fromkeys([*map(Network.parse, given.networks), *found.networks]))
    rows: Rows = [
        ("network", "loss", "method", "accuracy (%)", "log-loss", "ECE, equal mass (%)", "γ by log-loss, by ECE")
    ]
    measured: list[dict[str, Any]] = []
    for network in networks:
        for loss in given.losses:
            trials = _trials(given, found, network, loss, context)
            measured += [{"network": str(network), "loss": loss, "trials": trials}] if trials else []
            rows += _rows(network, loss, trials)
    every = [trial for item in measured for trial in item["trials"]]
    values, absent = _gains(every)
    return Numbers(values, {"networks": measured}, collapse_rows(rows, labels=3), absent)


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
    rows = []
    for method, words in _METHODS.items():
        cells = []
        for criterion, factor in (("nll", 1.0), ("adaptive_ece", 100.0)):
            chosen = [trial[f"{method}, {criterion}"] for trial in trials]
            cell = format_spread(
                [choice[criterion] for choice in chosen], factor=factor, digits=3 if factor == 1 else 2
            )
            temperature = f" ({np.mean([choice['temperature'] for choice in chosen]):.2f})" if chosen else ""
            cells.append(
                cell + temperature + _format_published(network, loss, f"{method}, {criterion}", criterion, factor)
            )
        accuracy = format_spread([1 - trial[f"{method}, nll"]["error"] for trial in trials])
        gammas = "; ".join(
            ", ".join(f"{trial[f'{method}, {criterion}']['gamma']:g}" for trial in trials) for criterion in _CRITERIA
        )
        shown = "" if method == "ts" else gammas if trials else NO_ENTRY
        rows.append((network.label, loss_label(loss), words, accuracy, *cells, shown))
    return rows


def _format_published(network: Network, loss: str, how: str, criterion: str, factor: float) -> str:
    measure = "nll" if criterion == "nll" else "adaptive_ece_15"
    values = published_values("003", network, loss, _PUBLISHED[how], measure)
    return "".join(f" [{factor * value:.2f}]" for value in values)


def _gains(trials: list[dict[str, Any]]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Compute relative gains in percent, from means over all trials on the test part."""
    named = {
        "gain in ECE of focal TS": ("ts, adaptive_ece", "fts, adaptive_ece", "adaptive_ece"),
        "gain in log-loss of focal TS": ("ts, nll", "fts, nll", "nll"),
    }
    for method in _METHODS:
        by_nll, by_ece = f"{method}, nll", f"{method}, adaptive_ece"
        named[f"gain in ECE by choosing by ECE({method})"] = by_nll, by_ece, "adaptive_ece"
        named[f"gain in log-loss by choosing by log-loss({method})"] = by_ece, by_nll, "nll"
    if not trials:
        return {}, tuple(named)
    return {
        name: 100 * (1 - sum(trial[new][key] for trial in trials) / sum(trial[old][key] for trial in trials))
        for name, (old, new, key) in named.items()
    }, ()


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw log-loss and ECE of each entry by loss, with TS and focal TS side by side."""
    figure.set_size_inches(style.WIDTH, 3.3)
    panels = figure.subplots(1, 2)
    measured = numbers.curves["networks"]
    losses = [loss for loss in given.losses if any(item["loss"] == loss for item in measured)]
    for index, (ax, criterion) in enumerate(zip(panels, _CRITERIA, strict=True)):
        for n, network in enumerate(dict.fromkeys(item["network"] for item in measured)):
            for m, (method, words) in enumerate(_METHODS.items()):
                points = [
                    (losses.index(item["loss"]) + (m - 0.5) * 0.3, trial[f"{method}, {criterion}"][criterion])
                    for item in measured
                    if item["network"] == network
                    for trial in item["trials"]
                ]
                x, y = np.array(points).T
                ax.plot(
                    x,
                    y if criterion == "nll" else 100 * y,
                    linestyle="none",
                    marker=style.MARKERS[n % len(style.MARKERS)],
                    markersize=4.5,
                    markerfacecolor="white" if m == 0 else style.color(1),
                    color=style.color(m),
                    label=f"{Network.parse(network).label}, {words}",
                )
        short = {"cross-entropy": "cross-\nentropy", "flsd-53": "FLSD-\n53", "adafocal": "Ada-\nFocal"}
        ax.set_xticks(range(len(losses)), [short.get(loss, loss_label(loss)) for loss in losses])
        ax.set_ylabel(("log-loss (nats)", "ECE, 15 bins of equal mass (%)")[index])
        style.label_panel(ax, index, f"tuned by {_CRITERIA[criterion]}")
        if not measured:
            ax.text(0.5, 0.5, NO_ENTRY, ha="center", transform=ax.transAxes)
    style.start_at_zero(panels[1])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)


KIND = zoo_kind(Parameters, compute, draw)
