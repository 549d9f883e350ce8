"""Claims of Komisarenko and Kull (2024): the propositions and their proofs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import mpmath as mp
import numpy as np
from flint import arb

from refocal.maps.minimizer import proper_focal_partial
from refocal.maps.posterior import posterior as core_posterior
from refocal_lab.claims import lemmas
from refocal_lab.claims.balls import decide, decimal, expm1_ratio, format_ball, phi, prove, s
from refocal_lab.claims.claim import CheckMethod, Claim, Finding, Outcome, settle
from refocal_lab.claims.identities import check_identity, mp_loss, mp_posterior
from refocal_lab.claims.sampling import find_shortest, search, simplex_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GAMMAS = ("0.1", "0.5", "1", "3", "9")
_COPY = "in our text copy of the paper"


def _convex() -> Finding:
    return settle(lemmas.loss_is_convex())


def _second_derivative() -> Finding:
    def printed(p: Any, g: Any) -> Any:
        quadratic = g**2 * -mp.log(p) * (1 - p) ** (g - 2)
        linear = g * (2 * (1 - p) ** (g - 1) / p + (1 - p) ** (g - 2) * mp.log(p))
        return quadratic + linear + (1 - p) ** g / p**2

    points = [(p, g) for p in ("0.01", "0.3", "0.9") for g in _GAMMAS]
    return settle(
        check_identity(lambda p, g: mp.diff(lambda v: mp_loss(v, g), p, 2), printed, points, tolerance="1e-12")
    )


def _binary_map() -> Finding:
    def printed(q: Any, g: Any) -> Any:
        ratio = ((1 - q) - g * q * mp.log(q)) / (q - g * (1 - q) * mp.log(1 - q))
        return 1 / (1 + ((1 - q) / q) ** g * ratio)

    points = [(q, g) for q in ("0.001", "0.3", "0.5", "0.98") for g in _GAMMAS]
    same = check_identity(printed, lambda q, g: mp_posterior([q, 1 - q], g)[0], points)
    return settle(same.prefix("the map is Ψ") & lemmas.loss_is_convex() & _proper(2))


def _proper(classes: int) -> Outcome:
    """Check that no prediction has a lower expected proper part than the true posterior."""

    def gain(rows: np.ndarray) -> np.ndarray:
        truth, other = rows[:, :classes], rows[:, classes:]
        gains = np.full(len(rows), -np.inf)
        for gamma in (0.5, 3.0):
            risks = [
                sum(
                    truth[:, y] * proper_focal_partial(told, np.full(len(rows), y), gamma=gamma) for y in range(classes)
                )
                for told in (truth, other)
            ]
            gains = np.maximum(gains, risks[0] - risks[1])
        return gains

    def pairs(rng: np.random.Generator, count: int) -> np.ndarray:
        truth = rng.dirichlet(np.ones(classes), count)
        mixed = rng.dirichlet(np.ones(classes), count)
        weight = 10 ** rng.uniform(-3, 0, (count, 1))
        return np.hstack([truth, (1 - weight) * truth + weight * mixed])

    found = search(gain, pairs, budget=1_000, least=1e-12)
    return found.prefix("no prediction has a lower expected proper loss than the true posterior")


def map_bounds() -> Outcome:
    """(gamma + 1 - log(gamma + 1) / 2) u <= logit FC(u) <= (gamma + 1) u for u >= 0.

    logit FC = (gamma + 1) u - log f with log f = log((1 + gamma s_p) / (1 + gamma s_q)) >= 0, because s increases. For
    u >= 2, log f <= log(1 + gamma) <= log(1 + gamma) u / 2. For u < 2, log f has slope at most log(1 + gamma) / 2; this
    is proved here, divided by gamma and multiplied by 1 + gamma = e^w.
    """

    def slack(p: arb, w: arb) -> arb:
        t = (-w).exp()
        terms = [(s(v) - v) / (t + (1 - t) * s(v)) for v in (p, 1 - p)]
        return 1 / (2 * expm1_ratio(w)) - terms[0] - terms[1]

    proof = prove(slack, [(0.5, 0.8809), (0.0, 40.0)])
    return proof._replace(
        words=f"up to s = 2 the slope of log f is at most log(1+γ)/2, {proof.words}; beyond, log f ≤ log(1+γ)"
    )


def _bounds() -> Finding:
    return settle(map_bounds())


def _bound_order() -> Finding:
    """The three logits at gamma = 3 and s = 1."""
    p, gamma = (1 + (-arb(1)).exp()) ** -1, arb(3)
    logit = 1 + (phi(1 - p, gamma) / phi(p, gamma)).log()
    steep, flat = gamma + 1, gamma + 1 - (gamma + 1).log() / 2
    logits = f"{format_ball(flat, 4)} (T = 0.302), {format_ball(logit, 4)} (map), {format_ball(steep, 4)} (T = 0.25)"
    told = f"γ = 3, s = 1: the logits are {logits}"
    printed = decide(logit - steep, "", f"{_COPY} the two bounds are swapped; {told}")
    mend = "for s ≥ 0 the map lies above T = 1/(γ+1−log(γ+1)/2) and below T = 1/(γ+1), for s ≤ 0 vice versa"
    return settle(printed, corrected=map_bounds().reword(mend) & decide((steep - logit).min(logit - flat), told, told))


def _multiclass_map() -> Finding:
    """Eq. 1 of the paper, normalized, is Psi."""
    vectors = [[mp.mpf(v) for v in row] for row in (("0.55", "0.3", "0.15"), ("0.8", "0.15", "0.05"))]

    def printed(g: Any, row: int, j: int) -> Any:
        q = vectors[row]
        terms = [1 / ((1 - v) ** g * (g * mp.log(v) / (1 - v) - 1 / v)) for v in q]
        return terms[j] / mp.fsum(terms)

    points = [(g, row, j) for g in _GAMMAS for row in (0, 1) for j in range(3)]
    same = check_identity(printed, lambda g, row, j: mp_posterior(vectors[row], g)[j], points)
    return settle(same.prefix("the map is Ψ") & lemmas.loss_is_convex() & _proper(3))


def _raises_confidence() -> Finding:
    """The shortest counterexample, confirmed in ball arithmetic; fewer classes have none."""
    found = find_shortest(lemmas.top_drop, classes=(2, 3, 4), decimals=(1, 2), gammas=(1.0, 0.5, 0.1, 0.05, 0.01))
    if found is None:
        draw = partial(simplex_rows, classes=10)
        return settle(search(partial(lemmas.top_drop, gamma=0.5), draw, budget=100_000))
    row, gamma = found
    witness = lemmas.confidence_falls([f"{v:g}" for v in row], f"{gamma:g}")
    ten = lemmas.confidence_falls(["0.11"] * 9 + ["0.01"], "0.5")
    where = "it also holds if max q ≥ τ_uc(γ) (001-thm-8)"
    falls = (witness & ten & lemmas.three_classes_gain()).holds
    words = f"{witness.words}; {ten.words}; {lemmas.three_classes_gain().words}; {where}"
    return settle(Outcome(falls, words).as_counterexample())


def _concave() -> Finding:
    """f = 1/L' = -h at 0, 0.05 and 0.1, for gamma = 1."""
    gamma = arb(1)
    h = [decimal(v) / phi(decimal(v), gamma) for v in ("0.05", "0.1")]
    low, high = (format_ball(value, 4) for value in h)
    words = f"γ = 1: −f is 0 at 0, {low} at 0.05 and {high} at 0.1, so at 0.05 it exceeds the mean of its neighbors"
    return settle(decide(h[1] / 2 - h[0], "concave there", words))


