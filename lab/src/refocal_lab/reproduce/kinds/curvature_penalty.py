"""Figure 4 of Kimura and Naganuma (2024): ECE and the trace of the Hessian with a penalty on the trace."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import NO_ENTRY, Context, Kind, Numbers
from refocal_lab.reproduce.curvature_runs import CHANGES, Runs, names, rank_correlation, summarize_by_tau
from refocal_lab.reproduce.penalized_networks import PenaltyRecipe, load_parts, train_penalized
from refocal_lab.reproduce.zoo_entries import Rows, format_spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MEASURES = {"trace": "Tr(H)", "ece": "ECE", "error": "error"}
_PERCENT = {"trace": 1.0, "ece": 100.0, "error": 100.0}


@dataclass(frozen=True)
class Parameters:
    """The data and the networks.

    Attributes:
        data: Name of the data set.
        train_samples: Number of samples to train on.
        val_samples: Number of samples over which the Hessian is taken.
        hidden: Number of hidden units.
        taus: Strengths of the penalty; the first is 0.
        rates: Learning rates.
        seeds: Number of networks per strength and rate.
        epochs: Number of passes over the training samples.
        batch: Number of samples per step.
        probes: Random vectors per group of 128 samples for the trace.
    """

    data: str
    train_samples: int
    val_samples: int
    hidden: int
    taus: tuple[float, ...]
    rates: tuple[float, ...]
    seeds: int
    epochs: int
    batch: int
    probes: int


def compute(given: Parameters, context: Context) -> Numbers:
    """Train one network per strength, rate and seed; a rank correlation is that of tau and the mean over seeds."""
    parts = load_parts(given.data, context.data, train=given.train_samples, val=given.val_samples)
    recipe = PenaltyRecipe(given.hidden, given.epochs, given.batch, given.probes)
    runs = []
    for seed, rate, tau in product(range(given.seeds), given.rates, given.taus):
        context.progress(f"τ = {tau:g}, learning rate {rate:g}, seed {seed}")
        runs.append(train_penalized(parts, recipe, tau=tau, rate=rate, seed=seed))
    values = {"diverged": float(sum(run["diverged"] for run in runs)), "runs": float(len(runs))}
    values |= summarize_by_tau(runs)
    kept = [run for run in runs if not run["diverged"]]
    expected = [
        f"{name}{end}({rate:g}, {tau:g})"
        for name, end in product(CHANGES, ("", ", low", ", high"))
        for rate, tau in product(given.rates, given.taus[1:])
    ]
    absent = [name for name in expected if name not in values]
    for key, rate in product(("trace", "ece"), given.rates):
        name, own = f"rank correlation of {key} and tau({rate:g})", [run for run in kept if run["rate"] == rate]
        taus = names(own, "tau")
        if len(taus) > 1:
            values[name] = rank_correlation(taus, [float(np.mean(_pick(own, tau, key))) for tau in taus])
        else:
            absent.append(name)
    return Numbers(values, {"runs": runs}, _rows(given, runs), tuple(absent))


def _pick(runs: Runs, tau: float, key: str) -> list[float]:
    return [run[key] for run in runs if run["tau"] == tau and not run["diverged"]]


def _rows(given: Parameters, runs: Runs) -> tuple[tuple[str, ...], ...]:
    rows: Rows = [("learning rate", "", *(f"τ = {tau:g}" for tau in given.taus))]
    for rate, (key, words) in product(given.rates, _MEASURES.items()):
        own = [run for run in runs if run["rate"] == rate]
        cells = (format_spread(_pick(own, tau, key), factor=_PERCENT[key]) for tau in given.taus)
        rows.append(
            (f"{rate:g}", words + " (%)" * (key != "trace"), *(cell.replace(NO_ENTRY, "diverged") for cell in cells))
        )
    return tuple(rows)


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw ECE against the trace, then both against tau; marks are learning rates in all panels."""
    figure.set_size_inches(style.WIDTH, 3.1)
    runs = [run for run in numbers.curves["runs"] if not run["diverged"]]
    plane, *others = figure.subplots(1, 3)
    shades = np.linspace(0.8, 0.0, len(given.taus))
    for (index, rate), (shade, tau) in product(enumerate(given.rates), zip(shades, given.taus, strict=True)):
        own = [run for run in runs if (run["rate"], run["tau"]) == (rate, tau)]
        if not own:  # all diverged
            continue
        dots: dict[str, Any] = {"marker": style.MARKERS[index], "markersize": 5, "linestyle": "none"}
        plane.plot(_pick(own, tau, "trace"), [100 * ece for ece in _pick(own, tau, "ece")], color=_shade(shade), **dots)
    plane.set(xlabel="Tr(H)", ylabel="ECE (%)")
    for ax, key, label in zip(others, ("trace", "ece"), ("Tr(H)", "ECE (%)"), strict=True):
        _draw_by_tau(ax, given, runs, key)
        ax.set(xlabel="τ", ylabel=label)
    for index, ax in enumerate((plane, *others)):
        style.label_panel(ax, index)
        style.start_at_zero(ax)
    _add_legend(figure, given, shades)


def _shade(lightness: float) -> tuple[float, float, float]:
    """A blue from light to dark."""
    return (0.85 * lightness + 0.02, 0.75 * lightness + 0.2, 0.6 * lightness + 0.38)


def _draw_by_tau(ax: Axes, given: Parameters, runs: Runs, key: str) -> None:
    places = range(len(given.taus))
    for index, rate in enumerate(given.rates):
        own = [run for run in runs if run["rate"] == rate]
        found = {place: _pick(own, tau, key) for place, tau in zip(places, given.taus, strict=True)}
        held = {place: _PERCENT[key] * np.array(values) for place, values in found.items() if values}
        means = [values.mean() for values in held.values()]
        reach = [
            [mean - values.min() for mean, values in zip(means, held.values(), strict=True)],
            [values.max() - mean for mean, values in zip(means, held.values(), strict=True)],
        ]
        dashes = style.line(index, linewidth=1.0, color="0.25")
        at = np.array(list(held)) + 0.08 * (index - (len(given.rates) - 1) / 2)
        ax.errorbar(at, means, yerr=reach, marker=style.MARKERS[index], markersize=4, elinewidth=0.8, **dashes)
    ax.set_xticks(places, [_format_tau(tau) for tau in given.taus])


def _add_legend(figure: Figure, given: Parameters, shades: np.ndarray) -> None:
    from matplotlib.lines import Line2D

    rates = [
        Line2D([], [], marker=style.MARKERS[index], **style.line(index, linewidth=1.0, color="0.25"))
        for index in range(len(given.rates))
    ]
    taus = [Line2D([], [], marker="h", linestyle="none", markersize=7, color=_shade(shade)) for shade in shades]
    labels = [f"learning rate {rate:g}" for rate in given.rates]
    figure.legend(rates, labels, loc="outside upper center", ncols=len(rates))
    shades_of = [f"τ = {_format_tau(tau)}" for tau in given.taus]
    where: dict[str, Any] = {"loc": "outside lower left", "title": "shades in panel (a)", "alignment": "left"}
    figure.legend(taus, shades_of, ncols=len(taus), handlelength=1, **where)


def _format_tau(tau: float) -> str:
    """Write small powers of ten as such, so that labels of an axis do not touch."""
    exponent = np.log10(tau) if tau else 0.0
    return f"$10^{{{exponent:.0f}}}$" if exponent <= -3 and exponent.is_integer() else f"{tau:g}"


KIND = Kind(Parameters, compute, draw, needs=("torch",))
