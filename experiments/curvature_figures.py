"""What the runs of `curvature.py` show: numbers with intervals over seeds, and the figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

Runs = Sequence[dict[str, Any]]
HESSIANS = {"trained": "Hessian of the loss trained with", "cross_entropy": "Hessian of cross-entropy"}
COLOURS = ("#0b6e99", "#c4541a", "#4b7f3a", "#7a4fa0", "#8a6d3b")


def interval(values: Sequence[float]) -> dict[str, float]:
    """Mean and 95 % limits of Student's t over seeds."""
    given = np.asarray(values, dtype=float)
    half = float(stats.t.ppf(0.975, len(given) - 1) * given.std(ddof=1) / np.sqrt(len(given)))
    return {"mean": float(given.mean()), "low": float(given.mean() - half), "high": float(given.mean() + half)}


def by_seed(runs: Runs, number: Callable[[Runs], float], *, interval_of: bool = True) -> dict[str, Any]:
    """A number for each seed's runs, and the interval of their mean unless they are bounded, as correlations are."""
    seeds = sorted({run["seed"] for run in runs})
    values = [number([run for run in runs if run["seed"] == seed]) for seed in seeds]
    return {"seeds": values, **(interval(values) if interval_of and len(values) > 1 else {})}


def ratio_by_seed(runs: Runs, number: Callable[[Runs], float]) -> dict[str, Any]:
    """The same for a ratio: geometric mean, and limits from its logarithms."""
    logs = by_seed(runs, lambda each: float(np.log(number(each))))
    return {key: np.exp(value).tolist() for key, value in logs.items()}


def found_by_gamma(runs: Runs) -> dict[str, Any]:
    """Figure 2: how lambda_max goes with gamma, and where ECE is least."""
    found: dict[str, Any] = {}
    for network in _names(runs, "network"):
        chosen = [run for run in runs if run["network"] == network]
        entry: dict[str, Any] = {}
        for name in HESSIANS:
            key = f"lambda_max_{name}"
            entry[f"{key}_rank_correlation_with_gamma"] = by_seed(
                chosen, lambda each, key=key: _rank(each, "gamma", key), interval_of=False
            )
            entry[f"{key}_at_10_over_at_0"] = ratio_by_seed(
                chosen, lambda each, key=key: _at(each, "gamma", 10.0, key) / _at(each, "gamma", 0.0, key)
            )
        entry["gamma_of_least_ece"] = by_seed(chosen, _gamma_of_least_ece)
        entry["ece_at_0_less_least_between"] = by_seed(
            chosen, lambda each: _at(each, "gamma", 0.0, "ece") - _between(each)
        )
        entry["ece_at_10_less_least_between"] = by_seed(
            chosen, lambda each: _at(each, "gamma", 10.0, "ece") - _between(each)
        )
        found[network] = entry
    return found


def cubic_fits(runs: Runs) -> dict[str, Any]:
    """Figure 3: ECE as a cubic in the trace, and the trace at which it is least inside the range."""
    found: dict[str, Any] = {}
    for network in _names(runs, "network"):
        for name in HESSIANS:
            chosen = [run for run in runs if run["network"] == network]
            trace, ece = (np.array([run[key] for run in chosen]) for key in (f"trace_{name}", "ece"))
            fit = np.polyfit(trace, ece, 3)
            rest = ece - np.polyval(fit, trace)
            grid = np.linspace(trace.min(), trace.max(), 2001)
            least = int(np.argmin(np.polyval(fit, grid)))
            found[f"{network}, {name}"] = {
                "cubic_in_trace": fit.tolist(),
                "share_of_variance_explained": float(1 - rest.var() / ece.var()),
                "trace_at_least_ece": float(grid[least]),
                "least_is_inside": bool(0 < least < len(grid) - 1),
                "rank_correlation_of_trace_and_gamma": by_seed(
                    chosen, lambda each, name=name: _rank(each, "gamma", f"trace_{name}"), interval_of=False
                ),
            }
    return found


def found_by_tau(runs: Runs) -> dict[str, Any]:
    """Figure 4: ECE, error and trace at each tau against those without penalty, at each learning rate."""
    found: dict[str, Any] = {}
    for rate in _names(runs, "rate"):
        for tau in [tau for tau in _names(runs, "tau") if tau]:
            pair = [run for run in runs if run["rate"] == rate and run["tau"] in (0.0, tau)]
            lost = [run["seed"] for run in pair if run["diverged"]]
            kept = [run for run in pair if run["seed"] not in lost]
            entry: dict[str, Any] = {"diverged_seeds": lost}
            for key in ("ece", "error"):
                entry[f"{key}_less_at_0"] = by_seed(
                    kept, lambda each, key=key, tau=tau: _at(each, "tau", tau, key) - _at(each, "tau", 0.0, key)
                )
            key = "trace_cross_entropy"
            entry["trace_over_at_0"] = ratio_by_seed(
                kept, lambda each, key=key, tau=tau: _at(each, "tau", tau, key) / _at(each, "tau", 0.0, key)
            )
            found[f"rate {rate:g}, tau {tau:g}"] = entry
    return found


