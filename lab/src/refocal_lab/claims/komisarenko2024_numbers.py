"""Claims of Komisarenko and Kull (2024) with numbers: nearest temperatures, their fits and errors, tight bounds."""

from __future__ import annotations

from functools import cache, partial
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np

from refocal.maps.posterior import posterior as posterior_map
from refocal.maps.posterior import posterior_from_logits
from refocal.maps.sigmoid import sigmoid_minimizer
from refocal.maps.theory import ClosestTemperature, closest_temperature, temperature_bounds
from refocal_lab.claims.balls import decide, decimal, format_ball, posterior
from refocal_lab.claims.claim import (
    CheckMethod,
    Claim,
    Finding,
    Outcome,
    settle,
    settle_reproduction,
)
from refocal_lab.claims.identities import compare_printed, is_about

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOGITS = {2: 20.0, 3: 5.0, 4: 5.0}  # the paper's ranges of logits, by number of classes
_NODES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, *map(float, range(2, 11)))
_TOLERANCE = 0.015
_STEPS = (0.5, 0.25)  # of coarse grids of logits
_NEAR_CORNER, _LEAST_SCORE = 0.75, 1e-4  # as in the figure 003-fig-7
FITS = {2: (0.95, 0.85), 3: (0.64, 0.91), 4: (0.47, 0.85)}


@cache
def _nearest(gamma: float, classes: int) -> ClosestTemperature:
    return closest_temperature(gamma, classes=classes, logit_range=_LOGITS[classes])


