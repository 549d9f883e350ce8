"""Claims of Komisarenko and Kull (2024) about the focal calibration map, also with the negative gammas they use."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from flint import arb

from refocal.maps.posterior import posterior as core_posterior
from refocal_lab.claims import lemmas
from refocal_lab.claims.balls import c, decide, decimal, format_ball, phi, posterior, prove, s
from refocal_lab.claims.claim import CheckMethod, Claim, Finding, Outcome, settle
from refocal_lab.claims.sampling import search, simplex_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _any_value() -> Finding:
    """The map sends a prediction between 1/2 and 0.8 below 0.8 for gamma = 0, and above it for a large gamma."""
    goal = decimal("0.8")
    for k in range(1, 30):
        v = decimal(f"0.{50 + k}")
        ends = [v / phi(v, g) / (v / phi(v, g) + (1 - v) / phi(1 - v, g)) for g in (arb(0), arb(150))]
        if not (ends[0] < goal < ends[1]):
            return settle(Outcome(None, f"0.{50 + k} is not decided"))
    words = "at 0.51, 0.52, …, 0.79, Ψ is below 0.8 for γ = 0, above 0.8 for γ = 150, and continuous in γ"
    return settle(Outcome(True, words))


def _proper_part() -> Finding:
    """The proper part at eta is the loss at Psi^-1(eta), which lies between eta and 1/2."""
    return settle(lemmas.binary_gap_grows().prefix("Ψ⁻¹(η) lies strictly between η and 1/2"))


def _others_fall() -> Finding:
    row = ("0.48", "0.47", "0.05")
    mapped = posterior([decimal(v) for v in row], arb(1))
    result = ", ".join(f"{float(v.mid()):.4f}" for v in mapped)
    words = f"γ = 1: ({', '.join(row)}) goes to ({result}): the second entry rises"
    return settle(decide(decimal(row[1]) - mapped[1], "it falls", words))


def _opposite_side() -> Finding:
    """For -1 < gamma = -g < 0 and u > 0: u + log((1 - g s_p) / (1 - g s_q)) / g > 0, because its slope is positive."""

    def slope(p: arb, g: arb) -> arb:
        return 1 - (s(p) - p) / (1 - g * s(p)) - (s(1 - p) - (1 - p)) / (1 - g * s(1 - p))

    inside = prove(slope, [(0.5, 1.0), (0.0, 0.885)])
    p, gamma = decimal("0.6"), decimal("-0.9")
    mapped = p / phi(p, gamma) / (p / phi(p, gamma) + (1 - p) / phi(1 - p, gamma))
    printed = decide(p - mapped, "", f"γ = −0.9: Ψ raises 0.6 to {format_ball(mapped)}")
    return settle(printed, inside=inside, where="for −0.885 ≤ γ < 0 (the edge is 2 − 2/log 2 = −0.8854)")


def _negative_decision() -> Finding:
    """log h(a) - log h(b) > 0 for a > b, a + b <= 1 and gamma = -g.

    The difference is the sum of two terms. log(a/b) + g log((1-a)/(1-b)) is linear in g, positive at g = 0, and
    log(a(1-a) / (b(1-b))) >= 0 at g = 1. log((1 - g s_b) / (1 - g s_a)) is positive, because s increases.
    """
    rises = prove(lambda p: c(1 - p), [(2.0**-30, 1.0)])
    outcomes = rises._replace(words=f"s increases, {rises.words}, and (a−b)(1−a−b) ≥ 0")
    for gamma in (-0.99, -0.5, -0.1):
        tried = search(partial(_order_violation, gamma=gamma), partial(simplex_rows, classes=5), budget=20_000)
        outcomes &= tried.prefix(f"γ = {gamma:g}")
    return settle(outcomes)


def _negative_injective() -> Finding:
    """The Jacobian on the simplex never degenerates.

    Let a = (log h)'. The Jacobian degenerates if the sum of 1/a_i is 0. For x <= 1/2, x a(x) >= 1 - g x/(1-x) > 0, so
    only the a of a top score p > 1/2 can be negative. Then q |a_top| is `top` in `slack`. For the other scores, which
    sum to q = 1 - p, x a(x) >= 1 - g q/p, so |a_top| times the sum of their 1/a_i is below 1. Because Psi also maps
    the boundary to the boundary, it is a bijection.
    """

    def slack(p: arb, g: arb) -> arb:
        q = 1 - p
        top = g - q / p - g * q * c(q) / (1 - g * s(p))
        return 1 - g * q / p - top

    proof = prove(slack, [(0.5, 1.0), (0.0, 1 - 2.0**-10)])
    outcomes = proof.prefix("the Jacobian never vanishes for −0.999 ≤ γ ≤ 0")
    for gamma in (-0.95, -0.5):
        draw = partial(simplex_rows, classes=4)
        tried = search(partial(_jacobian_violation, gamma=gamma), draw, budget=20_000, least=0.0)
        outcomes &= tried.prefix(f"γ = {gamma:g}")
    return settle(outcomes)


def _order_violation(rows: np.ndarray, gamma: float) -> np.ndarray:
    """By how much Psi puts another class above the top class of a descending row."""
    mapped = core_posterior(rows, gamma=gamma)
    return np.max(mapped[:, 1:], axis=1) - mapped[:, 0]


def _jacobian_violation(rows: np.ndarray, gamma: float) -> np.ndarray:
    """Minus a value with the sign of the Jacobian: the sum over i of x_i prod_{j != i} x_j (log h)'(x_j)."""
    q = 1 - rows
    ratio = -rows * np.log(rows) / q
    scaled = 1 + gamma * rows / q - gamma * (ratio - rows) / (q * (1 + gamma * ratio))
    products = [np.prod(np.delete(scaled, i, axis=1), axis=1) for i in range(rows.shape[1])]
    return -np.sum(rows * np.stack(products, axis=1), axis=1)


