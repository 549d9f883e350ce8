"""Gradient norms with respect to the logits at the end of training, after Figure 4 of Mukhoti et al. (2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import refocal
from refocal_lab import zoo
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import NO_ENTRY, Context, Numbers
from refocal_lab.reproduce.zoo_entries import (
    Network,
    Rows,
    choose_networks,
    collapse_rows,
    format_spread,
    is_focal_network,
    select_entries,
    softmax,
    zoo_kind,
)
from refocal_lab.zoo.measures import LogitPart, read_parts
from refocal_lab.zoo.published import parse_variant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SMALL = 0.01  # below this norm a sample hardly moves the weights


@dataclass(frozen=True)
class Parameters:
    """The networks and the histogram.

    Attributes:
        networks: The paper's network, then others; those up to the first that has all gammas are drawn.
        gammas: Focusing parameters; 0 for cross-entropy.
        bins: Number of bins of the histogram.
    """

    networks: tuple[str, ...]
    gammas: tuple[float, ...]
    bins: int

    def wants(self, card: zoo.Card) -> bool:
        """Select these networks, trained with one of these gammas."""
        return is_focal_network(card, self.networks, self.gammas)


def norms(part: LogitPart, gamma: float) -> np.ndarray:
    """Compute |dL/dz| = g(p, gamma) |softmax(z) - e_y| of each sample.

    Reference: Mukhoti et al. (2020), Proposition 1.
    """
    probs = softmax(part.logits)
    residual = probs.copy()
    rows = np.arange(len(part.labels))
    residual[rows, part.labels] -= 1
    return np.asarray(refocal.phi(probs[rows, part.labels], gamma=gamma)) * np.linalg.norm(residual, axis=1)


def compute(given: Parameters, context: Context) -> Numbers:
    """Compute mean norms, their smallest drop between gammas, shares of small norms, and histograms over all seeds."""
    found = select_entries(given, context)
    values: dict[str, float] = {}
    absent: list[str] = []
    histograms = []
    drawn = choose_networks(given.networks, [f"focal {gamma:g}" for gamma in given.gammas], found)
    rows: Rows = [("network", "γ", "mean norm", f"norms below {_SMALL:g} (%)")]
    for network in map(Network.parse, given.networks):
        by_gamma = []
        for gamma in given.gammas:
            trials = found.trials(network, parse_variant(f"focal {gamma:g}"))
            several = [norms(read_parts(entry)[0], gamma) for entry in trials]
            means, small = [float(one.mean()) for one in several], [float(np.mean(one < _SMALL)) for one in several]
            by_gamma += [float(np.mean(means))] if means else []
            rows.append(
                (network.label, f"{gamma:g}", format_spread(means, factor=1, digits=3), format_spread(small, digits=1))
            )
            names = {f"mean norm({network}, {gamma:g})": means, f"small({network}, {gamma:g})": small}
            values |= {name: float(np.mean(each)) for name, each in names.items() if each}
            absent += [name for name, each in names.items() if not each]
            if several and network in drawn:
                pooled = np.concatenate(several)
                edges = np.linspace(0, np.sqrt(2), given.bins + 1)  # the largest |p - e_y|
                shares = np.histogram(np.minimum(pooled, edges[-1]), edges)[0] / len(pooled)
                histograms.append({"network": str(network), "gamma": gamma, "edges": edges, "shares": shares})
        if len(by_gamma) == len(given.gammas):
            values[f"least fall({network})"] = -float(np.diff(by_gamma).max())
        else:
            absent.append(f"least fall({network})")
    return Numbers(values, {"histograms": histograms}, collapse_rows(rows, labels=2), tuple(absent))


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw one panel per network, with logarithmic scales."""
    histograms = numbers.curves["histograms"]
    networks = list(dict.fromkeys(item["network"] for item in histograms)) or [""]
    figure.set_size_inches(style.WIDTH * (0.72 if len(networks) == 1 else 1), 3.2)
    panels = figure.subplots(1, len(networks), squeeze=False, sharey=True)[0]
    for index, (ax, network) in enumerate(zip(panels, networks, strict=True)):
        ax.set(yscale="log", xlabel="gradient norm with respect to the logits")
        if network:
            style.label_panel(ax, index, Network.parse(network).label)
        else:
            ax.text(0.5, 0.5, NO_ENTRY, ha="center", transform=ax.transAxes)
        for item in histograms:
            if item["network"] == network:
                look = style.line(given.gammas.index(item["gamma"]), linewidth=1.2)
                label = f"γ = {item['gamma']:g}" if item["gamma"] else "cross-entropy"
                ax.stairs(item["shares"], item["edges"], label=label, **look)
    panels[0].set_ylabel("share of samples")
    style.add_common_legend(figure, panels)


KIND = zoo_kind(Parameters, compute, draw)