@cache
def _curve(classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Gammas up to 10 in steps of 0.01, and the inverse nearest temperatures, interpolated between _NODES."""
    from scipy.interpolate import CubicSpline

    nodes = [1.0] + [1 / _nearest(gamma, classes).temperature for gamma in _NODES[1:]]
    gammas = np.arange(1, 1001) / 100
    return gammas, CubicSpline(_NODES, nodes)(gammas)


def _line(classes: int, most: float) -> np.ndarray:
    """Slope and intercept of the least-squares line through the curve, for gammas up to `most`."""
    gammas, inverse = _curve(classes)
    within = gammas <= most + 1e-9
    return np.polyfit(gammas[within], inverse[within], 1)


def _fit(classes: int) -> Finding:
    said = np.array(FITS[classes])
    lines = {most: _line(classes, most) for most in np.arange(2, 10.5, 0.5)}
    misses = {most: float(np.max(np.abs(line - said))) for most, line in lines.items()}
    whole = lines[10.0]
    printed = Outcome(
        misses[10.0] <= _TOLERANCE, f"over 0 < γ ≤ 10 the least-squares line is {whole[0]:.2f}γ + {whole[1]:.2f}"
    )
    near = [most for most, miss in misses.items() if miss <= _TOLERANCE]
    best = min(misses, key=misses.__getitem__)
    line = lines[best]
    inside = Outcome(bool(near), f"over 0 < γ ≤ {best:g} it is {line[0]:.2f}γ + {line[1]:.2f}")
    where = f"for a fit over 0 < γ ≤ Γ, {near[0]:g} ≤ Γ ≤ {near[-1]:g}" if near else "for the range with the best fit"
    return settle(printed, inside=inside, where=where)


def nearest_on_grid(gamma: float, *, classes: int, step: float) -> ClosestTemperature:
    """Find the nearest temperature over a uniform grid of logits in ±5.

    Both maps commute with permutations and ignore shifts, so the top logit may be 0 and the others in descending order.

    Args:
        gamma: Focusing parameter.
        classes: Number of classes.
        step: Step of the grid.
    """
    from scipy.optimize import minimize_scalar

    below = combinations_with_replacement(range(round(2 * _LOGITS[classes] / step) + 1), classes - 1)
    logits = -step * np.array([(0, *row) for row in below])
    mapped = posterior_from_logits(logits, gamma=gamma)

    def error(inverse: float) -> float:
        scaled = np.exp(inverse * logits)
        return float(np.max(np.abs(scaled / scaled.sum(axis=1, keepdims=True) - mapped)))

    found = minimize_scalar(error, bounds=(0.5, 1.5 * (1 + gamma)), method="bounded", options={"xatol": 1e-6})
    return ClosestTemperature(float(1 / found.x), float(found.fun))


def _four_class_fit() -> Finding:
    """The paper states neither the grid of logits nor the range of gammas of this fit; try several of both."""
    said = np.array(FITS[4])
    gammas = np.arange(1.0, 11.0)
    trials = []
    for step in _STEPS:
        inverse = 1 / np.array([nearest_on_grid(gamma, classes=4, step=step).temperature for gamma in gammas])
        trials.append(_judge_lines(f"grid step {step:g}", gammas, inverse, said))
    trials.append(_judge_lines("a fine grid", *_curve(4), said))
    return settle_reproduction(trials)


def _judge_lines(name: str, gammas: np.ndarray, inverse: np.ndarray, said: np.ndarray) -> Outcome:
    """Compare a printed line with the least-squares lines over 0 < gamma <= 3, ..., 10."""
    lines = {most: np.polyfit(gammas[gammas <= most], inverse[gammas <= most], 1) for most in range(3, 11)}
    best = min(lines, key=lambda most: float(np.max(np.abs(lines[most] - said))))
    slope, intercept = lines[best]
    agrees = bool(np.max(np.abs(lines[best] - said)) <= _TOLERANCE)
    return Outcome(agrees, f"{name}: at best {slope:.2f}γ + {intercept:.2f}, over 0 < γ ≤ {best}")


def no_temperature_within(
    gamma: str, tolerance: str, *, split: str, low: tuple[str, ...], high: tuple[str, ...]
) -> Outcome:
    """Check that every temperature scaling differs from the map by more than a tolerance.

    The top probability of softmax(b z) increases with b = 1/T. If it is too low at z = `low` for b = `split`, then it
    is too low for all smaller b. If it is too high at z = `high`, then it is too high for all larger b.
    """
    g, b, room = decimal(gamma), decimal(split), decimal(tolerance)
    gaps = []
    for z in (low, high):
        weights = [decimal(v).exp() for v in z]
        total = sum(weights[1:], start=weights[0])
        scaled = [(b * decimal(v)).exp() for v in z]
        top = scaled[0] / sum(scaled[1:], start=scaled[0])
        gaps.append(posterior([w / total for w in weights], g)[0] - top)
    words = (
        f"γ = {gamma}, 1/T = {split}: the map is {format_ball(gaps[0], 3)} above at logits ({', '.join(low)}), hence "
        f"also for smaller 1/T, and {format_ball(-gaps[1], 3)} below at ({', '.join(high)}), hence also for larger 1/T"
    )
    return decide((gaps[0] - room).min(-gaps[1] - room), words, "the points do not show it")


def _binary_error() -> Finding:
    worse = no_temperature_within("0.5", "0.001", split="1.3676", low=("0", "-2.6"), high=("0", "-0.7"))
    errors = {gamma: _nearest(gamma, 2).error for gamma in (0.8, *map(float, range(1, 11)))}
    inside = Outcome(max(errors.values()) < 1e-3, f"the largest of eleven differences is {max(errors.values()):.2g}")
    return settle(worse.as_counterexample(), inside=inside, where="for 0.8 ≤ γ ≤ 10")


def _three_class_error() -> Finding:
    printed, _ = compare_printed([("difference at γ = 9", _nearest(9.0, 3).error, "0.08")])
    return settle(printed)


def _four_class_error() -> Finding:
    worse = no_temperature_within(
        "9", "0.1", split="5.36", low=("0", "-0.2", "-3", "-3"), high=("0", "-0.4", "-0.4", "-0.4")
    )
    fine = f"on a fine grid the nearest temperature differs by {_nearest(9.0, 4).error:.3f}"
    coarse = nearest_on_grid(9.0, classes=4, step=_STEPS[0]).error
    return settle(
        worse.as_counterexample()._replace(words=f"{worse.words}; {fine}"),
        inside=Outcome(
            coarse <= 0.08, f"with step {_STEPS[0]:g} it is {coarse:.3f}; the paper does not state its grid"
        ),
        where="on a coarse grid of logits",
    )


def _temperatures(classes: int, said: tuple[tuple[float, str], ...], note: str) -> Finding:
    values = [(f"T at γ = {gamma:g}", _nearest(gamma, classes).temperature, number) for gamma, number in said]
    printed, _ = compare_printed(values)
    corrected, right = compare_printed([(name, value, f"{value:.2f}") for name, value, _ in values])
    return settle(printed, corrected=corrected.reword(f"{classes} classes: {right}; {note}"))


def _figure_2() -> Finding:
    low, high = temperature_bounds(3.0)
    note = (
        f"Proposition 3 allows [{low:.3f}, {high:.3f}] at γ = 3; {_nearest(3.0, 3).temperature:.3f} is the value for "
        "three classes, and the fit 0.95γ + 0.85 gives 0.76 at γ = 0.5"
    )
    return _temperatures(2, ((0.5, "0.76"), (3.0, "0.36")), note)


def _figure_5() -> Finding:
    half, two = (_nearest(gamma, 3).temperature for gamma in (0.5, 2.0))
    note = f"the printed values are those for γ = 0.5 ({half:.3f}) and γ = 2 ({two:.3f})"
    return _temperatures(3, ((1.0, "0.81"), (3.0, "0.46")), note)


def _corners() -> Finding:
    """The largest difference between the map and its nearest temperature scaling, near the corners and anywhere."""
    side = 400
    i, j = (axis.ravel() for axis in np.meshgrid(np.arange(side + 1), np.arange(side + 1)))
    rows = np.stack([i, j, side - i - j], axis=1)[i + j <= side] / side
    rows = _LEAST_SCORE + (1 - 3 * _LEAST_SCORE) * rows
    found = {}
    for gamma in (0.5, 3.0):
        scaled = rows ** (1 / _nearest(gamma, 3).temperature)
        mapped = posterior_map(rows, gamma=gamma)
        gaps = np.max(np.abs(mapped - scaled / scaled.sum(axis=1, keepdims=True)), axis=1)
        near = float(gaps[rows.max(axis=1) >= _NEAR_CORNER].max())
        place = ", ".join(f"{v:.2f}" for v in np.sort(rows[np.argmax(gaps)])[::-1])
        words = f"γ = {gamma:g}: {near:.4f} near the corners, and at most {gaps.max():.4f}, at ({place})"
        found[gamma] = Outcome(bool(near >= 0.99 * gaps.max()), words)
    return settle(found[0.5] & found[3.0], inside=found[0.5], where="for γ = 0.5")


def _common() -> Finding:
    """The gammas whose nearest temperature lies between about 0.4 and 0.5, each with one unit of its last digit."""
    low, high = 0.3, 0.6
    values = {gamma: _nearest(gamma, 3).temperature for gamma in (1.0, 2.0, 3.0)}
    gammas, inverse = _curve(3)
    within = gammas[(inverse >= 1 / high) & (inverse <= 1 / low)]
    words = ", ".join(f"γ = {gamma:g}: {value:.3f}" for gamma, value in values.items())
    printed = Outcome(all(low <= value <= high for value in values.values()), words)
    inside = Outcome(len(within) > 0, "T lies in this range on the interpolated curve")
    return settle(printed, inside=inside, where=f"for {within[0]:.2f} ≤ γ ≤ {within[-1]:.2f}")


def _below_one() -> Finding:
    gammas = (0.01, *_NODES[1:])
    warmest = max(gammas, key=lambda gamma: _nearest(gamma, 3).temperature)
    highest = _nearest(warmest, 3).temperature
    return settle(
        Outcome(highest < 1, f"for {len(gammas)} values of γ up to 10, T is at most {highest:.4f}, at γ = {warmest:g}")
    )


def _eighty() -> Finding:
    value = float(sigmoid_minimizer(np.array(0.8), gamma=2.0))
    return settle(Outcome(is_about(value, "0.62"), f"the prediction is {value:.4f}"))


def _tightness() -> Finding:
    """The temperatures u / logit FC(u) for 0 < u <= 20, from the map's log probabilities, which do not saturate."""
    u = np.arange(1, 20_001) / 1000
    log_probs = posterior_from_logits(np.stack([u, np.zeros_like(u)], axis=1), gamma=4.0, log=True)
    temperatures = u / (log_probs[:, 0] - log_probs[:, 1])
    theory = temperature_bounds(4.0)
    values = [
        ("lower bound of Proposition 3", theory.lower, "0.200"),
        ("upper bound of Proposition 3", theory.upper, "0.238"),
        ("tight lower bound", float(temperatures.min()), "0.206"),
        ("tight upper bound", float(temperatures.max()), "0.218"),
    ]
    printed, _ = compare_printed(values)
    corrected, right = compare_printed(
        [(name, value, "0.203" if said == "0.206" else said) for name, value, said in values]
    )
    return settle(printed, corrected=corrected.reword(right))


def draw_fit(ax: Axes, *, classes: int) -> None:
    """Draw the nearest temperatures, the printed line and the least-squares line."""
    gammas, inverse = _curve(classes)
    ax.plot(gammas, inverse, color="black", label=f"{classes} classes")
    for (slope, intercept), style, name in ((FITS[classes], "--", "printed"), (_line(classes, 10), ":", "fitted")):
        line = slope * gammas + intercept
        ax.plot(gammas, line, color="0.45", linestyle=style, label=f"{name}: {slope:.2f}γ + {intercept:.2f}")
    ax.set(xlim=(0, 10), xlabel="γ", ylabel="1/T closest to the map")
    ax.legend(frameon=False)


def _fit_claim(classes: int, name: str, place: str) -> Claim:
    slope, intercept = FITS[classes]
    return Claim(
        f"003-fit-{classes}",
        place,
        f"With {name} classes, the nearest temperature is given by 1/T ≈ {slope}γ + {intercept}.",
        CheckMethod.SEARCH,
        f"logits in ±{_LOGITS[classes]:g}, γ up to 10 in steps of 0.01; both coefficients within {_TOLERANCE}",
        partial(_fit, classes),
        partial(draw_fit, classes=classes),
    )


CLAIMS = (
    Claim(
        "003-text-80",
        "Section 3.1",
        "For a frequency of 0.8, focal loss with γ = 2 predicts around 0.62.",
        CheckMethod.IDENTITY,
        "two classes; we read around as within 0.01",
        _eighty,
    ),
    _fit_claim(2, "two", "Section 3.2 and Figure 2"),
    Claim(
        "003-text-error-2",
        "Section 3.2",
        "With two classes, the nearest temperature scaling differs from the map by less than 0.001.",
        CheckMethod.BALLS,
        "γ = 0.5: ball arithmetic, every T; γ from 0.8 to 10: a grid of logits in ±20",
        _binary_error,
    ),
    Claim(
        "003-fig-2",
        "Figure 2",
        "With two classes, the nearest temperatures are 0.76 (γ = 0.5) and 0.36 (γ = 3).",
        CheckMethod.SEARCH,
        "logits in ±20, rounded to two decimals",
        _figure_2,
    ),
    Claim(
        "003-text-tightness",
        "Section 3.2, below Proposition 3",
        "For γ = 4 the bounds are T = 0.2 and 0.238; the tightest bounds for logits in (−20, 20) are 0.206 and 0.218.",
        CheckMethod.SEARCH,
        "γ = 4, logits in ±20 in steps of 0.001",
        _tightness,
    ),
    _fit_claim(3, "three", "Section 3.3 and Figure 6"),
    Claim(
        "003-text-below-one",
        "Section 3.3",
        "With three classes, the nearest temperature is below 1 for all positive γ.",
        CheckMethod.SEARCH,
        "15 values of γ from 0.01 to 10; logits in ±5",
        _below_one,
    ),
    Claim(
        "003-text-error-3",
        "Section 3.3 and Figure 6",
        "With three classes, the difference rises to 8 % at γ = 9.",
        CheckMethod.SEARCH,
        "logits in ±5, rounded to whole percent",
        _three_class_error,
    ),
    Claim(
        "003-fig-5",
        "Figure 5",
        "With three classes, the nearest temperatures are 0.81 (γ = 1) and 0.46 (γ = 3).",
        CheckMethod.SEARCH,
        "logits in ±5, rounded to two decimals",
        _figure_5,
    ),
    Claim(
        "003-fig-7",
        "Section 3.3 and Figure 7",
        "With three classes, the map and its nearest temperature scaling differ most near the corners.",
        CheckMethod.SEARCH,
        "γ = 0.5 and 3, a grid of step 1/400; we read near a corner as a score of 0.75 or more, as in the gallery",
        _corners,
    ),
    Claim(
        "003-fit-4",
        "Section 3.3",
        "With four classes, the nearest temperature is given by 1/T ≈ 0.47γ + 0.85.",
        CheckMethod.SEARCH,
        "logits in ±5, fits over 0 < γ ≤ 3, …, 10, both coefficients within 0.015; the paper states neither the grid "
        "of logits nor the range of γ",
        _four_class_fit,
        partial(draw_fit, classes=4),
    ),
    Claim(
        "003-text-error-4",
        "Section 3.3",
        "With four classes, the difference is up to 8 % for larger γ.",
        CheckMethod.BALLS,
        "γ = 9, every T; coarse grid: logits in ±5",
        _four_class_error,
    ),
    Claim(
        "003-text-common",
        "Section 4.1",
        "For commonly used γ, the map is close to temperature scaling with T between about 0.4 and 0.5.",
        CheckMethod.SEARCH,
        "three classes, logits in ±5; γ = 1, 2 and 3, as in Mukhoti et al. (2020); we read the range as 0.3 to 0.6",
        _common,
    ),
)