def draw_bounds(ax: Axes) -> None:
    """Draw 1/T of the scaling that agrees with the map at a logit, between the bounds, for gamma = 3."""
    u, gamma = np.linspace(1e-3, 12, 400), 3.0
    mapped = core_posterior(np.stack([1 / (1 + np.exp(-u)), 1 / (1 + np.exp(u))], axis=1), gamma=gamma)
    ax.plot(u, np.log(mapped[:, 0] / mapped[:, 1]) / u, color="black", label="the map, γ = 3")
    ax.axhline(gamma + 1, color="0.45", linestyle="--", label="γ + 1")
    ax.axhline(gamma + 1 - np.log(gamma + 1) / 2, color="0.45", linestyle=":", label="γ + 1 − log(γ+1)/2")
    ax.set(xlim=(0, 12), xlabel="logit s", ylabel="1/T that matches the map at s")
    ax.legend(frameon=False)


def draw_falling_confidence(ax: Axes) -> None:
    """Draw how far Psi moves the top score of (a, a, a, 1 - 3a)."""
    top = np.linspace(0.25, 1 / 3, 300)[1:-1]
    rows = np.column_stack([top, top, top, 1 - 3 * top])
    for gamma, style in ((0.05, "-"), (0.5, "--"), (1.0, "-.")):
        ax.plot(top, -1e3 * lemmas.top_drop(rows, gamma), color="black", linestyle=style, label=f"γ = {gamma:g}")
    ax.axhline(0, color="0.5", linewidth=0.8)
    ax.set(ylim=(-0.12, 0.24), xlabel="top score a of (a, a, a, 1 − 3a)", ylabel="Ψ(a) − a, in thousandths")
    ax.legend(frameon=False)


