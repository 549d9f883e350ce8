"""Figure 8 of Mukhoti et al. (2020): confidences of several networks for the same test samples."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal_lab import zoo
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import NO_ENTRY, Context, Numbers
from refocal_lab.reproduce.zoo_entries import (
    Network,
    Rows,
    choose_networks,
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
        networks: The paper's network, then others; those up to the first that has all losses are drawn.
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
    drawn = choose_networks(given.networks, given.losses, found)
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
        if network in drawn:
            shown[str(network)] = {
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
    """Draw one row of panels per network and one row of marks per sample, correct samples left and wrong ones right."""
    shown = numbers.curves["shown"] or {"": {}}
    figure.set_size_inches(style.WIDTH, 0.5 + 2.7 * len(shown))
    panels = figure.subplots(len(shown), 2, squeeze=False, sharex=True)
    for index, ((network, by_kind), (kind, words)) in enumerate(product(shown.items(), _KINDS.items())):
        ax = panels.ravel()[index]
        ax.set(xlim=(0, 1.02), xlabel="top confidence" if ax in panels[-1] else "")
        if by_kind:
            style.label_panel(ax, index, f"{Network.parse(network).model_label}, {words}")
            _draw_samples(ax, given, by_kind[kind])
        else:
            ax.text(0.5, 0.5, NO_ENTRY, ha="center", transform=ax.transAxes)
    for ax in panels[:, 0]:
        ax.set_ylabel("index and class of the test sample")
    if numbers.curves["shown"]:
        figure.legend(handles=_make_handles(given, numbers), loc="outside upper center", ncols=4, handlelength=1)


def _make_handles(given: Parameters, numbers: Numbers) -> list[Line2D]:
    """Make a legend with one entry per loss that is drawn, and one for each time of measurement."""
    from matplotlib.lines import Line2D

    used = {loss for by_kind in numbers.curves["shown"].values() for loss in by_kind["right"]["confidence"]}
    looks = [
        (loss_label(loss), style.MARKERS[n], style.color(n), style.color(n))
        for n, loss in enumerate(given.losses)
        if loss in used
    ]
    looks += [(_WHEN[when], "h", "0.4", "white" if when == "raw" else "0.4") for when in _WHEN]
    return [
        Line2D([], [], label=label, marker=marker, color=color, markerfacecolor=face, linestyle="none", markersize=5)
        for label, marker, color, face in looks
    ]


def _draw_samples(ax: Axes, given: Parameters, samples: dict[str, Any]) -> None:
    """Draw the marks of each sample side by side; a loss looks the same in all panels."""
    count = len(samples["index"])
    for place, (loss, by_when) in enumerate(samples["confidence"].items()):
        n = given.losses.index(loss)
        for when in _WHEN:
            ax.plot(
                by_when[when],
                np.arange(count) + 0.12 * (place - (len(samples["confidence"]) - 1) / 2),
                linestyle="none",
                marker=style.MARKERS[n],
                markersize=5,
                markerfacecolor="white" if when == "raw" else style.color(n),
                color=style.color(n),
            )
    ax.set_yticks(
        range(count), [f"{index}:\n{words}" for index, words in zip(samples["index"], samples["class"], strict=True)]
    )
    ax.set_ylim(given.samples - 0.5, -0.5)


KIND = zoo_kind(Parameters, compute, draw)
