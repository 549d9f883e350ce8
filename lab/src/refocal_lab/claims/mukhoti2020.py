"""Claims of Mukhoti et al. (2020) about gradients and gamma*."""

from __future__ import annotations

from typing import Any

import mpmath as mp
import numpy as np
from flint import arb

from refocal.maps.focal import phi as core_phi
from refocal.maps.theory import gamma_star, thresholds
from refocal_lab.claims import lemmas
from refocal_lab.claims.balls import decide, decimal, format_ball, phi, prove, s
from refocal_lab.claims.claim import DEFINITION, CheckMethod, Claim, Finding, Outcome, not_checkable, settle
from refocal_lab.claims.identities import check_identity, mp_loss, mp_phi, rounds_to
from refocal_lab.claims.sampling import search

_POINTS = [(p, g) for p in ("0.01", "0.2", "0.5", "0.9") for g in ("0.5", "1", "2", "3", "5")]
_BELOW_HALF = ("0.01", "0.1", "0.19", "0.25", "0.4", "0.49")


def _gradient(p: Any, g: Any) -> Any:
    """The numerical derivative of g(p, gamma) = phi with respect to p."""
    return mp.diff(lambda v: mp_phi(v, g), p)


def _gradient_ratio() -> Finding:
    """A linear layer, one sample and three classes: the derivative with respect to one weight."""

    def probability(weight: Any) -> Any:
        logits = [weight * mp.mpf("0.7") - mp.mpf("0.4"), mp.mpf("0.3"), mp.mpf("-0.9")]
        return mp.exp(logits[0]) / mp.fsum(map(mp.exp, logits))

    def slope(g: Any, weight: Any) -> Any:
        return mp.diff(lambda w: mp_loss(probability(w), g), weight)

    points = [(g, w) for g in ("0.5", "1", "3") for w in ("-2", "0.1", "4")]
    ratio = check_identity(slope, lambda g, w: slope(0, w) * mp_phi(probability(w), g), points, tolerance="1e-15")
    positive = prove(lambda p, g: 1 + g * s(p), [lemmas.UNIT, (0.0, 1024.0)])
    return settle(
        ratio.prefix("the gradients") & positive.prefix("g = (1−p)^γ (1 + γs) ≥ 0, so |g| ≤ 1 means g ∈ [0, 1]")
    )


def _partial_derivative() -> Finding:
    return settle(
        check_identity(
            lambda p, g: mp.diff(lambda v: mp_loss(v, g), p), lambda p, g: -mp_phi(p, g) / p, _POINTS, tolerance="1e-15"
        )
    )


def _solve_gamma(p0: Any, branch: int) -> Any:
    """a/b + W(-(a^(1 - a/b) / b) log a) / log a (Eqs. 11 and 12)."""
    a, b = 1 - p0, p0 * mp.log(p0)
    return a / b + mp.lambertw(-(a ** (1 - a / b)) / b * mp.log(a), branch).real / mp.log(a)


def _threshold_gamma() -> Finding:
    """log g is concave in gamma and 0 at 0 and gamma*, so it is negative beyond; and phi has one peak in p."""

    def excess(rows: np.ndarray) -> np.ndarray:
        p0, p, more = rows.T
        gammas = np.array([gamma_star(value) for value in p0]) + more
        return np.array([float(core_phi(v, gamma=g)) - 1 for v, g in zip(p, gammas, strict=True)])

    def candidates(rng: np.random.Generator, count: int) -> np.ndarray:
        p0 = rng.uniform(1e-3, 0.5, count)
        return np.column_stack([p0, rng.uniform(p0, 1), rng.exponential(2, count)])

    solves = check_identity(lambda p: mp_phi(p, _solve_gamma(p, -1)), lambda _: mp.mpf(1), [(p,) for p in _BELOW_HALF])
    tried = search(excess, candidates, budget=2_000)
    inside = solves.prefix("g(p0, γ*) = 1") & lemmas.phi_has_one_peak() & tried
    with mp.workdps(40):
        flat = _solve_gamma(mp.mpf("0.6"), -1)
        same = bool(abs(flat) < mp.mpf("1e-30"))
    words = "p0 = 0.6 gives γ* = 0, and g(p, 0) = 1 for every p, not only for p0"
    return settle(Outcome(not same, words), inside=inside, where="for 0 < p0 < 1/2")


