"""003: what the text says of the focal calibration map, and the map with the negative gamma of its experiments."""

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
    """For targets between 1/2 and 0.8 the map with gamma = 0 falls short of 0.8 and with a large gamma exceeds it."""
    goal = decimal("0.8")
    for k in range(1, 30):
        v = decimal(f"0.{50 + k}")
        ends = [v / phi(v, g) / (v / phi(v, g) + (1 - v) / phi(1 - v, g)) for g in (arb(0), arb(150))]
        if not (ends[0] < goal < ends[1]):
            return settle(Outcome(None, f"0.{50 + k} not decided"))
    words = "for 0.51, 0.52, …, 0.79 Ψ with γ = 0 gives less than 0.8 and with γ = 150 more, and is continuous in γ"
    return settle(Outcome(True, words))


def _proper_part() -> Finding:
    """Loss at Psi^-1(eta), which lies between eta and 1/2."""
    return settle(lemmas.binary_gap_grows().prefix("Ψ⁻¹(η) lies strictly between η and 1/2"))


def _others_fall() -> Finding:
    row = ("0.48", "0.47", "0.05")
    mapped = posterior([decimal(v) for v in row], arb(1))
    result = ", ".join(f"{float(v.mid()):.4f}" for v in mapped)
    words = f"γ = 1: ({', '.join(row)}) goes to ({result}), the second entry rises"
    return settle(decide(decimal(row[1]) - mapped[1], "it falls", words))


def _opposite_side() -> Finding:
    """For -1 < gamma = -g < 0 and u > 0: u + log((1 - g s_p) / (1 - g s_q)) / g > 0; its slope is the margin."""

    def slope(p: arb, g: arb) -> arb:
        return 1 - (s(p) - p) / (1 - g * s(p)) - (s(1 - p) - (1 - p)) / (1 - g * s(1 - p))

    inside = prove(slope, [(0.5, 1.0), (0.0, 0.885)])
    p, gamma = decimal("0.6"), decimal("-0.9")
    mapped = p / phi(p, gamma) / (p / phi(p, gamma) + (1 - p) / phi(1 - p, gamma))
    printed = decide(p - mapped, "", f"γ = −0.9: Ψ raises 0.6 to {format_ball(mapped)}")
    return settle(printed, inside=inside, where="for −0.885 ≤ γ < 0 (the edge is 2 − 2/log 2 = −0.8854)")


def _negative_decision() -> Finding:
    """log h(a) - log h(b) > 0 for a > b, a + b <= 1 and gamma = -g.

    It is log(a/b) + g log((1-a)/(1-b)), which is linear in g, positive at g = 0 and log(a(1-a) / (b(1-b))) >= 0 at
    g = 1, plus log((1 - g s_b) / (1 - g s_a)) > 0, as s rises.
    """
    rises = prove(lambda p: c(1 - p), [(2.0**-30, 1.0)])
    outcomes = rises._replace(words=f"s rises, {rises.words}, and (a−b)(1−a−b) ≥ 0")
    for gamma in (-0.99, -0.5, -0.1):
        tried = search(partial(_order_violation, gamma=gamma), partial(simplex_rows, classes=5), budget=20_000)
        outcomes &= tried.prefix(f"γ = {gamma:g}")
    return settle(outcomes)


def _negative_injective() -> Finding:
    """The Jacobian on the simplex never degenerates.

    With a = (log h)' it would do so where the sum of 1/a_i is 0. x a(x) >= 1 - g x/(1-x) > 0 up to x = 1/2, so at most
    the a of a top p > 1/2 is negative. Then q |a_top| is what `slack` calls top, and x a(x) >= 1 - g q/p for the
    others, which sum to q = 1 - p: so |a_top| times the sum of their 1/a_i is below 1. As Psi also takes the boundary
    to the boundary, it is a bijection.
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
    """How far Psi puts another class above the top one of a descending row."""
    mapped = core_posterior(rows, gamma=gamma)
    return np.max(mapped[:, 1:], axis=1) - mapped[:, 0]


def _jacobian_violation(rows: np.ndarray, gamma: float) -> np.ndarray:
    """Minus what has the sign of the Jacobian: sum over i of x_i times the product of x_j (log h)'(x_j) over j != i."""
    q = 1 - rows
    ratio = -rows * np.log(rows) / q
    scaled = 1 + gamma * rows / q - gamma * (ratio - rows) / (q * (1 + gamma * ratio))
    products = [np.prod(np.delete(scaled, i, axis=1), axis=1) for i in range(rows.shape[1])]
    return -np.sum(rows * np.stack(products, axis=1), axis=1)


def draw_negative(ax: Axes) -> None:
    """The binary map for negative gamma."""
    p = np.linspace(0.001, 0.999, 400)
    rows = np.stack([p, 1 - p], axis=1)
    for gamma, style in ((-0.5, "-"), (-0.885, "--"), (-0.97, ":")):
        moved = core_posterior(rows, gamma=gamma)[:, 0] - p
        ax.plot(p, moved, color="black", linestyle=style, label=f"γ = −{-gamma:g}")
    ax.axhline(0, color="0.5", linewidth=0.8)
    ax.set(xlim=(0, 1), xlabel="softmax score", ylabel="Ψ minus the score")
    ax.legend(frameon=False)


CLAIMS = (
    Claim(
        "003-text-any-value",
        "Section 3.1",
        "By varying γ > 0 the prediction for a frequency of 0.8 takes any value between 0.8 and 0.5.",
        CheckMethod.BALLS,
        "0.51, 0.52, …, 0.79",
        _any_value,
    ),
    Claim(
        "003-text-proper-part",
        "Section 3.2",
        "The proper part of focal loss is below focal loss for predictions under 0.5 and above it over 0.5.",
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
        "Ψ with −1 < γ < 0 is injective, though h = p/φ is not monotone.",
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