def draw_negative(ax: Axes) -> None:
    """Draw the binary map for negative gammas."""
    p = np.linspace(0.001, 0.999, 400)
    rows = np.stack([p, 1 - p], axis=1)
    for gamma, style in ((-0.5, "-"), (-0.885, "--"), (-0.97, ":")):
        moved = core_posterior(rows, gamma=gamma)[:, 0] - p
        ax.plot(p, moved, color="black", linestyle=style, label=f"γ = −{-gamma:g}")
    ax.axhline(0, color="0.5", linewidth=0.8)
    ax.set(xlim=(0, 1), xlabel="softmax score", ylabel="Ψ − score")
    ax.legend(frameon=False)


CLAIMS = (
    Claim(
        "003-text-any-value",
        "Section 3.1",
        "For a frequency of 0.8, the prediction takes any value between 0.5 and 0.8 as γ > 0 varies.",
        CheckMethod.BALLS,
        "0.51, 0.52, …, 0.79",
        _any_value,
    ),
    Claim(
        "003-text-proper-part",
        "Section 3.2",
        "The proper part of focal loss is lower than focal loss for predictions below 0.5, and higher above 0.5.",
        CheckMethod.BALLS,
        "all γ > 0, two classes",
        _proper_part,
    ),
    Claim(
        "003-text-negative-side",
        "Section 3.2",
        "With a negative γ the map lies on the opposite side of the diagonal.",
        CheckMethod.BALLS,
        "−1 < γ < 0, two classes",
        _opposite_side,
        draw_negative,
    ),
    Claim(
        "003-negative-decision",
        "Sections 3.2 and 5.1, γ = −0.5 and −0.25",
        "Ψ with −1 < γ < 0 keeps the arg max.",
        CheckMethod.BALLS,
        "−1 < γ < 0, any number of classes; search: 5 classes",
        _negative_decision,
        draw_negative,
    ),
    Claim(
        "003-negative-injective",
        "Sections 3.2 and 5.1, γ = −0.5 and −0.25",
        "Ψ with −1 < γ < 0 is injective, although h = p/φ is not monotone.",
        CheckMethod.BALLS,
        "−0.999 ≤ γ ≤ 0, any number of classes; search: 4 classes",
        _negative_injective,
        draw_negative,
    ),
    Claim(
        "003-text-others-fall",
        "Section 3.3 and Figure 5",
        "The map makes the highest probability higher and all others lower.",
        CheckMethod.BALLS,
        "three classes, γ = 1",
        _others_fall,
    ),
)