def _lambert_formula() -> Finding:
    """The formula of Eqs. 10 and 11, and the one of the library."""
    points = [(p,) for p in _BELOW_HALF]
    solves = check_identity(lambda p: mp_phi(p, _solve_gamma(p, -1)), lambda _: mp.mpf(1), points)
    ours = check_identity(
        lambda p: _solve_gamma(p, -1), lambda p: mp.mpf(gamma_star(float(p))), points, tolerance="1e-12"
    )
    return settle(
        solves.prefix("g(p0, γ*) = 1")
        & ours.prefix(f"agrees with refocal.gamma_star, for example γ*(0.25) = {gamma_star(0.25):.4f}")
    )


def _inline_formula() -> Finding:
    """The inline formula is that of Eq. 11; as our copy has it, without its fraction bars, it does not solve g = 1."""

    def without_bars(p0: Any) -> Any:
        a, b = 1 - p0, p0 * mp.log(p0)
        return a + mp.log(a) * mp.lambertw(-(a ** (1 - a / b)) / b * mp.log(a), -1).real

    points = [("0.25",), ("0.1",)]
    solves = check_identity(lambda p: mp_phi(p, _solve_gamma(p, -1)), lambda _: mp.mpf(1), points)
    bare = check_identity(lambda p: mp_phi(p, without_bars(p)), lambda _: mp.mpf(1), points)
    note = f"our text copy has a + log a · W₋₁(…): it lost the fraction bars of a/b and 1/log a ({bare.words})"
    return settle(solves._replace(words=f"g(p0, γ*) = 1: {solves.words}; {note}"))


def _rearrangement() -> Finding:
    """Both sides of the last line of Eq. 10, at a gamma that solves it."""

    def sides(p: Any, left: bool) -> Any:
        a, b = 1 - p, p * mp.log(p)
        gamma = mp.mpf(_solve_gamma(p, -1))
        if left:
            return (gamma - a / b) * mp.log(a) * mp.exp((gamma - a / b) * mp.log(a))
        return -(a ** (1 - a / b)) / b * mp.log(a)

    equal = check_identity(lambda p: sides(p, True), lambda p: sides(p, False), [(p,) for p in _BELOW_HALF])
    least = check_identity(lambda p: sides(p, False), lambda _: -mp.exp(-1), [("0.5",)])
    above = all(sides(mp.mpf(p), False) > -mp.exp(-1) for p in ("0.4", "0.49", "0.51", "0.6"))
    return settle(
        equal.prefix("equality at γ*")
        & least.prefix("minimum")
        & Outcome(above, "the right side is −1/e at p0 = 1/2 and larger nearby")
    )


def _principal_branch() -> Finding:
    with mp.workdps(30):
        below, above = _solve_gamma(mp.mpf("0.25"), 0), _solve_gamma(mp.mpf("0.6"), 0)
        zero, negative = bool(abs(below) < mp.mpf("1e-25")), bool(above < 0)
    words = "p0 = 1/4: the principal branch gives γ = 0, which always solves g(p, 0) = 1"
    return settle(
        Outcome(not zero, words),
        inside=Outcome(negative, f"p0 = 0.6 gives γ = {mp.nstr(above, 4)}"),
        where="for p0 > 1/2",
    )


def _peak_formula() -> Finding:
    def printed(p: Any, g: Any) -> Any:
        return g * (1 - p) ** (g - 2) * (-2 * (1 - p) - (1 - p) * mp.log(p) + (g - 1) * p * mp.log(p))

    return settle(check_identity(_gradient, printed, _POINTS, tolerance="1e-15"))


