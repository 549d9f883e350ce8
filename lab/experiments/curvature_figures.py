"""Summary of the runs of `curvature.py` with a penalty, and the figures of all runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from refocal_lab.reproduce.curvature_runs import HESSIANS, Runs, at, by_seed, interval, names, ratio_by_seed

COLORS = ("#0b6e99", "#c4541a", "#4b7f3a", "#7a4fa0", "#8a6d3b")


def summarize_by_tau(runs: Runs) -> dict[str, Any]:
    """Summarize Figure 4: ECE, error and trace with and without penalty, by tau and learning rate."""
    found: dict[str, Any] = {}
    for rate in names(runs, "rate"):
        for tau in [tau for tau in names(runs, "tau") if tau]:
            pair = [run for run in runs if run["rate"] == rate and run["tau"] in (0.0, tau)]
            lost = [run["seed"] for run in pair if run["diverged"]]
            kept = [run for run in pair if run["seed"] not in lost]
            entry: dict[str, Any] = {"diverged_seeds": lost}
            for key in ("ece", "error"):
                entry[f"{key}_less_at_0"] = by_seed(
                    kept, lambda each, key=key, tau=tau: at(each, "tau", tau, key) - at(each, "tau", 0.0, key)
                )
            key = "trace_cross_entropy"
            entry["trace_over_at_0"] = ratio_by_seed(
                kept, lambda each, key=key, tau=tau: at(each, "tau", tau, key) / at(each, "tau", 0.0, key)
            )
            found[f"rate {rate:g}, tau {tau:g}"] = entry
    return found


def against_gamma(runs: Runs) -> Figure:
    """Draw lambda_max and ECE against gamma, with intervals over seeds."""
    networks = names(runs, "network")
    figure = Figure(figsize=(7.2, 2.9 * len(networks)), layout="constrained")
    for axes, network in zip(figure.subplots(len(networks), 2, squeeze=False), networks, strict=True):
        chosen = [run for run in runs if run["network"] == network]
        for (name, label), color in zip(HESSIANS.items(), COLORS, strict=False):
            _band(axes[0], chosen, "gamma", f"lambda_max_{name}", label=label, color=color)
        axes[0].set(ylim=(0, None), ylabel=f"{network}: λmax on validation data", xlabel="γ")
        axes[0].legend(frameon=False, fontsize="small")
        _band(axes[1], chosen, "gamma", "ece", label="", color=COLORS[2])
        axes[1].set(ylabel=f"{network}: ECE on test data", xlabel="γ", ylim=(0, None))
    return figure


def against_trace(runs: Runs, fits: dict[str, Any]) -> Figure:
    """Draw ECE against the trace with the fitted cubic, with one color per gamma."""
    networks = names(runs, "network")
    figure = Figure(figsize=(7.6, 2.9 * len(networks)), layout="constrained")
    rows = figure.subplots(len(networks), 2, squeeze=False)
    for axes, network in zip(rows, networks, strict=True):
        chosen = [run for run in runs if run["network"] == network]
        for axis, (name, label) in zip(axes, HESSIANS.items(), strict=True):
            trace = np.array([run[f"trace_{name}"] for run in chosen])
            shown = axis.scatter(
                trace, [run["ece"] for run in chosen], c=[run["gamma"] for run in chosen], cmap="viridis", s=22
            )
            grid = np.linspace(trace.min(), trace.max(), 200)
            fit = fits[f"{network}, {name}"]["cubic_in_trace"]
            axis.plot(grid, np.polyval(fit, grid), color="0.3", linewidth=1)
            axis.set(xlabel=f"Tr(H), {label}", ylabel=f"{network}: ECE", ylim=(0, None))
    figure.colorbar(shown, ax=rows, label="γ", shrink=0.6)
    return figure


def against_tau(every: Runs) -> Figure:
    """Draw ECE against the trace, with one color per tau and one mark per learning rate; then both against tau.

    Diverged runs are left out; a band needs two runs.
    """
    runs = [run for run in every if not run["diverged"]]
    figure = Figure(figsize=(9.6, 3.2), layout="constrained")
    plane, *others = figure.subplots(1, 3)
    for rate, mark in zip(names(runs, "rate"), "os^", strict=True):
        for tau, color in zip(names(runs, "tau"), COLORS, strict=True):
            points = [run for run in runs if run["tau"] == tau and run["rate"] == rate]
            label = f"τ = {tau:g}" if mark == "o" else None
            trace, ece = ([run[key] for run in points] for key in ("trace_cross_entropy", "ece"))
            plane.scatter(trace, ece, color=color, marker=mark, s=22, label=label)
    plane.set(xlabel="Tr(H)", ylabel="ECE", ylim=(0, None))
    plane.legend(frameon=False, fontsize="x-small")
    for axis, key, label in zip(others, ("trace_cross_entropy", "ece"), ("Tr(H)", "ECE"), strict=True):
        for rate, color in zip(names(runs, "rate"), COLORS, strict=False):
            chosen = [run for run in runs if run["rate"] == rate]
            _band(axis, chosen, "tau", key, label=f"learning rate {rate:g}", color=color)
        axis.set(ylabel=label, xlabel="τ", xlim=(0, None))
        axis.set_xscale("symlog", linthresh=min(tau for tau in names(runs, "tau") if tau))
    for axis in others:
        axis.set(ylim=(0, None))
    others[0].legend(frameon=False, fontsize="x-small")
    return figure


def save(figure: Figure, folder: Path) -> None:
    """Save a figure as SVG and PNG."""
    figure.savefig(folder / "figure.svg", metadata={"Date": None})
    figure.savefig(folder / "figure.png", dpi=120)


def _band(axis: Any, runs: Runs, across: str, key: str, *, label: str, color: str) -> None:
    places = [place for place in names(runs, across) if sum(run[across] == place for run in runs) > 1]
    limits = [interval([run[key] for run in runs if run[across] == place]) for place in places]
    axis.plot(places, [each["mean"] for each in limits], marker="o", markersize=3, color=color, label=label)
    for run in runs:
        axis.plot(run[across], run[key], marker=".", markersize=3, color=color, alpha=0.5)
    axis.fill_between(
        places,
        [each["low"] for each in limits],
        [each["high"] for each in limits],
        color=color,
        alpha=0.15,
        linewidth=0,
    )