def against_gamma(runs: Runs) -> Figure:
    """lambda_max and ECE over gamma, with intervals over seeds."""
    names = _names(runs, "network")
    figure = Figure(figsize=(7.2, 2.9 * len(names)), layout="constrained")
    for axes, network in zip(figure.subplots(len(names), 2, squeeze=False), names, strict=True):
        chosen = [run for run in runs if run["network"] == network]
        for (name, label), colour in zip(HESSIANS.items(), COLOURS, strict=False):
            _band(axes[0], chosen, "gamma", f"lambda_max_{name}", label=label, colour=colour)
        axes[0].set(ylim=(0, None), ylabel=f"{network}: λmax on validation data", xlabel="γ")
        axes[0].legend(frameon=False, fontsize="small")
        _band(axes[1], chosen, "gamma", "ece", label="", colour=COLOURS[2])
        axes[1].set(ylabel=f"{network}: ECE on test data", xlabel="γ", ylim=(0, None))
    return figure


def against_trace(runs: Runs, fits: dict[str, Any]) -> Figure:
    """ECE over the trace with the cubic fit, a colour for each gamma."""
    names = _names(runs, "network")
    figure = Figure(figsize=(7.6, 2.9 * len(names)), layout="constrained")
    rows = figure.subplots(len(names), 2, squeeze=False)
    for axes, network in zip(rows, names, strict=True):
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
    """ECE over the trace, a colour for each tau and a mark for each learning rate; and both over tau.

    Diverged runs are left out; a band needs two runs.
    """
    runs = [run for run in every if not run["diverged"]]
    figure = Figure(figsize=(9.6, 3.2), layout="constrained")
    plane, *others = figure.subplots(1, 3)
    for rate, mark in zip(_names(runs, "rate"), "os^", strict=True):
        for tau, colour in zip(_names(runs, "tau"), COLOURS, strict=True):
            points = [run for run in runs if run["tau"] == tau and run["rate"] == rate]
            label = f"τ = {tau:g}" if mark == "o" else None
            trace, ece = ([run[key] for run in points] for key in ("trace_cross_entropy", "ece"))
            plane.scatter(trace, ece, color=colour, marker=mark, s=22, label=label)
    plane.set(xlabel="Tr(H)", ylabel="ECE", ylim=(0, None))
    plane.legend(frameon=False, fontsize="x-small")
    for axis, key, label in zip(others, ("trace_cross_entropy", "ece"), ("Tr(H)", "ECE"), strict=True):
        for rate, colour in zip(_names(runs, "rate"), COLOURS, strict=False):
            chosen = [run for run in runs if run["rate"] == rate]
            _band(axis, chosen, "tau", key, label=f"learning rate {rate:g}", colour=colour)
        axis.set(ylabel=label, xlabel="τ", xlim=(0, None))
        axis.set_xscale("symlog", linthresh=min(tau for tau in _names(runs, "tau") if tau))
    for axis in others:
        axis.set(ylim=(0, None))
    others[0].legend(frameon=False, fontsize="x-small")
    return figure


def save(figure: Figure, folder: Path) -> None:
    """As SVG and PNG."""
    figure.savefig(folder / "figure.svg", metadata={"Date": None})
    figure.savefig(folder / "figure.png", dpi=120)


def _band(axis: Any, runs: Runs, across: str, key: str, *, label: str, colour: str) -> None:
    places = [place for place in _names(runs, across) if sum(run[across] == place for run in runs) > 1]
    limits = [interval([run[key] for run in runs if run[across] == place]) for place in places]
    axis.plot(places, [each["mean"] for each in limits], marker="o", markersize=3, color=colour, label=label)
    for run in runs:
        axis.plot(run[across], run[key], marker=".", markersize=3, color=colour, alpha=0.5)
    axis.fill_between(
        places,
        [each["low"] for each in limits],
        [each["high"] for each in limits],
        color=colour,
        alpha=0.15,
        linewidth=0,
    )


def _names(runs: Runs, key: str) -> list[Any]:
    return sorted({run[key] for run in runs})


def _at(runs: Runs, across: str, place: float, key: str) -> float:
    return next(run[key] for run in runs if run[across] == place)


def _gamma_of_least_ece(runs: Runs) -> float:
    return float(min(runs, key=lambda run: run["ece"])["gamma"])


def _between(runs: Runs) -> float:
    return min(run["ece"] for run in runs if 0 < run["gamma"] < 10)


def _rank(runs: Runs, one: str, two: str) -> float:
    return float(stats.spearmanr([run[one] for run in runs], [run[two] for run in runs]).statistic)
