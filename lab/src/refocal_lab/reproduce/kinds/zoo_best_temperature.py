"""Figure 8 of Komisarenko and Kull (2024): the best temperature for each gamma of the focal map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from refocal.calibrators import FocalTemperatureScaling
from refocal_lab import zoo
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import NO_ENTRY, Context, Numbers
from refocal_lab.reproduce.kinds.zoo_focal_scaling import temperatures
from refocal_lab.reproduce.zoo_entries import Network, Rows, collapse_rows, is_focal_network, select_entries, zoo_kind
from refocal_lab.zoo.measures import LogitPart, read_parts
from refocal_lab.zoo.published import parse_variant

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Parameters:
    """The networks and the grids.

    Attributes:
        networks: For example "cifar10 resnet50".
        train_gammas: Gammas of the training losses.
        map_gammas: Gammas of the focal map.
        step: Step of the grid of temperatures up to 5.
    """

    networks: tuple[str, ...]
    train_gammas: tuple[float, ...]
    map_gammas: tuple[float, ...]
    step: float

    def wants(self, card: zoo.Card) -> bool:
        """Select these networks, trained with one of these gammas."""
        return is_focal_network(card, self.networks, self.train_gammas)


def compute(given: Parameters, context: Context) -> Numbers:
    """Compute the mean best temperatures over seeds, and the share of their variance that a line explains."""
    found = select_entries(given, context)
    values: dict[str, float] = {}
    absent, lines = [], []
    rows: Rows = [("network", "trained with", *(f"T at γ = {gamma:g}" for gamma in given.map_gammas), "R²")]
    for network in map(Network.parse, given.networks):
        for gamma in given.train_gammas:
            name = f"({network}, {gamma:g})"
            trials = found.trials(network, parse_variant(f"focal {gamma:g}"))
            if not trials:
                absent += [f"R2{name}", f"slope{name}"]
                rows.append((network.label, f"γ = {gamma:g}", *[NO_ENTRY] * (len(given.map_gammas) + 1)))
                continue
            context.progress(f"{network}, γ = {gamma:g}")
            best = np.mean([best_temperatures(read_parts(entry)[0], given) for entry in trials], axis=0)
            values[f"slope{name}"] = float(np.polyfit(given.map_gammas, best, 1)[0])
            values[f"R2{name}"] = float(np.corrcoef(given.map_gammas, best)[0, 1] ** 2)
            rows.append((network.label, f"γ = {gamma:g}", *(f"{T:.2f}" for T in best), f"{values[f'R2{name}']:.3f}"))
            lines.append({"network": str(network), "gamma": gamma, "temperatures": best})
    return Numbers(values, {"lines": lines}, collapse_rows(rows, labels=2), tuple(absent))


def best_temperatures(val: LogitPart, given: Parameters) -> list[float]:
    """Find, for each gamma of the map, the temperature with the lowest validation ECE (15 bins of equal mass)."""
    return [
        FocalTemperatureScaling(
            objective="adaptive_ece", search="grid", gamma_grid=[gamma], temperature_grid=temperatures(given.step)
        )
        .fit(val.logits, val.labels)
        .temperature_
        for gamma in given.map_gammas
    ]


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw one panel per network of the zoo, at most two side by side: their names are long."""
    held = list(dict.fromkeys(line["network"] for line in numbers.curves["lines"])) or [""]
    count = -(-len(held) // 2)
    figure.set_size_inches(style.WIDTH * (0.6 if len(held) == 1 else 1), 0.5 + 2.6 * count)
    grid = figure.subplots(count, min(len(held), 2), squeeze=False).ravel()
    panels = grid[: len(held)]
    for ax in grid[len(held) :]:
        ax.set_axis_off()
    for ax, network in zip(panels, held, strict=True):
        for line in numbers.curves["lines"]:
            if line["network"] == network:
                index = given.train_gammas.index(line["gamma"])
                ax.plot(
                    given.map_gammas,
                    line["temperatures"],
                    marker=style.MARKERS[index % len(style.MARKERS)],
                    markersize=4,
                    label=f"γ = {line['gamma']:g}",
                    **style.line(index),
                )
        ax.set(xlabel="γ of the focal map", ylabel="best temperature T")
        if network:
            style.label_panel(ax, held.index(network), Network.parse(network).label)
        else:
            ax.text(0.5, 0.5, NO_ENTRY, ha="center", transform=ax.transAxes)
    by_lines = sorted(panels, key=lambda ax: -len(ax.lines))  # a panel with every γ first, so that they are in order
    style.add_common_legend(figure, by_lines, title="trained with")


KIND = zoo_kind(Parameters, compute, draw)
