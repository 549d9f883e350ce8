"""Figures 2 and 6 of Komisarenko and Kull (2024): the temperature scaling nearest to the focal map, and its error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import refocal
from refocal import _check
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import Context, Kind, Numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE = ("slope", "intercept")


@dataclass(frozen=True)
class Parameters:
    """The relation between gamma and 1 / T.

    Attributes:
        classes: Numbers of classes, from 2 to 4.
        largest_gamma: Gammas are evenly spaced from 0 to this value.
        gammas: Number of gammas.
        logit_range: Bound on the absolute value of the logits.
        fits_up_to: A line is fitted to the gammas up to each of these values; the first line is drawn.
        recorded: Gammas whose temperatures are recorded.
        right: Content of the right panel: "maps" for the binary maps at the recorded gammas, or "error".
    """

    classes: tuple[int, ...]
    largest_gamma: float
    gammas: int
    logit_range: float
    fits_up_to: tuple[float, ...]
    recorded: tuple[float, ...]
    right: str


def compute(given: Parameters, context: Context) -> Numbers:
    """Compute the nearest temperatures, a line through their inverses, and the errors."""
    _check.one_of(given.right, "right", ("maps", "error"))
    gammas = np.linspace(0, given.largest_gamma, given.gammas)
    values: dict[str, float] = {}
    inverses, errors = [], []
    for classes in given.classes:
        nearest = []
        for gamma in gammas:
            context.progress(f"{classes} classes, gamma = {gamma:.3g} of {given.largest_gamma:g}")
            nearest.append(refocal.closest_temperature(gamma, classes=classes, logit_range=given.logit_range))
        inverse = np.array([1 / found.temperature for found in nearest])
        error = np.array([found.error for found in nearest])
        for end in given.fits_up_to:
            slope, intercept = np.polyfit(gammas[gammas <= end], inverse[gammas <= end], 1)
            values |= {f"slope({classes}, {end:g})": float(slope), f"intercept({classes}, {end:g})": float(intercept)}
        values[f"largest error({classes})"] = float(error.max())
        inverses.append(inverse)
        errors.append(error)
        for gamma in given.recorded:
            found = refocal.closest_temperature(gamma, classes=classes, logit_range=given.logit_range)
            values |= {f"T({classes}, {gamma:g})": found.temperature, f"error({classes}, {gamma:g})": found.error}
    curves = {"gamma": gammas, "inverse": inverses, "error": errors}
    if given.right == "maps":
        logits = np.linspace(-4, 4, 161)
        pairs = np.column_stack([logits, np.zeros_like(logits)])
        maps = [refocal.posterior_from_logits(pairs, gamma=gamma)[:, 0] for gamma in given.recorded]
        curves |= {"logit": logits, "map": maps}
    return Numbers(values, curves)


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw 1 / T against gamma on the left, maps or errors on the right."""
    figure.set_size_inches(style.WIDTH, 3.2)
    left, right = figure.subplots(1, 2)
    gammas = np.asarray(numbers.curves["gamma"])
    shown = slice(None, None, max(1, len(gammas) // 20))
    for index, classes in enumerate(given.classes):
        slope, intercept = (numbers.values[f"{name}({classes}, {given.fits_up_to[0]:g})"] for name in _LINE)
        left.plot(
            gammas[shown],
            np.asarray(numbers.curves["inverse"][index])[shown],
            linestyle="none",
            marker=style.MARKERS[index],
            markersize=4,
            markerfacecolor="white",
            color=style.color(index),
            label=f"{classes} classes",
        )
        words = f"{slope:.2f} γ + {intercept:.2f}"
        left.plot(gammas, slope * gammas + intercept, label=words, **style.line(index, linewidth=1))
    left.set(xlim=(0, None), ylim=(0, None), xlabel="γ", ylabel="inverse of the nearest temperature, 1/T")
    left.legend(loc="upper left")
    style.label_panel(left, 0)
    (_draw_maps if given.right == "maps" else _draw_errors)(right, given, numbers)
    style.label_panel(right, 1)


def _draw_maps(ax: Axes, given: Parameters, numbers: Numbers) -> None:
    logits = np.asarray(numbers.curves["logit"])
    for index, (gamma, curve) in enumerate(zip(given.recorded, numbers.curves["map"], strict=True)):
        temperature = numbers.values[f"T(2, {gamma:g})"]
        ax.plot(
            logits, curve, color=style.color(index + 1), linewidth=3.2, alpha=0.45, label=f"focal map, γ = {gamma:g}"
        )
        scaled = 1 / (1 + np.exp(-logits / temperature))
        ax.plot(logits, scaled, label=f"T = {temperature:.3f}", **style.line(index + 1, linewidth=1.1))
    ax.set(xlim=(-4, 4), ylim=(0, 1), xlabel="logit", ylabel="probability after the map")
    ax.legend(loc="upper left")


def _draw_errors(ax: Axes, given: Parameters, numbers: Numbers) -> None:
    for index, classes in enumerate(given.classes):
        percent = 100 * np.asarray(numbers.curves["error"][index])
        ax.plot(numbers.curves["gamma"], percent, label=f"{classes} classes", **style.line(index))
    ax.set(xlim=(0, None), ylim=(0, None), xlabel="γ", ylabel="largest difference in probability (%)")
    ax.legend(loc="upper left")


KIND = Kind(Parameters, compute, draw)