def _factor_at_one() -> Finding:
    """gamma q^(gamma - 2) as q -> 0."""

    def value(g: str) -> arb:
        gamma = decimal(g)
        return gamma * ((gamma - 2) * decimal("1e-30").log()).exp()

    inside = decide(
        decimal("1e-6") - value("3"), "for γ = 3 it is below 10⁻⁶ at 1 − p = 10⁻³⁰", "γ = 3 does not vanish"
    )
    printed = decide(decimal("1e-6") - value("2"), "", f"γ = 2: it is {format_ball(value('2'), 3)} at every p")
    return settle(printed, inside=inside, where="for γ > 2")


def _sign_function() -> Finding:
    """k of Eq. 9 times -log p is Eq. 8; its limits are 1 and -(1 + gamma)."""

    def eight(p: Any, g: Any) -> Any:
        return -2 * (1 - p) - (1 - p) * mp.log(p) + (g - 1) * p * mp.log(p)

    def nine(p: Any, g: Any) -> Any:
        return 2 * (1 - p) / mp.log(p) + 1 - g * p

    same = check_identity(lambda p, g: nine(p, g) * -mp.log(p), eight, _POINTS)
    limits = check_identity(nine, lambda *_: mp.mpf(1), [("1e-200", "3")], tolerance="0.01")
    at_one = check_identity(
        lambda g: nine(1 - mp.mpf("1e-15"), g), lambda g: -(1 + g), [("0.5",), ("3",)], tolerance="1e-13"
    )
    return settle(
        same.prefix("Eq. 8 is −log p times k")
        & limits.prefix("k tends to 1 as p → 0")
        & at_one.prefix("k tends to −(1+γ) as p → 1")
        & lemmas.phi_has_one_peak()
    )


def _gradient_falls() -> Finding:
    """The slope of g at two points: if it always fell, it would be lower at the second one."""
    with mp.workdps(30):
        early, late = (_gradient(mp.mpf(p), mp.mpf(3)) for p in ("0.5", "0.9"))
    words = f"γ = 3: ∂g/∂p is {mp.nstr(early, 4)} at p = 0.5 and {mp.nstr(late, 4)} at p = 0.9"
    return settle(Outcome(bool(late < early), words))


def _above_one_before() -> Finding:
    at_zero = phi(arb(0), arb(3)) - 1
    inside = lemmas.threshold_is_below_half().reword(
        "φ rises from 1 to its only peak, then falls through 1 at p0 = τ_uc"
    )
    return settle(decide(at_zero, "", "g(0, γ) = 1 for every γ"), inside=inside, where="for 0 < p < p0")


def _edge() -> Finding:
    root, value = thresholds(5.0).tau_uc, float(phi(decimal("0.19"), arb(5)).mid())
    words = f"g(0.19, 5) = {value:.3f}; g(p, 5) = 1 at p = {root:.4f}, so 0.20 would be closer"
    return settle(Outcome(rounds_to(value, "1"), words))


def _dies() -> Finding:
    proof = prove(lambda g: decimal("0.05") - phi(decimal("0.5"), g), [(7.0, 64.0)])
    value = format_ball(phi(decimal("0.5"), arb(7)), 3)
    return settle(proof._replace(words=f"g(1/2, γ) < 0.05 for 7 ≤ γ ≤ 64: {proof.words}; g(1/2, 7) = {value}"))


