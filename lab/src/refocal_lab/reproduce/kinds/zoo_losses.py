"""Networks of the zoo with many losses: every measure, as given and after each calibration method, with intervals.

A network may know more classes than occur among its samples. It is then measured twice: over the classes that occur,
conditional on them, and as in Mukhoti et al. (2020), with confidences from the softmax over all classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from refocal import metrics
from refocal_lab import zoo
from refocal_lab.papers import PAPERS
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import NO_ENTRY, Context, Numbers
from refocal_lab.reproduce.dot_rows import Group, Mark, Row, Section, Spread, draw_sections
from refocal_lab.reproduce.zoo_entries import (
    Network,
    Rows,
    fit_temperature,
    format_spread,
    loss_label,
    published_values,
    select_entries,
    was_trained_with,
    zoo_kind,
)
from refocal_lab.zoo.measures import fit_methods, posterior_gamma, read_parts, scored_posterior
from refocal_lab.zoo.published import parse_variant
from refocal_lab.zoo.scoring import Scoring, read_as_published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METHODS = {"raw": "as given", "psi": "Ψ", "ts-ece": "TS by ECE", "ts-nll": "TS by NLL", "fts": "focal TS"}
_MEASURES = {
    "error": "error (%)",
    "nll": "NLL (%)",
    "ece_15": "ECE (%)",
    "adaptive_ece_15": "adaptive ECE (%)",
    "classwise_ece_15": "classwise ECE (%)",
    "mce_15": "MCE (%)",
}
_LIMITED = "ece_15"
_BASELINE = "cross-entropy"


@dataclass(frozen=True)
class Parameters:
    """The content of the table.

    Attributes:
        paper: Number of the paper to compare with.
        networks: For example "sst tree-lstm".
        losses: For example "focal 3" or "cross-entropy ls0.05".
        resamples: Number of bootstrap resamples per interval and test.
    """

    paper: str
    networks: tuple[str, ...]
    losses: tuple[str, ...]
    resamples: int

    def wants(self, card: zoo.Card) -> bool:
        """Select these networks, trained with one of the losses."""
        return f"{card.data} {card.model}" in self.networks and was_trained_with(card, self.losses)


class MethodResult(NamedTuple):
    """Test predictions of a method, and their measures."""

    probs: np.ndarray
    labels: np.ndarray
    values: dict[str, float]
    limits: tuple[float, float]


Trial = dict[str, MethodResult]  # by method


def compute(given: Parameters, context: Context) -> Numbers:
    """Measure all entries; the ECE limits over seeds are the lowest and the highest limits of their intervals."""
    found = select_entries(given, context)
    values: dict[str, float] = {}
    rows: Rows = [("network", "loss", "method", *_MEASURES.values())]
    groups: list[dict[str, Any]] = []
    for network in map(Network.parse, given.networks):
        trials = {loss: found.trials(network, parse_variant(loss)) for loss in given.losses}
        for reading in _readings(trials):
            measured = {
                loss: [_measure(entry, reading, given.resamples, context) for entry in several]
                for loss, several in trials.items()
            }
            title = network.label + (", softmax over all classes" if reading == "all" else "")
            name = str(network) + (" all" if reading == "all" else "")
            for loss, several in measured.items():
                item = _summarize(several)
                values |= _name_values(item, name, loss)
                values |= {} if reading == "all" else _tests(measured, name, loss, given.resamples)
                groups += [{"network": title, "loss": loss, "methods": _drop_infinite(item)}] if several else []
                published = network if reading == "all" or _readings(trials) == ("scored",) else None
                rows += _rows(title, loss, item, given.paper, published)
            if not any(measured.values()):
                rows.append((title, NO_ENTRY, "", *[""] * len(_MEASURES)))
    return Numbers(values, {"groups": groups}, tuple(rows), _find_absent(given, values))


def _readings(trials: dict[str, list[zoo.Entry]]) -> tuple[str, ...]:
    """Choose the readings: over the classes that occur, and over all classes if the network knows more."""
    knows_more = any(entry.all_classes is not None for several in trials.values() for entry in several)
    return ("scored", "all") if knows_more else ("scored",)


def _measure(entry: zoo.Entry, reading: str, resamples: int, context: Context) -> Trial:
    context.progress(entry.card.name)
    scoring = Scoring() if reading == "scored" else read_as_published(entry)[2]
    found = {}
    is_identity = not posterior_gamma(entry.card) and not entry.card.label_smoothing
    for method, probs, labels in _predictions(entry, reading):
        if method in _METHODS and not (method == "psi" and is_identity):
            values = {measure: scoring.value(measure, probs, labels) for measure in _MEASURES}
            events = scoring.events(probs, labels) if scoring.scored is not None else None
            how: dict[str, Any] = {"bins": 15, "resamples": resamples}
            limits = (
                metrics.interval(metrics.ece, probs, labels, **how)
                if events is None
                else metrics.interval(metrics.ece, *events, task="binary", **how)
            )
            found[method] = MethodResult(probs, labels, values, (limits.low, limits.high))
    return found


def _predictions(entry: zoo.Entry, reading: str) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield each method with its probabilities and the labels of the test part."""
    if reading == "scored":
        val, test = read_parts(entry)
        for method, predict in fit_methods(entry.card, val):
            is_exact = method != "psi" or entry.all_classes is None
            yield method, np.asarray(predict(test.logits)) if is_exact else scored_posterior(entry), test.labels
        return
    val, test, scoring = read_as_published(entry)
    for method, predict in fit_methods(entry.card, val):
        fitted = fit_temperature(method, val, scoring=scoring).predict if method == "ts-ece" else predict
        yield method, np.asarray(fitted(test.logits)), test.labels