CLAIMS = (
    Claim(
        "003-prop-1",
        "Proposition 1",
        "Focal loss is convex in the predicted probabilities for all γ ≥ 0.",
        CheckMethod.BALLS,
        "all γ ≥ 0, 0 < p < 1",
        _convex,
    ),
    Claim(
        "003-appendix-a1",
        "Appendix A.1",
        "ℓ'' = γ²(−log p)(1−p)^(γ−2) + γ(2(1−p)^(γ−1)/p + (1−p)^(γ−2) log p) + (1−p)^γ/p².",
        CheckMethod.IDENTITY,
        "p = 0.01, 0.3, 0.9, γ from 0.1 to 9",
        _second_derivative,
    ),
    Claim(
        "003-prop-2",
        "Proposition 2",
        "Binary focal loss is a proper loss composed with a bijection, "
        "p̂(q) = 1/(1 + ((1−q)/q)^γ ((1−q)−γq log q)/(q−γ(1−q) log(1−q))).",
        CheckMethod.IDENTITY,
        "q from 0.001 to 0.98, γ from 0.1 to 9; bijection: all γ ≥ 0; properness: 1,000 pairs, γ = 0.5, 3, seed 0",
        _binary_map,
    ),
    Claim(
        "003-prop-3",
        "Proposition 3",
        "The binary map lies between temperature scaling with T = 1/(γ+1) and T = 1/(γ+1−log(γ+1)/2).",
        CheckMethod.BALLS,
        "0 ≤ γ ≤ 10¹⁷, all logits",
        _bounds,
        draw_bounds,
    ),
    Claim(
        "003-prop-3-order",
        "Proposition 3, the displayed inequalities",
        "For s ≥ 0: scaling with T = 1/(γ+1) ≤ the map ≤ scaling with T = 1/(γ+1−log(γ+1)/2); for s ≤ 0 vice versa.",
        CheckMethod.BALLS,
        "γ = 3, s = 1; corrected: 0 ≤ γ ≤ 10¹⁷, all logits",
        _bound_order,
        draw_bounds,
    ),
    Claim(
        "003-prop-4",
        "Proposition 4 and Equation 1",
        "Multiclass focal loss is a proper loss composed with a bijection, "
        "p̂_j ∝ 1/((1−q_j)^γ (γ log q_j/(1−q_j) − 1/q_j)).",
        CheckMethod.IDENTITY,
        "two vectors of three classes, γ from 0.1 to 9; bijection: all γ ≥ 0; properness: 1,000 pairs, γ = 0.5, 3, "
        "seed 0",
        _multiclass_map,
    ),
    Claim(
        "003-prop-5",
        "Proposition 5",
        "The map never lowers the top probability.",
        CheckMethod.SEARCH,
        "the shortest vector of 2 to 4 classes with 1 or 2 decimals, γ = 1, 0.5, 0.1, 0.05, 0.01, confirmed in ball "
        "arithmetic; 3 classes: all γ ≥ 0",
        _raises_confidence,
        draw_falling_confidence,
    ),
    Claim(
        "003-appendix-a5",
        "Appendix A.5, statement 2",
        "f = 1/L' is concave on (0, 1). The proof of Proposition 5 rests on this.",
        CheckMethod.BALLS,
        "γ = 1, at 0, 0.05 and 0.1",
        _concave,
    ),
)
