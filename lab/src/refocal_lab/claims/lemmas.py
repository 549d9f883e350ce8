"""Facts that several papers lean on, each proved once by balls; a claim names those that it follows from.

In the words of 001: phi^gamma rises from 1 to its maximum at tau_oc and falls from there on, to below 1 at 1/2.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from flint import arb

from refocal.maps.posterior import posterior as core_posterior
from refocal_lab.claims.balls import (
    ball,
    c,
    decide,
    decimal,
    format_ball,
    log1p_deficit,
    posterior,
    prove,
    s,
    slope_sign,
)
from refocal_lab.claims.claim import Outcome

UNIT = (0.0, 1.0)
_BELOW_ONE = (2.0**-30, 1.0)  # c grows without bound toward p = 0, where only more is true


def loss_is_convex() -> Outcome:
    """l'' > 0 for all gamma >= 0 and 0 < p < 1.

    p^2 q^(2 - gamma) l'' = q (q + gamma p (2 - s) + gamma^2 p s): no coefficient of gamma is negative, as s >= 0 by its
    definition and s < 2 by the proof.
    """
    proof = prove(lambda p: 2 - s(p), [UNIT])
    return proof.prefix("p²(1−p)^(1−γ) ℓ'' = q + γp(2−s) + γ²ps with 0 ≤ s < 2")


def phi_has_one_peak() -> Outcome:
    """k = 1 - 2 m(p) - gamma p falls strictly: m = (1 - p) / (-log p) has m' = q^2 ((1 - s) / q) / (p L^2) > 0.

    (1 - s) / q falls from 1 to 1/2, being 1 - p c(q); so phi' changes its sign once, from + to -.
    """
    proof = prove(lambda p: 1 - p * c(1 - p), [_BELOW_ONE])
    return proof.prefix("k(p, γ) falls in p, so φ has one peak for every γ > 0")


def phi_is_below_one_at_half() -> Outcome:
    """log phi(1/2) = log(1 + x) - x < 0 with x = gamma log 2."""
    proof = prove(log1p_deficit, [(0.0, 2.0**40)])
    return proof.prefix("φ(1/2) < 1 for 0 < γ ≤ 10¹²")


def peak_is_below_half() -> Outcome:
    """k(1/2, gamma) <= k(1/2, 0) < 0."""
    at_half = slope_sign(decimal("0.5"), arb(0))
    value = f"k(1/2, γ) ≤ k(1/2, 0) = {format_ball(at_half, 3)}"
    return decide(-at_half, f"{value} < 0", value)


def threshold_is_below_half() -> Outcome:
    """0 < tau_oc < tau_uc < 1/2."""
    return phi_has_one_peak() & peak_is_below_half() & phi_is_below_one_at_half()


def binary_gap_grows() -> Outcome:
    """With two classes logit Psi - u, u = logit p, is 0 at u = 0 and rises with u for every gamma > 0.

    It is gamma u - log((1 + gamma s_p) / (1 + gamma s_q)), and ds/du = s - p for the one class and q - s for the
    other: its slope is at least gamma (2 - s_p - s_q).
    """
    proof = prove(lambda p: 2 - s(p) - s(1 - p), [(0.5, 1.0)])
    return proof.prefix("logit Ψ − logit q rises with logit q: 2 − s(p) − s(1−p) > 0")


def three_classes_gain() -> Outcome:
    """Psi never lowers the top score a of three classes.

    From a = 1/2 on that is 001, Thm. 8. Below, the others lie in [1 - 2a, a], where phi >= phi(a) if
    phi(1 - 2a) >= phi(a), as phi has one peak. With x = 1 - 2a and r = log(phi) / gamma, r(x) - r(a) is least at
    gamma = 0, because t - log(1 + gamma t) / gamma rises in t and s(x) < s(a). There r = F = log q + s, with
    -F' = 1/q - c(q):
      1/4 <= x < 1/3: F(x) - F(a) falls to 0, because F falls from 1/4 on;
      x <= 1/4: F(x) > F(a), divided by x, with F(a) = F(1/2) - x/2 F'(between a and 1/2) and F(1/2) = 0; below 2^-20
      the first term, -log x, alone is larger than all others together.
    """

    def fall(q: arb) -> arb:
        return 1 / q - c(q)

    def gain(x: arb) -> arb:
        between = arb(0.5) + x * ball(0.0, 0.5)
        return -x.log() / (1 - x) - 1 - x * c(x) - fall(between) / 2

    proof = prove(fall, [(0.5, 0.75)]) & prove(gain, [(2.0**-20, 0.25)])
    return (phi_has_one_peak() & proof).reword(f"two and three classes never lose confidence: {proof.words}")


def confidence_falls(row: Sequence[str], gamma: str) -> Outcome:
    """Psi's top probability is surely below the top score: a minimizer with these scores is overconfident."""
    q = [decimal(v) for v in row]
    mapped = posterior(q, decimal(gamma))[0]
    top = f"top score {row[0]}, Ψ of it {float(mapped.mid()):.6f}"
    return decide(q[0] - mapped, f"{_format_row(row, gamma)}: {top}", f"{_format_row(row, gamma)}: not lower, {top}")


def top_drop(rows: np.ndarray, gamma: float) -> np.ndarray:
    """Top score minus its Psi, row by row, by the package's own map."""
    mapped = core_posterior(rows, gamma=gamma)
    return rows.max(axis=1) - mapped.max(axis=1)


def _format_row(row: Sequence[str], gamma: str) -> str:
    return f"q = ({', '.join(row)}), γ = {gamma}"
