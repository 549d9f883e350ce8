"""Figure 3 of Komisarenko and Kull (2024): temperatures that bound the binary focal map."""

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
        largest_gamma: Gammas are evenly spaced from 0 to this value.
        gammas: Number of gammas.
        example: Gamma whose bounds are recorded.
        logit_range: Bound on the absolute value of the logits.
        narrower_range: Another bound on the logits, for which the bounds of the example are recorded.
        logit_step: Step between logits.
        temperature_step: Step between temperatures.
    """

    largest_gamma: float
    gammas: int
    example: float
    logit_range: float
    narrower_range: float
    logit_step: float
    temperature_step: float


def find_bounds(gamma: float, given: Parameters, *, logit_range: float) -> tuple[float, float]:
    """Find the tightest temperatures of the grid whose scalings enclose the map at all logits of the grid.

    Write FC(s) = sigmoid(k(s) s). Scaling by T lies on one side of the map if 1 / T exceeds k everywhere, and on the
    other side if 1 / T is always below k, so the temperatures need not be tried one by one. Because k is even, negative
    logits are enough; their probabilities do not saturate.
    """
    s = -np.arange(given.logit_step, logit_range, given.logit_step)
    mapped = refocal.posterior_from_logits(np.column_stack([s, np.zeros_like(s)]), gamma=gamma)[:, 0]
    slope = logit(mapped) / s
    slack = 1e-9  # allow for rounding errors
    lower = np.floor((1 / slope.max() + slack) / given.temperature_step) * given.temperature_step
    upper = np.ceil((1 / slope.min() - slack) / given.temperature_step) * given.temperature_step
    return float(lower), float(upper)


def compute(given: Parameters, context: Context) -> Numbers:
    """Compute the bounds for all gammas."""
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
    """Draw the bounds on the left, their widths on the right."""
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