def _summarize(trials: list[Trial]) -> dict[str, dict[str, Any]]:
    """Collect the values of all seeds by method and measure, and the overall limits of the ECE."""
    methods = [method for method in _METHODS if trials and all(method in trial for trial in trials)]
    return {
        method: {measure: [trial[method].values[measure] for trial in trials] for measure in _MEASURES}
        | {
            "low": min(trial[method].limits[0] for trial in trials),
            "high": max(trial[method].limits[1] for trial in trials),
        }
        for method in methods
    }


def _drop_infinite(item: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Drop infinite values, which JSON cannot store; NLL is infinite if a true class has probability 0."""
    return {
        method: {name: value for name, value in values.items() if np.all(np.isfinite(value))}
        for method, values in item.items()
    }


def _name_values(item: dict[str, dict[str, Any]], network: str, loss: str) -> dict[str, float]:
    """Name the finite means over seeds, in percent."""
    found: dict[str, float] = {}
    for method, values in item.items():
        place = f"({network}, {loss}, {method})"
        means = {measure: float(np.mean(values[measure])) for measure in _MEASURES}
        found |= {f"{measure}{place}": 100 * mean for measure, mean in means.items() if np.isfinite(mean)}
        found |= {f"ece {side}{place}": 100 * values[side] for side in ("low", "high")}
    return found


def _tests(measured: dict[str, list[Trial]], network: str, loss: str, resamples: int) -> dict[str, float]:
    """Test whether the ECE differs from that of uncalibrated cross-entropy; keep the largest p-value over seeds."""
    base = measured.get(_BASELINE, [])
    pairs = list(zip(base, measured[loss], strict=False))
    found = {}
    for method in _METHODS:
        if pairs and all(method in trial for _, trial in pairs) and (loss, method) != (_BASELINE, "raw"):
            tests = [
                metrics.paired_test(
                    *(metrics.ece, first["raw"].probs, second[method].probs, first["raw"].labels),
                    bins=15,
                    resamples=resamples,
                )
                for first, second in pairs
            ]
            found[f"p({network}, {loss}, {method})"] = max(test.p_value for test in tests)
    return found


def _find_absent(given: Parameters, values: dict[str, float]) -> tuple[str, ...]:
    names = [
        f"{what}({network}{reading}, {loss}, {method})"
        for what in (*_MEASURES, "ece low", "ece high", "p")
        for network in given.networks
        for reading in ("", " all")
        for loss in given.losses
        for method in _METHODS
    ]
    return tuple(name for name in names if name not in values)


def _rows(title: str, loss: str, item: dict[str, dict[str, Any]], paper: str, network: Network | None) -> Rows:
    """Make one row per method, with the paper's numbers if a network is given."""
    rows = []
    for method, values in item.items():
        cells = []
        for measure in _MEASURES:
            finite = bool(np.all(np.isfinite(values[measure])))
            ours = format_spread(values[measure]) if finite else "∞"
            if measure == _LIMITED:
                ours += f" ({100 * values['low']:.2f} to {100 * values['high']:.2f})"
            cells.append(ours + ("" if network is None else _format_published(network, loss, method, measure, paper)))
        rows.append((title, loss_label(loss), _METHODS[method], *cells))
    return rows


def _format_published(network: Network, loss: str, method: str, measure: str, paper: str) -> str:
    values = published_values(paper, network, loss, method, measure)
    return "".join(f" [{100 * value:.2f}]" for value in values)


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw the ECE: one row per loss, sorted, one column per method, and one section per network."""
    groups = numbers.curves["groups"]
    sections = []
    for title in dict.fromkeys(group["network"] for group in groups):
        held = [group for group in groups if group["network"] == title]
        network = _find_published(given, title, groups)
        rows = [Row(_short_label(group["loss"]), _make_cells(given.paper, network, group)) for group in held]
        sections.append(Section(title, [Group("", sorted(rows, key=lambda row: row.rank("raw", "ours")))]))
    marks = {
        "paper": Mark(PAPERS[given.paper].citation, "D", style.color(2), "white"),
        "ours": Mark("ours, with the widest 95 % limits of the seeds", "o", style.color(1), style.color(1)),
    }
    columns = {method: f"ECE (%),\n{words}" for method, words in _METHODS.items()}
    draw_sections(figure, sections, columns=columns, marks=marks, same_scale=True)


def _short_label(loss: str) -> str:
    return loss_label(loss).replace("cross-entropy, smoothing", "label smoothing")


def _find_published(given: Parameters, title: str, groups: list[dict[str, Any]]) -> Network | None:
    """Find the network whose published numbers belong to a section; with two readings it is the second."""
    network = next(network for network in map(Network.parse, given.networks) if title.startswith(network.label))
    titles = {group["network"] for group in groups}
    return network if title == max((one for one in titles if one.startswith(network.label)), key=len) else None


def _make_cells(paper: str, network: Network | None, group: dict[str, Any]) -> dict[tuple[str, str], list[Spread]]:
    cells: dict[tuple[str, str], list[Spread]] = {}
    for method, values in group["methods"].items():
        mean = float(np.mean(values[_LIMITED]))
        low, high = min(mean, values["low"]), max(mean, values["high"])
        cells[method, "ours"] = [Spread(100 * mean, 100 * low, 100 * high)]
        found = [] if network is None else published_values(paper, network, group["loss"], method, _LIMITED)
        cells[method, "paper"] = [Spread.over([100 * value]) for value in found]
    return cells


KIND = zoo_kind(Parameters, compute, draw)
