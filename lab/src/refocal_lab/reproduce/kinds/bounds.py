"""Temperatures that bound the binary focal map, in theory and by experiment (003, Fig. 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logit

import refocal
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import Context, Kind, Numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDES = ("lower", "upper")


@dataclass(frozen=True)
class Parameters:
    """The grid of the experiment.

    Attributes:
        largest_gamma: Gammas are spaced evenly from 0 to it.
        gammas: How many.
        example: The gamma whose bounds are recorded.
        logit_range: Logits lie in plus or minus this.
        narrower_range: Another range of logits for which the example's bounds are recorded.
        logit_step: Between logits.
        temperature_step: Between the temperatures tried.
    """

    largest_gamma: float
    gammas: int
    example: float
    logit_range: float
    narrower_range: float
    logit_step: float
    temperature_step: float


def find_bounds(gamma: float, given: Parameters, *, logit_range: float) -> tuple[float, float]:
    """The tightest temperatures of the grid whose scalings enclose the map at all logits of the grid.

    With FC(s) = sigmoid(k(s) s), scaling by T lies on one side of the map where 1 / T exceeds k everywhere, on the
    other where it stays below: no temperature has to be tried one by one. k is even, so negative logits are enough,
    whose probabilities do not saturate.
    """
    s = -np.arange(given.logit_step, logit_range, given.logit_step)
    mapped = refocal.posterior_from_logits(np.column_stack([s, np.zeros_like(s)]), gamma=gamma)[:, 0]
    slope = logit(mapped) / s
    slack = 1e-9  # a temperature that bounds the map up to rounding bounds it
    lower = np.floor((1 / slope.max() + slack) / given.temperature_step) * given.temperature_step
    upper = np.ceil((1 / slope.min() - slack) / given.temperature_step) * given.temperature_step
    return float(lower), float(upper)


def compute(given: Parameters, context: Context) -> Numbers:
    """Bounds for all gammas."""
    gammas = np.linspace(0, given.largest_gamma, given.gammas)
    theory = np.array([refocal.temperature_bounds(gamma) for gamma in gammas])
    context.progress(f"experimental bounds for {len(gammas)} gammas")
    found = np.array([find_bounds(gamma, given, logit_range=given.logit_range) for gamma in gammas])
    several = {
        "theory": refocal.temperature_bounds(given.example),
        "experiment": find_bounds(given.example, given, logit_range=given.logit_range),
        "narrower experiment": find_bounds(given.example, given, logit_range=given.narrower_range),
    }
    values = {f"{side}({name})": b for name, pair in several.items() for side, b in zip(_SIDES, pair, strict=True)}
    values["experiment inside theory"] = float(
        np.mean(
            (found[:, 0] >= theory[:, 0] - given.temperature_step)
            & (found[:, 1] <= theory[:, 1] + given.temperature_step)
        )
    )
    return Numbers(values, {"gamma": gammas, "theory": theory.T, "experiment": found.T})


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """The bounds on the left, their widths on the right."""
    left, right = figure.subplots(1, 2)
    gammas = np.asarray(numbers.curves["gamma"])
    for index, name in enumerate(("theory", "experiment")):
        lower, upper = np.asarray(numbers.curves[name])
        left.plot(gammas, lower, label=f"{name}, lower and upper", **style.line(index))
        left.plot(gammas, upper, **style.line(index))
        left.fill_between(gammas, lower, upper, color=style.color(index), alpha=(0.12, 0.3)[index], linewidth=0)
        right.plot(gammas, upper - lower, label=name, **style.line(index))
    left.set(xlim=(0, given.largest_gamma), ylim=(0, 1), xlabel="γ", ylabel="temperature T")
    right.set(xlim=(0, given.largest_gamma), ylim=(0, None), xlabel="γ", ylabel="width of the bounds")
    for index, ax in enumerate((left, right)):
        ax.legend(loc="upper right")
        style.label_panel(ax, index)


KIND = Kind(Parameters, compute, draw)
