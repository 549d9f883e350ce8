"""Figures 2 and 3 of Kimura and Naganuma (2024) for networks of the zoo: curvature by gamma, and against ECE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal_lab import zoo
from refocal_lab.reproduce import curvature_runs, style
from refocal_lab.reproduce.computation import NO_ENTRY, Context, Numbers
from refocal_lab.reproduce.curvature_runs import HESSIANS, names
from refocal_lab.reproduce.zoo_entries import (
    Network,
    Rows,
    collapse_rows,
    format_spread,
    is_focal_network,
    select_entries,
    zoo_kind,
)
from refocal_lab.zoo.published import parse_variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT = 1.85  # of a row of panels, in inches
_FEWEST = 3  # gammas of a network that is drawn
_NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Parameters:
    """The networks and the figure.

    Attributes:
        networks: For example "cifar10 resnet20".
        gammas: Focusing parameters; 0 for cross-entropy.
        part: Part of the data over which the Hessian is taken.
        ece_of: Part of the data over which ECE is taken, "val" or "test".
        against: "gamma" for Figure 2, "trace" for Figure 3.
    """

    networks: tuple[str, ...]
    gammas: tuple[float, ...]
    part: str
    ece_of: str
    against: str

    def wants(self, card: zoo.Card) -> bool:
        """Select these networks, trained with one of these gammas."""
        return is_focal_network(card, self.networks, self.gammas)


def compute(given: Parameters, context: Context) -> Numbers:
    """Collect the runs with the Hessians that their cards have, and summarize them."""
    found = select_entries(given, context)
    runs: list[dict[str, Any]] = []
    rows: Rows = [("network", "", *(f"γ = {gamma:g}" for gamma in given.gammas))]
    for network in map(Network.parse, given.networks):
        here = [
            _read_run(network, gamma, entry.card, given)
            for gamma in given.gammas
            for entry in found.trials(network, parse_variant(f"focal {gamma:g}"))
        ]
        runs += here
        rows += [
            (network.label, words, *_cells(given.gammas, here, key, factor)) for words, key, factor in _list_rows(given)
        ]
    record = curvature_runs.summarize_by_gamma if given.against == "gamma" else curvature_runs.fit_cubics
    numbers = record(runs)
    values = {f"{what}({about})": value for about, entry in numbers.items() for what, value in _flatten(entry).items()}
    absent = [f"{what}({about})" for about, what in _expected_values(given) if f"{what}({about})" not in values]
    return Numbers(values, {"runs": runs, "found": numbers}, collapse_rows(rows, labels=2), tuple(absent))


def _read_run(network: Network, gamma: float, card: zoo.Card, given: Parameters) -> dict[str, Any]:
    """Read a run with the Hessians that its card has; of several measurements, take the one with the most samples."""
    ece = card.content["val_ece"] if given.ece_of == "val" else card.ece
    run: dict[str, Any] = {"network": str(network), "gamma": gamma, "seed": card.seed, "ece": ece}
    for name in HESSIANS:
        entries = [
            each
            for each in card.content.get("curvature", [])
            if (each["part"], each["matrix"]) == (given.part, "hessian") and each["loss"] == name.replace("_", "-")
        ]
        if not entries:
            continue
        most = max(entries, key=lambda each: each["samples"])
        run[f"lambda_max_{name}"] = most["largest_eigenvalues"][0]
        run[f"trace_{name}"] = most["trace"]
    return run


def _list_rows(given: Parameters) -> list[tuple[str, str, float]]:
    """List the label, key and factor of each row."""
    key, words = ("lambda_max", "λmax") if given.against == "gamma" else ("trace", "trace")
    short = {"trained": "training loss", "cross_entropy": "cross-entropy"}
    return [*((f"{words}, {short[name]}", f"{key}_{name}", 1.0) for name in HESSIANS), ("ECE, %", "ece", 100.0)]


def _cells(gammas: tuple[float, ...], runs: curvature_runs.Runs, key: str, factor: float) -> list[str]:
    """Write means over seeds; networks of the zoo without this number are told from those that it lacks."""
    cells = []
    for gamma in gammas:
        some = [run for run in runs if run["gamma"] == gamma]
        values = [run[key] for run in some if key in run]
        cells.append(_NOT_MEASURED if some and not values else format_spread(values, factor=factor))
    return cells


def _flatten(entry: dict[str, Any]) -> dict[str, float]:
    """Flatten a record to single numbers: means with their limits if there are any."""
    flat: dict[str, float] = {}
    for what, value in entry.items():
        if isinstance(value, dict):
            flat[what] = value.get("mean", float(np.mean(value["seeds"])))
            flat |= {f"{what}, {end}": value[end] for end in ("low", "high") if end in value}
        elif not isinstance(value, list):
            flat[what] = float(value)
    return flat


def _expected_values(given: Parameters) -> list[tuple[str, str]]:
    """List the numbers that every network should have: subject and key."""
    if given.against == "gamma":
        means = [f"lambda_max_{name}_at_largest_over_at_0" for name in HESSIANS]
        means += ["gamma_of_least_ece", "ece_at_0_less_least_between", "ece_at_largest_less_least_between"]
        keys = [f"lambda_max_{name}_rank_correlation_with_gamma" for name in HESSIANS]
        keys += [f"{mean}{end}" for mean in means for end in ("", ", low", ", high")]
        return [(network, key) for network in given.networks for key in keys]
    keys = ["share_of_variance_explained", "trace_at_least_ece", "least_is_inside"]
    keys.append("rank_correlation_of_trace_and_gamma")
    return [(f"{network}, {name}", key) for network in given.networks for name in HESSIANS for key in keys]


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw one row of panels per network that was measured with three or more gammas."""
    runs = numbers.curves["runs"]
    measured = [run for name in HESSIANS for run in curvature_runs.with_hessian(runs, name)]
    counted = runs if given.against == "gamma" else measured
    gammas = {name: {run["gamma"] for run in counted if run["network"] == name} for name in given.networks}
    held = set(names(measured, "network"))
    networks = [name for name in given.networks if len(gammas[name]) >= _FEWEST and name in held]
    figure.set_size_inches(style.WIDTH, 0.4 + _HEIGHT * max(len(networks), 1))
    sharex: Any = "row" if given.against == "gamma" else False
    panels = figure.subplots(max(len(networks), 1), 2, squeeze=False, sharex=sharex)
    for axes, network in zip(panels, networks, strict=False):
        chosen = [run for run in runs if run["network"] == network]
        if given.against == "gamma":
            _draw_by_gamma(axes, chosen)
        else:
            for ax, name in zip(axes, HESSIANS, strict=True):
                with_it = curvature_runs.with_hessian(chosen, name)
                if with_it:
                    _draw_by_trace(ax, given, with_it, name, numbers.curves["found"].get(f"{network}, {name}"))
                else:
                    ax.text(0.5, 0.5, f"{HESSIANS[name]}:\n{_NOT_MEASURED}", ha="center", transform=ax.transAxes)
                    ax.set_axis_off()
        style.label_panels(axes, networks.index(network), Network.parse(network).label)
    style.add_common_legend(figure, panels.ravel())
    if not networks:
        for ax in panels.ravel():
            ax.set_axis_off()
        panels[0, 0].text(0.5, 0.5, NO_ENTRY, ha="center")


