"""Lemmas that claims of several papers rest on, each proved once in ball arithmetic.

In the notation of Charoenphakdee et al. (2021), phi^gamma rises from 1 to its maximum at tau_oc, then falls, and is
below 1 at 1/2.
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
_BELOW_ONE = (2.0**-30, 1.0)  # c grows without bound as p -> 0, which only widens the margin


def loss_is_convex() -> Outcome:
    """l'' > 0 for all gamma >= 0 and 0 < p < 1.

    p^2 q^(2 - gamma) l'' = q (q + gamma p (2 - s) + gamma^2 p s). No coefficient of gamma is negative: s >= 0 by
    definition, and the proof shows s < 2.
    """
    proof = prove(lambda p: 2 - s(p), [UNIT])
    return proof.prefix("p²(1−p)^(1−γ) ℓ'' = q + γp(2−s) + γ²ps with 0 ≤ s < 2")


def phi_has_one_peak() -> Outcome:
    """k = 1 - 2 m(p) - gamma p falls strictly: m = (1 - p) / (-log p) has m' = q^2 ((1 - s) / q) / (p L^2) > 0.

    (1 - s) / q = 1 - p c(q) falls from 1 to 1/2, so phi' changes its sign once, from + to -.
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
    """With two classes, logit Psi - u with u = logit p is 0 at u = 0 and rises with u for every gamma > 0.

    The difference is gamma u - log((1 + gamma s_p) / (1 + gamma s_q)). Since ds/du = s - p for one class and q - s for
    the other, its slope is at least gamma (2 - s_p - s_q).
    """
    proof = prove(lambda p: 2 - s(p) - s(1 - p), [(0.5, 1.0)])
    return proof.prefix("logit Ψ − logit q rises with logit q: 2 − s(p) − s(1−p) > 0")


def three_classes_gain() -> Outcome:
    """Psi never lowers the top score a of three classes.

    For a >= 1/2 this is Theorem 8 of Charoenphakdee et al. (2021). For a < 1/2 the other scores lie in [1 - 2a, a].
    Because phi has one peak, phi >= phi(a) there if phi(1 - 2a) >= phi(a). Let x = 1 - 2a and r = log(phi) / gamma.
    Then r(x) - r(a) is smallest at gamma = 0, because t - log(1 + gamma t) / gamma rises in t and s(x) < s(a). At
    gamma = 0, r = F = log q + s with -F' = 1/q - c(q):
      1/4 <= x < 1/3: F(x) - F(a) falls to 0, because F falls for arguments above 1/4;
      x <= 1/4: F(x) > F(a). Divide by x and write F(a) = F(1/2) - x/2 F'(between a and 1/2), where F(1/2) = 0. Below
      2^-20 the first term, -log x, exceeds all others together.
    """

    def fall(q: arb) -> arb:
        return 1 / q - c(q)

    def gain(x: arb) -> arb:
        between = arb(0.5) + x * ball(0.0, 0.5)
        return -x.log() / (1 - x) - 1 - x * c(x) - fall(between) / 2

    proof = prove(fall, [(0.5, 0.75)]) & prove(gain, [(2.0**-20, 0.25)])
    return (phi_has_one_peak() & proof).reword(f"two and three classes never lose confidence: {proof.words}")


def confidence_falls(row: Sequence[str], gamma: str) -> Outcome:
    """Psi lowers the top score, so a minimizer with these scores is overconfident."""
    q = [decimal(v) for v in row]
    mapped = posterior(q, decimal(gamma))[0]
    top = f"Ψ maps the top score {row[0]} to {float(mapped.mid()):.6f}"
    return decide(
        q[0] - mapped, f"{_format_row(row, gamma)}: {top}", f"{_format_row(row, gamma)}: {top}, which is not lower"
    )


def top_drop(rows: np.ndarray, gamma: float) -> np.ndarray:
    """By how much Psi lowers the top score of each row, computed with the library's own map."""
    mapped = core_posterior(rows, gamma=gamma)
    return rows.max(axis=1) - mapped.max(axis=1)


def _format_row(row: Sequence[str], gamma: str) -> str:
    return f"q = ({', '.join(row)}), γ = {gamma}"