CLAIMS = (
    not_checkable(
        "002-eq-1",
        "Equation 1",
        "ECE is the mean of |accuracy − confidence| over bins, weighted by the number of samples.",
        DEFINITION,
    ),
    not_checkable("002-eq-2", "Equation 2", "MCE is the largest |accuracy − confidence| of a bin.", DEFINITION),
    not_checkable("002-eq-3", "Equation 3", "AdaECE is ECE over bins with equal numbers of samples.", DEFINITION),
    Claim(
        "002-prop-1",
        "Proposition 1",
        "The gradient of focal loss at the last layer is g(p, γ) = φ(p) times that of cross-entropy; its norm is not "
        "larger if and only if g ∈ [0, 1].",
        CheckMethod.IDENTITY,
        "three classes, γ = 0.5, 1, 3, non-zero gradients; g ≥ 0 for γ up to 1,024",
        _gradient_ratio,
    ),
    Claim(
        "002-prop-2",
        "Proposition 2",
        "For p ≥ p0 and γ ≥ γ*(p0), g(p, γ) ≤ 1, with equality only at p = p0 and γ = γ*.",
        CheckMethod.IDENTITY,
        "0 < p0 < 1, as printed",
        _threshold_gamma,
    ),
    Claim(
        "002-prop-2-formula",
        "Propositions 2 and 4, the inline formula",
        "γ* = a/b + (1/log a) · W₋₁(−(a^(1−a/b)/b) log a) with a = 1−p0, b = p0 log p0.",
        CheckMethod.IDENTITY,
        "p0 = 0.25 and 0.1",
        _inline_formula,
    ),
    Claim(
        "002-text-threshold",
        "Section 4, before Proposition 2",
        "g(p, γ) lies in [0, 1) above a threshold p0, and g > 1 on [0, p0).",
        CheckMethod.BALLS,
        "γ > 0",
        _above_one_before,
    ),
    Claim(
        "002-text-gamma-7",
        "Section 4, implicit regularization",
        "For γ ≥ 7, g(p, γ) is nearly 0 for p above about 0.5.",
        CheckMethod.BALLS,
        "7 ≤ γ ≤ 64; we read nearly 0 as below 0.05",
        _dies,
    ),
    Claim(
        "002-text-edge",
        "Section 5, sample-dependent γ",
        "The threshold between γ = 5 and γ = 3 is 0.19, because g(0.19, 5) ≈ 1.",
        CheckMethod.IDENTITY,
        "rounded to a whole number",
        _edge,
    ),
    Claim(
        "002-prop-3",
        "Proposition 3 and Equation 4, the proof of Proposition 1",
        "The derivative of focal loss with respect to p is −g(p, γ)/p.",
        CheckMethod.IDENTITY,
        "p from 0.01 to 0.9, γ from 0.5 to 5",
        _partial_derivative,
    ),
    Claim(
        "002-eq-7",
        "Equation 7",
        "∂g/∂p = γ(1−p)^(γ−2) (−2(1−p) − (1−p) log p + (γ−1) p log p).",
        CheckMethod.IDENTITY,
        "p from 0.01 to 0.9, γ from 0.5 to 5",
        _peak_formula,
    ),
    Claim(
        "002-eq-7-at-one",
        "Below Equation 7",
        "γ(1−p)^(γ−2) > 0 except at p = 1, where it is 0.",
        CheckMethod.BALLS,
        "γ > 0, p → 1",
        _factor_at_one,
    ),
    Claim(
        "002-eq-9",
        "Equations 8 and 9",
        "∂g/∂p has the sign of k(p, γ) = 2(1−p)/log p + 1 − γp, which falls from 1 to −(1+γ).",
        CheckMethod.IDENTITY,
        "p from 10⁻²⁰⁰ to 1 − 10⁻¹⁵, γ from 0.5 to 5; decrease: all γ ≥ 0",
        _sign_function,
    ),
    Claim(
        "002-appendix-b-slope",
        "Appendix B, below Equation 9",
        "∂g/∂p itself falls monotonically from p = 0 to p = 1.",
        CheckMethod.IDENTITY,
        "γ = 3",
        _gradient_falls,
    ),
    Claim(
        "002-eq-10",
        "Equation 10",
        "g(p0, γ) ≤ 1 means ((γ−a/b) log a) e^((γ−a/b) log a) ≥ −(a^(1−a/b)/b) log a; the right side has its "
        "minimum, −1/e, at p0 = 1/2.",
        CheckMethod.IDENTITY,
        "six p0 below 1/2",
        _rearrangement,
    ),
    Claim(
        "002-prop-4",
        "Proposition 4 and Equation 11, the proof of Proposition 2",
        "γ* = a/b + W₋₁(−(a^(1−a/b)/b) log a)/log a with a = 1−p0, b = p0 log p0 solves g(p0, γ*) = 1.",
        CheckMethod.IDENTITY,
        "six p0 below 1/2",
        _lambert_formula,
    ),
    Claim(
        "002-eq-12",
        "Equation 12",
        "The principal branch W₀ yields a negative γ.",
        CheckMethod.IDENTITY,
        "p0 = 1/4 and 0.6",
        _principal_branch,
    ),
)
