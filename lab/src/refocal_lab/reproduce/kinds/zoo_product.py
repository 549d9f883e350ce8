"""Section 4.1 of Komisarenko and Kull (2024): the temperature of focal loss as a product of two temperatures."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal import metrics
from refocal_lab import zoo
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import NO_ENTRY, Context, Numbers
from refocal_lab.reproduce.zoo_entries import (
    Entries,
    Network,
    Rows,
    collapse_rows,
    fit_temperature,
    format_spread,
    is_focal_network,
    make_focal_map,
    select_entries,
    softmax,
    zoo_kind,
)
from refocal_lab.zoo.measures import read_parts
from refocal_lab.zoo.published import parse_variant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 268.0  # side of the panel
_AWAY = 9.0  # points between a mark and its label
_RADIUS = 4.0  # points of a mark or label


@dataclass(frozen=True)
class Parameters:
    """The networks.

    Attributes:
        networks: For example "cifar10 resnet50".
        gammas: Gammas of the training losses.
    """

    networks: tuple[str, ...]
    gammas: tuple[float, ...]

    def wants(self, card: zoo.Card) -> bool:
        """Select these networks, trained with one of these gammas."""
        return is_focal_network(card, self.networks, (0.0, *self.gammas))


def compute(given: Parameters, context: Context) -> Numbers:
    """Fit temperatures by validation NLL; that of the map is the nearest in KL divergence on the same logits."""
    found = select_entries(given, context)
    values: dict[str, float] = {}
    absent: list[str] = []
    points = []
    rows: Rows = [("network", "γ", "T of Ψ", "T of cross-entropy", "product", "T of focal loss")]
    for network in map(Network.parse, given.networks):
        plain = _fit_temperatures(found, network, 0.0)
        _record_mean(values, absent, f"T({network}, cross-entropy)", plain)
        for gamma in given.gammas:
            name = f"({network}, {gamma:g})"
            maps = [nearest_temperature(read_parts(entry)[0].logits, gamma) for entry in _trials(found, network, gamma)]
            fitted = _fit_temperatures(found, network, gamma)
            products = [float(np.mean(maps) * np.mean(plain))] if maps and plain else []
            for key, several in (("T", fitted), ("map", maps), ("product", products)):
                _record_mean(values, absent, f"{key}{name}", several)
            cells = (format_spread(several, factor=1) for several in (maps, plain, products, fitted))
            rows.append((network.label, f"{gamma:g}", *cells))
            if products:
                points.append({"network": str(network), "gamma": gamma, "product": products[0], "fitted": fitted})
    return Numbers(values, {"points": points}, collapse_rows(rows, labels=2), tuple(absent))


def _record_mean(values: dict[str, float], absent: list[str], name: str, several: list[float]) -> None:
    if several:
        values[name] = float(np.mean(several))
    else:
        absent.append(name)


def _trials(found: Entries, network: Network, gamma: float) -> list[zoo.Entry]:
    return found.trials(network, parse_variant(f"focal {gamma:g}"))


def _fit_temperatures(found: Entries, network: Network, gamma: float) -> list[float]:
    return [fit_temperature("ts-nll", read_parts(entry)[0]).temperature for entry in _trials(found, network, gamma)]


def nearest_temperature(logits: np.ndarray, gamma: float) -> float:
    """Find the temperature scaling with the lowest mean KL divergence from the focal map of these logits."""
    from scipy.optimize import minimize_scalar

    posterior = make_focal_map(gamma)(logits)
    found = minimize_scalar(
        lambda log_t: metrics.kl_to_posterior(softmax(logits / np.exp(log_t)), posterior),
        bounds=(-np.log(2 + 2 * gamma), np.log(2)),
        method="bounded",
    )
    return float(np.exp(found.x))


def draw(figure: Figure, _: Parameters, numbers: Numbers) -> None:
    """Draw the product against the fitted temperature; on the diagonal they agree."""
    figure.set_size_inches(style.WIDTH, 4.2)
    ax = figure.subplots()
    points = numbers.curves["points"]
    networks = list(dict.fromkeys(item["network"] for item in points))
    paths = []
    for index, network in enumerate(networks):
        own = [item for item in points if item["network"] == network]
        path = np.array([(item["product"], np.mean(item["fitted"])) for item in own])
        paths.append(path)
        words = Network.parse(network).label
        ax.plot(*path.T, marker=style.MARKERS[index % 6], markersize=5, label=words, **style.line(index, linewidth=0.8))
    ax.axline((1, 1), slope=1, color=style.GUIDE, linewidth=0.8)
    ax.set(xlabel="T of Ψ times T of cross-entropy", ylabel="T of focal loss, by NLL", aspect="equal")
    if not points:
        ax.text(1, 1, NO_ENTRY)
        return
    ax.legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), title="numbers: γ", alignment="left")
    low, high = min(path.min() for path in paths), max(path.max() for path in paths)
    margin = 0.08 * (high - low) + 0.05
    ax.set(xlim=(low - margin, high + margin), ylim=(low - margin, high + margin))
    places = place_labels(paths, unit=_POINTS / (high - low + 2 * margin))
    gammas = [[f"{item['gamma']:g}" for item in points if item["network"] == network] for network in networks]
    for index, (path, labels, own_places) in enumerate(zip(paths, gammas, places, strict=True)):
        look: dict[str, Any] = {"fontsize": 8, "color": style.color(index), "ha": "center", "va": "center"}
        for at, label, aside in zip(path, labels, own_places, strict=True):
            ax.annotate(label, tuple(at), tuple(aside), textcoords="offset points", **look)


def place_labels(paths: list[np.ndarray], *, unit: float) -> list[np.ndarray]:
    """Place the label of each mark where it is farthest from all lines, marks and earlier labels.

    Args:
        paths: Per line, the places of its marks, of shape (marks, 2).
        unit: Points per unit of both axes.

    Returns:
        Per line, the offsets of its labels in points, of shape (marks, 2).
    """
    steps = np.linspace(0, 1, 21)[:, None]
    pieces = [start + steps * (end - start) for path in paths for start, end in pairwise(path)]
    lines, marks = unit * np.concatenate([*paths, *pieces]), unit * np.concatenate(paths)
    angles = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    candidates = _AWAY * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    labels = np.empty((0, 2))
    placed = []
    for path in paths:
        offsets = []
        for mark in unit * path:
            others = np.concatenate([marks[(marks != mark).any(axis=1)], labels])
            aside = mark + candidates[:, None]
            to_lines = np.linalg.norm(aside - lines, axis=2).min(axis=1)
            to_others = np.linalg.norm(aside - others, axis=2).min(axis=1, initial=np.inf)
            room = np.minimum(to_lines, to_others - _RADIUS)
            offsets.append(candidates[room.argmax()])
            labels = np.concatenate([labels, [mark + offsets[-1]]])
        placed.append(np.array(offsets))
    return placed


KIND = zoo_kind(Parameters, compute, draw)