def _draw_by_gamma(axes: Any, runs: curvature_runs.Runs) -> None:
    for index, (name, words) in enumerate(HESSIANS.items()):
        measured = curvature_runs.with_hessian(runs, name)
        if measured:
            _draw_means(axes[0], measured, f"lambda_max_{name}", 1.0, index, label=words)
    axes[0].set(xlabel="γ", ylabel="λmax", xticks=names(runs, "gamma"))
    _draw_means(axes[1], runs, "ece", 100.0, 2, label="")
    axes[1].set(xlabel="γ", ylabel="ECE (%)")
    for ax in axes:
        style.start_at_zero(ax)


def _draw_means(ax: Axes, runs: curvature_runs.Runs, key: str, factor: float, index: int, *, label: str) -> None:
    gammas = names(runs, "gamma")
    means = [factor * np.mean([run[key] for run in runs if run["gamma"] == gamma]) for gamma in gammas]
    ax.plot(gammas, means, label=label, **style.line(index))
    dots: dict[str, Any] = {
        "marker": style.MARKERS[index],
        "markersize": 3,
        "linestyle": "none",
        "color": style.color(index),
    }
    ax.plot([run["gamma"] for run in runs], [factor * run[key] for run in runs], **dots)


def _draw_by_trace(
    ax: Axes, given: Parameters, runs: curvature_runs.Runs, name: str, fit: dict[str, Any] | None
) -> None:
    for gamma in names(runs, "gamma"):
        index = given.gammas.index(gamma)
        some = [run for run in runs if run["gamma"] == gamma]
        dots: dict[str, Any] = {"marker": style.MARKERS[index % len(style.MARKERS)], "color": style.color(index)}
        traces, eces = [run[f"trace_{name}"] for run in some], [100 * run["ece"] for run in some]
        ax.plot(traces, eces, markersize=4, linestyle="none", label=f"γ = {gamma:g}", **dots)
    if fit is not None:
        traces = [run[f"trace_{name}"] for run in runs]
        grid = np.linspace(min(traces), max(traces), 200)
        ax.plot(grid, 100 * np.polyval(fit["cubic_in_trace"], grid), color=style.GUIDE, linewidth=1.0)
    part = "validation " if given.ece_of == "val" else ""
    ax.set(xlabel=f"Tr(H), {HESSIANS[name]}", ylabel=f"{part}ECE (%)")
    style.start_at_zero(ax)


KIND = zoo_kind(Parameters, compute, draw)
