"""Figure 8 of Mukhoti et al. (2020): confidences of several networks for the same test samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal_lab import zoo
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import NO_ENTRY, Context, Numbers
from refocal_lab.reproduce.zoo_entries import (
    Network,
    Rows,
    collapse_rows,
    fit_temperature,
    loss_label,
    select_entries,
    softmax,
    was_trained_with,
    zoo_kind,
)
from refocal_lab.zoo.measures import read_parts
from refocal_lab.zoo.published import parse_variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_WHEN = {"raw": "as given", "ts-ece": "after TS"}
_KINDS = {"right": "all correct", "wrong": "all wrong"}


@dataclass(frozen=True)
class Parameters:
    """The networks and losses.

    Attributes:
        networks: The paper's network, then others; the first one in the zoo is drawn.
        losses: For example "focal 3"; the first seed of each is used.
        samples: Number of correct and of wrong samples to draw, taken from the start of the test part.
        classes: Names of the classes.
    """

    networks: tuple[str, ...]
    losses: tuple[str, ...]
    samples: int
    classes: tuple[str, ...]

    def wants(self, card: zoo.Card) -> bool:
        """Select these networks, trained with one of the losses."""
        return f"{card.data} {card.model}" in self.networks and was_trained_with(card, self.losses)


def compute(given: Parameters, context: Context) -> Numbers:
    """Compute top confidences as given and after temperature scaling by ECE, and their means."""
    found = select_entries(given, context)
    values: dict[str, float] = {}
    absent: list[str] = []
    shown: dict[str, Any] = {}
    rows: Rows = [("network", "test samples", "", *(loss_label(loss) for loss in given.losses))]
    for network in map(Network.parse, given.networks):
        trials = {loss: found.trials(network, parse_variant(loss))[:1] for loss in given.losses}
        held = {loss: _confidences(several[0]) for loss, several in trials.items() if several}
        chosen = _choose_samples(held)
        for kind, words in _KINDS.items():
            for when, when_words in _WHEN.items():
                means = {loss: one[when][chosen[kind]].mean() for loss, one in held.items() if len(chosen[kind])}
                cells = (f"{means[loss]:.3f}" if loss in means else NO_ENTRY for loss in given.losses)
                rows.append((network.label, f"{len(chosen[kind])} {words}", when_words, *cells))
                values |= {f"{kind}({network}, {loss}, {when})": float(mean) for loss, mean in means.items()}
                missing = [loss for loss in given.losses if loss not in means]
                absent += [f"{kind}({network}, {loss}, {when})" for loss in missing]
        if held and not shown:
            shown = {
                kind: {
                    "index": (first := rows_of[: given.samples]),
                    "class": _describe_classes(given, held, first),
                    "confidence": {loss: {when: one[when][first] for when in _WHEN} for loss, one in held.items()},
                }
                for kind, rows_of in chosen.items()
            }
    return Numbers(values, {"shown": shown}, collapse_rows(rows, labels=3), tuple(absent))


def _confidences(entry: zoo.Entry) -> dict[str, np.ndarray]:
    """Compute the top confidence of each test sample, its class, and the prediction."""
    val, test = read_parts(entry)
    found = {when: fit_temperature(when, val).predict(test.logits).max(axis=1) for when in _WHEN}
    return {**found, "label": test.labels, "predicted": softmax(test.logits).argmax(axis=1)}


def _choose_samples(held: dict[str, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Find the indices of samples that all networks classify correctly, and that all classify wrongly."""
    correct = np.array([one["predicted"] == one["label"] for one in held.values()])
    if not held:
        return {kind: np.array([], dtype=int) for kind in _KINDS}
    return {"right": np.flatnonzero(correct.all(axis=0)), "wrong": np.flatnonzero(~correct.any(axis=0))}


def _describe_classes(given: Parameters, held: dict[str, dict[str, np.ndarray]], rows: np.ndarray) -> list[str]:
    """Name the class of each sample and, if they are wrong, the predictions: "cat → dog/frog"."""
    labels = next(iter(held.values()))["label"]
    found = []
    for row in rows:
        predicted = dict.fromkeys(given.classes[one["predicted"][row]] for one in held.values())
        name = given.classes[labels[row]]
        found.append(name if list(predicted) == [name] else f"{name} → {'/'.join(predicted)}")
    return found


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw one row per sample, with correct samples on the left and wrong samples on the right."""
    figure.set_size_inches(style.WIDTH, 3.2)
    panels = figure.subplots(1, 2, sharex=True)
    for index, (ax, (kind, words)) in enumerate(zip(panels, _KINDS.items(), strict=True)):
        style.label_panel(ax, index, words)
        ax.set(xlim=(0, 1.02), xlabel="top confidence")
        if numbers.curves["shown"]:
            _draw_samples(ax, given, numbers.curves["shown"][kind])
        else:
            ax.text(0.5, 0.5, NO_ENTRY, ha="center", transform=ax.transAxes)
    panels[0].set_ylabel("index and class of the test sample")
    if numbers.curves["shown"]:
        figure.legend(handles=_make_handles(numbers), loc="outside upper center", ncols=7, handlelength=1)


def _make_handles(numbers: Numbers) -> list[Line2D]:
    """Make a legend with one entry per loss, and one for each time of measurement."""
    from matplotlib.lines import Line2D

    losses = numbers.curves["shown"]["right"]["confidence"]
    looks = [(loss_label(loss), style.MARKERS[n], style.color(n), style.color(n)) for n, loss in enumerate(losses)]
    looks += [(_WHEN[when], "h", "0.4", "white" if when == "raw" else "0.4") for when in _WHEN]
    return [
        Line2D([], [], label=label, marker=marker, color=color, markerfacecolor=face, linestyle="none", markersize=5)
        for label, marker, color, face in looks
    ]


def _draw_samples(ax: Axes, given: Parameters, samples: dict[str, Any]) -> None:
    count = len(samples["index"])
    for n, by_when in enumerate(samples["confidence"].values()):
        for when in _WHEN:
            ax.plot(
                by_when[when],
                np.arange(count) + 0.12 * (n - (len(samples["confidence"]) - 1) / 2),
                linestyle="none",
                marker=style.MARKERS[n % len(style.MARKERS)],
                markersize=5,
                markerfacecolor="white" if when == "raw" else style.color(n),
                color=style.color(n),
            )
    ax.set_yticks(
        range(count), [f"{index}:\n{words}" for index, words in zip(samples["index"], samples["class"], strict=True)]
    )
    ax.set_ylim(given.samples - 0.5, -0.5)


KIND = zoo_kind(Parameters, compute, draw)
