"""002: J. Mukhoti et al., version under review for ICLR 2020: gradients, gamma*, and the bound of Appendix H."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpmath as mp
import numpy as np
from flint import arb

from refocal.claims import facts
from refocal.claims.balls import c, certain, decimal, phi, prove, s, shown
from refocal.claims.numbers import identical, mp_loss, mp_phi, printed_numbers
from refocal.claims.record import Claim, Finding, Method, Outcome, not_checkable, settle
from refocal.claims.sampling import search
from refocal.core.focal import phi as core_phi
from refocal.core.sigmoid import sigmoid_minimizer
from refocal.core.theory import gamma_star, thresholds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = [(p, g) for p in ("0.01", "0.2", "0.5", "0.9") for g in ("0.5", "1", "2", "3", "5")]
_BELOW_HALF = ("0.01", "0.1", "0.19", "0.25", "0.4", "0.49")
_COPY = "in our copy of the paper's text, where fraction bars and sums are lost"


def _gradient(p: Any, g: Any) -> Any:
    """The derivative of g(p, gamma) = phi by p, numerically."""
    return mp.diff(lambda v: mp_phi(v, g), p)


def _gradient_ratio() -> Finding:
    """Of a linear layer with two features and three classes: one sample, the derivative by one weight."""

    def slopes(g: Any, weight: Any, focal: bool) -> Any:
        def loss(w: Any) -> Any:
            logits = [w * mp.mpf("0.7") - mp.mpf("0.4"), mp.mpf("0.3"), mp.mpf("-0.9")]
            p = mp.exp(logits[0]) / mp.fsum(map(mp.exp, logits))
            return mp_loss(p, g if focal else 0)

        return mp.diff(loss, weight)

    def scaled(g: Any, weight: Any) -> Any:
        logits = [weight * mp.mpf("0.7") - mp.mpf("0.4"), mp.mpf("0.3"), mp.mpf("-0.9")]
        p = mp.exp(logits[0]) / mp.fsum(map(mp.exp, logits))
        return slopes(g, weight, False) * mp_phi(p, g)

    points = [(g, w) for g in ("0.5", "1", "3") for w in ("-2", "0.1", "4")]
    ratio = identical(lambda g, w: slopes(g, w, True), scaled, points, tolerance="1e-15")
    positive = prove(lambda p, g: 1 + g * s(p), [facts.UNIT, (0.0, 1024.0)])
    return settle(ratio & positive._replace(words=f"g = (1−p)^γ (1 + γs) ≥ 0, so |g| ≤ 1 is g ∈ [0, 1], {positive.words}"))


def _partial_derivative() -> Finding:
    return settle(identical(lambda p, g: mp.diff(lambda v: mp_loss(v, g), p), lambda p, g: -mp_phi(p, g) / p, _POINTS, tolerance="1e-15"))


def _gamma_of(p0: Any, branch: int) -> Any:
    """a/b + W(-(a^(1 - a/b) / b) log a) / log a (Eqs. 11 and 12)."""
    a, b = 1 - p0, p0 * mp.log(p0)
    return a / b + mp.lambertw(-(a ** (1 - a / b)) / b * mp.log(a), branch).real / mp.log(a)


def _threshold_gamma() -> Finding:
    """log g is concave in gamma and 0 at 0 and gamma*, so negative beyond; and phi has one peak in p."""

    def excess(rows: np.ndarray) -> np.ndarray:
        p0, p, more = rows.T
        gammas = np.array([gamma_star(value) for value in p0]) + more
        return np.array([float(core_phi(v, gamma=g)) - 1 for v, g in zip(p, gammas, strict=True)])

    def candidates(rng: np.random.Generator, count: int) -> np.ndarray:
        p0 = rng.uniform(1e-3, 0.5, count)
        return np.column_stack([p0, rng.uniform(p0, 1), rng.exponential(2, count)])

    solves = identical(lambda p: mp_phi(p, _gamma_of(p, -1)), lambda _: mp.mpf(1), [(p,) for p in _BELOW_HALF])
    tried = search(excess, candidates, budget=2_000)
    inside = solves._replace(words=f"g(p0, γ*) = 1, {solves.words}") & facts.phi_has_one_peak() & tried
    with mp.workdps(40):
        flat = _gamma_of(mp.mpf("0.6"), -1)
        same = bool(abs(flat) < mp.mpf("1e-30"))
    words = "p0 = 0.6 gives γ* = 0, and g(p, 0) = 1 for every p, not for p0 alone"
    return settle(Outcome(not same, words), inside=inside, where="for 0 < p0 < 1/2")


def _lambert_formula() -> Finding:
    """The formula that Eqs. 10 and 11 derive, beside the inline one as our copy reads it, and the package's own."""
    solves = identical(lambda p: mp_phi(p, _gamma_of(p, -1)), lambda _: mp.mpf(1), [(p,) for p in _BELOW_HALF])
    ours = identical(lambda p: _gamma_of(p, -1), lambda p: mp.mpf(gamma_star(float(p))), [(p,) for p in _BELOW_HALF], tolerance="1e-12")
    with mp.workdps(30):
        a, b = mp.mpf("0.75"), mp.mpf("0.25") * mp.log("0.25")
        inline = a + mp.log(a) * mp.lambertw(-(a ** (1 - a / b)) / b * mp.log(a), -1).real
        off = mp_phi(mp.mpf("0.25"), inline)
    copy = f"{_COPY}, Propositions 2 and 4 read a + log a · W(…), which gives g(0.25, {mp.nstr(inline, 4)}) = {mp.nstr(off, 4)}"
    return settle(solves._replace(words=f"g(p0, γ*) = 1, {solves.words}; γ*(0.25) = {gamma_star(0.25):.4f}") & ours._replace(words=copy))


def _rearranged() -> Finding:
    """Both sides of the last line of Eq. 10 at a gamma that solves it."""
    def sides(p: Any, left: bool) -> Any:
        a, b = 1 - p, p * mp.log(p)
        gamma = mp.mpf(_gamma_of(p, -1))
        if left:
            return (gamma - a / b) * mp.log(a) * mp.exp((gamma - a / b) * mp.log(a))
        return -(a ** (1 - a / b)) / b * mp.log(a)

    equal = identical(lambda p: sides(p, True), lambda p: sides(p, False), [(p,) for p in _BELOW_HALF])
    least = identical(lambda p: sides(p, False), lambda _: -mp.exp(-1), [("0.5",)])
    above = all(sides(mp.mpf(p), False) > -mp.exp(-1) for p in ("0.4", "0.49", "0.51", "0.6"))
    return settle(equal & least & Outcome(above, "at p0 = 1/2 the right side is −1/e, beside it more"))


def _principal_branch() -> Finding:
    with mp.workdps(30):
        below, above = _gamma_of(mp.mpf("0.25"), 0), _gamma_of(mp.mpf("0.6"), 0)
        zero, negative = bool(abs(below) < mp.mpf("1e-25")), bool(above < 0)
    words = "p0 = 1/4: the principal branch gives γ = 0, as g(p, 0) = 1 always does"
    return settle(
        Outcome(not zero, words), inside=Outcome(negative, f"p0 = 0.6 gives γ = {mp.nstr(above, 4)}"), where="for p0 > 1/2"
    )


def _peak_formula() -> Finding:
    def printed(p: Any, g: Any) -> Any:
        return g * (1 - p) ** (g - 2) * (-2 * (1 - p) - (1 - p) * mp.log(p) + (g - 1) * p * mp.log(p))

    return settle(identical(_gradient, printed, _POINTS, tolerance="1e-15"))


def _factor_at_one() -> Finding:
    """gamma q^(gamma - 2) as q -> 0."""
    def value(g: str) -> arb:
        gamma = decimal(g)
        return gamma * ((gamma - 2) * decimal("1e-30").log()).exp()

    inside = certain(decimal("1e-6") - value("3"), "at 1 − p = 10⁻³⁰ it is below 10⁻⁶ for γ = 3", "γ = 3 does not vanish")
    printed = certain(decimal("1e-6") - value("2"), "", f"γ = 2: it is {shown(value('2'), 3)} at every p")
    return settle(printed, inside=inside, where="for γ > 2")


def _sign_function() -> Finding:
    """k of Eq. 9 times -log p is Eq. 8; limits 1 and -(1 + gamma)."""
    def eight(p: Any, g: Any) -> Any:
        return -2 * (1 - p) - (1 - p) * mp.log(p) + (g - 1) * p * mp.log(p)

    def nine(p: Any, g: Any) -> Any:
        return 2 * (1 - p) / mp.log(p) + 1 - g * p

    same = identical(lambda p, g: nine(p, g) * -mp.log(p), eight, _POINTS)
    limits = identical(lambda p, g: nine(p, g), lambda p, g: 1 if p < 0.5 else -(1 + g), [("1e-200", "3")], tolerance="0.01")
    at_one = identical(lambda g: nine(1 - mp.mpf("1e-15"), g), lambda g: -(1 + g), [("0.5",), ("3",)], tolerance="1e-13")
    return settle(same & limits & at_one & facts.phi_has_one_peak())


def _gradient_falls() -> Finding:
    """The slope of g at two points: if it fell all the way, it could not be higher at the later one."""
    with mp.workdps(30):
        early, late = (_gradient(mp.mpf(p), mp.mpf(3)) for p in ("0.5", "0.9"))
    words = f"γ = 3: ∂g/∂p is {mp.nstr(early, 4)} at p = 0.5 and {mp.nstr(late, 4)} at p = 0.9"
    return settle(Outcome(bool(late < early), words))


def _above_one_before() -> Finding:
    at_zero = phi(arb(0), arb(3)) - 1
    inside = facts.threshold_is_below_half()._replace(words="φ rises from 1 to its one peak and falls through 1 at p0 = τ_uc")
    return settle(certain(at_zero, "", "g(0, γ) = 1 for every γ"), inside=inside, where="for 0 < p < p0")


def _edge() -> Finding:
    root, value = thresholds(5.0).tau_uc, shown(phi(decimal("0.19"), arb(5)), 4)
    printed, _ = printed_numbers([("g(p, 5) = 1 at p =", root, "0.19")])
    corrected, _ = printed_numbers([("g(p, 5) = 1 at p =", root, "0.20")])
    words = f"g(p, 5) = 1 at p = {root:.4f}, so the edge is 0.20; g(0.19, 5) = {value}"
    return settle(printed, corrected=corrected._replace(words=words))


def _dies() -> Finding:
    proof = prove(lambda g: decimal("0.05") - phi(decimal("0.5"), g), [(7.0, 64.0)])
    value = shown(phi(decimal("0.5"), arb(7)), 3)
    return settle(proof._replace(words=f"g(1/2, γ) < 0.05 for 7 ≤ γ ≤ 64, {proof.words}; g(1/2, 7) = {value}"))


def _convex_in_inverse_temperature() -> Finding:
    """NLL in beta = 1/T has the variance of the logits under the softmax as second derivative."""

    def nll(beta: Any, rows: Any) -> Any:
        return mp.fsum(mp.log(mp.fsum(mp.exp(beta * z) for z in row)) - beta * row[0] for row in rows)

    rows = [[mp.mpf(2), mp.mpf(0), mp.mpf(-1)], [mp.mpf(-1), mp.mpf(3), mp.mpf(0)]]

    def variance(beta: Any) -> Any:
        total = mp.mpf(0)
        for row in rows:
            weights = [mp.exp(beta * z) for z in row]
            mean = mp.fsum(w * z for w, z in zip(weights, row, strict=True)) / mp.fsum(weights)
            total += mp.fsum(w * (z - mean) ** 2 for w, z in zip(weights, row, strict=True)) / mp.fsum(weights)
        return total

    equal = identical(lambda b: mp.diff(lambda v: nll(v, rows), b, 2), variance, [("0.1",), ("1",), ("5",)], tolerance="1e-12")
    shape = "the second derivative of NLL by 1/T is the variance of the logits, never negative"
    # a stationary point of a function that is convex in 1/T is its global minimum: nothing to get stuck at
    return settle(Outcome(not equal.holds, f"{shape} ({equal.words}), so in T there is one minimum at most and no other stationary point"))


def _not_convex_in_temperature() -> Finding:
    """One sample with logits (1, 0), the first being right: log(1 + e^(-1/T)) at T = 1, 3 and 5."""
    def nll(t: str) -> arb:
        return (-(1 / decimal(t))).exp().log1p()

    bend = nll("3") - (nll("1") + nll("5")) / 2
    words = "logits (1, 0), the first class being right: NLL at T = 3 lies above the mean of T = 1 and T = 5"
    return settle(certain(bend, f"{words} by {shown(bend, 3)}", "no bend found"))



def entropy_bound() -> Outcome:
    """FL >= CE - gamma H for every gamma >= 0.

    The difference is linear in the true distribution, so one-hot ones are worst; among distributions that give the true
    class x the one with two classes has the least entropy; and 1 - (1-x)^gamma <= -gamma log(1-x). What is left is
    H(x, 1-x) >= log(x) log(1-x), that is (A-1)(B-1) < 1 with A = -log(x)/(1-x) and B = -log(1-x)/x, symmetric in x.
    """
    proof = prove(lambda x: 1 - (s(x) - x) * c(x), [(0.0, 0.5)])
    return proof._replace(words=f"it comes down to H(x, 1−x) ≥ log x · log(1−x), {proof.words}")


def _third_line() -> Finding:
    """-sum (1 - gamma q_i) p_i log q_i, expanded."""
    p, q = [mp.mpf("0.7"), mp.mpf("0.3")], [mp.mpf("0.6"), mp.mpf("0.4")]

    def start(g: Any) -> Any:
        return -mp.fsum((1 - g * b) * a * mp.log(b) for a, b in zip(p, q, strict=True))

    def expanded(g: Any, sign: int) -> Any:
        tail = mp.fsum(a * b * mp.log(b) for a, b in zip(p, q, strict=True))
        return -mp.fsum(a * mp.log(b) for a, b in zip(p, q, strict=True)) + sign * g * tail

    printed = identical(start, lambda g: expanded(g, -1), [("1",), ("2",)])
    corrected = identical(start, lambda g: expanded(g, 1), [("1",), ("2",)])
    mend = "−Σ(1−γq)p log q = −Σ p log q + γ Σ p q log q"
    return settle(printed._replace(words=f"{_COPY}, with −γ: p = (0.7, 0.3), q = (0.6, 0.4), {printed.words}"), corrected=corrected._replace(words=f"{mend}, {corrected.words}"))


def _more_entropy() -> Finding:
    """Corollary 10 of 001: the solution lies between 1/2 and p."""
    equal = float(sigmoid_minimizer(np.array(0.5), gamma=2.0))
    proof = prove(lambda p: 2 - s(p) - s(1 - p), [(0.5, 1.0)])
    inside = proof._replace(words=f"q lies strictly between p and 1/2, {proof.words}")
    return settle(Outcome(equal != 0.5, "p = 1/2: both solutions are 1/2, of the same entropy"), inside=inside, where="for p other than 0, 1/2, 1")


def draw_temperature(ax: Axes) -> None:
    """NLL of one confident mistake among right samples, against T and against 1/T."""
    t = np.linspace(0.2, 6, 300)
    logits = np.array([3.0, 2.0, 1.0, -2.0])  # margins of the right class
    nll = np.mean(np.log1p(np.exp(-logits[:, None] / t)), axis=0)
    ax.plot(t, nll, color="black", label="against T")
    ax.plot(1 / t, nll, color="0.45", linestyle="--", label="against 1/T")
    ax.set(xlim=(0, 6), xlabel="T, or 1/T", ylabel="NLL")
    ax.legend(frameon=False)


_DEFINITION = "a definition"

CLAIMS = (
    not_checkable("002-eq-1", "Equation 1", "ECE is the mean over bins of |accuracy − confidence|, weighted by their samples.", _DEFINITION),
    not_checkable("002-eq-2", "Equation 2", "MCE is the largest |accuracy − confidence| of a bin.", _DEFINITION),
    not_checkable("002-eq-3", "Equation 3", "AdaECE is ECE over bins of equally many samples.", _DEFINITION),
    Claim(
        "002-prop-1",
        "Proposition 1",
        "The gradient of focal loss by the last layer is that of cross-entropy times g(p, γ) = φ(p); its norm is the smaller exactly if g ∈ [0, 1].",
        Method.IDENTITY,
        "three classes, γ = 0.5, 1, 3, gradients other than 0; g ≥ 0 for γ up to 1,024",
        _gradient_ratio,
    ),
    Claim(
        "002-prop-2",
        "Proposition 2",
        "For p ≥ p0 and γ ≥ γ*(p0), g(p, γ) ≤ 1, with equality only at p = p0 and γ = γ*.",
        Method.IDENTITY,
        "0 < p0 < 1, as printed",
        _threshold_gamma,
    ),
    Claim(
        "002-text-threshold",
        "Section 4, before Proposition 2",
        "g(p, γ) lies in [0, 1) above a threshold p0, and g > 1 on [0, p0).",
        Method.BALLS,
        "γ > 0",
        _above_one_before,
    ),
    Claim(
        "002-text-gamma-7",
        "Section 4, implicit regularisation",
        "For γ ≥ 7, g(p, γ) is nearly 0 from p around 0.5 on.",
        Method.BALLS,
        "7 ≤ γ ≤ 64; nearly 0 taken as below 0.05",
        _dies,
    ),
    Claim(
        "002-text-edge",
        "Section 5, sample-dependent γ",
        "The edge between γ = 5 and γ = 3 is 0.19, as g(0.19, 5) ≈ 1.",
        Method.IDENTITY,
        "rounded to two decimals",
        _edge,
    ),
    Claim(
        "002-text-nll-convex",
        "Section 6, temperature scaling",
        "NLL is not a convex function of T.",
        Method.BALLS,
        "one sample, two classes",
        _not_convex_in_temperature,
        draw_temperature,
    ),
    Claim(
        "002-text-nll-stuck",
        "Section 6, temperature scaling",
        "So an optimiser may get stuck at a locally optimal T.",
        Method.IDENTITY,
        "any logits; the second derivative at three temperatures of two samples",
        _convex_in_inverse_temperature,
        draw_temperature,
    ),
    Claim(
        "002-prop-3",
        "Proposition 3 and Equation 4, the proof of Proposition 1",
        "The derivative of focal loss by p is −g(p, γ)/p.",
        Method.IDENTITY,
        "p from 0.01 to 0.9, γ from 0.5 to 5",
        _partial_derivative,
    ),
    Claim(
        "002-eq-7",
        "Equation 7",
        "∂g/∂p = γ(1−p)^(γ−2) (−2(1−p) − (1−p) log p + (γ−1) p log p).",
        Method.IDENTITY,
        "p from 0.01 to 0.9, γ from 0.5 to 5",
        _peak_formula,
    ),
    Claim(
        "002-eq-7-at-one",
        "Below Equation 7",
        "γ(1−p)^(γ−2) > 0 except at p = 1, where it is 0.",
        Method.BALLS,
        "γ > 0, p → 1",
        _factor_at_one,
    ),
    Claim(
        "002-eq-9",
        "Equations 8 and 9",
        "∂g/∂p has the sign of k(p, γ) = 2(1−p)/log p + 1 − γp, which falls from 1 to −(1+γ).",
        Method.IDENTITY,
        "p from 10⁻²⁰⁰ to 1 − 10⁻¹⁵, γ from 0.5 to 5; falling: all γ ≥ 0",
        _sign_function,
    ),
    Claim(
        "002-appendix-b-slope",
        "Appendix B, below Equation 9",
        "∂g/∂p itself falls monotonically from p = 0 to p = 1.",
        Method.IDENTITY,
        "γ = 3",
        _gradient_falls,
    ),
    Claim(
        "002-eq-10",
        "Equation 10",
        "g(p0, γ) ≤ 1 is ((γ−a/b) log a) e^((γ−a/b) log a) ≥ −(a^(1−a/b)/b) log a, whose right side is least, −1/e, at p0 = 1/2.",
        Method.IDENTITY,
        "six p0 below 1/2",
        _rearranged,
    ),
    Claim(
        "002-prop-4",
        "Proposition 4 and Equation 11, the proof of Proposition 2",
        "γ* = a/b + W₋₁(−(a^(1−a/b)/b) log a)/log a with a = 1−p0, b = p0 log p0 solves g(p0, γ*) = 1.",
        Method.IDENTITY,
        "six p0 below 1/2",
        _lambert_formula,
    ),
    Claim(
        "002-eq-12",
        "Equation 12",
        "The principal branch W₀ yields a negative γ.",
        Method.IDENTITY,
        "p0 = 1/4 and 0.6",
        _principal_branch,
    ),
    Claim(
        "002-appendix-h-line-3",
        "Appendix H, third line",
        "−Σ(1−γq)p log q = −Σ p log q − γ Σ p q log q.",
        Method.IDENTITY,
        "two classes, γ = 1 and 2",
        _third_line,
    ),
    Claim(
        "002-appendix-h",
        "Appendix H",
        "FL(p, q) ≥ CE(p, q) − γ H(q), so KL(p‖q) ≤ FL(p, q) + γ H(q) − H(p), for γ ≥ 1.",
        Method.BALLS,
        "all γ ≥ 0 (the paper: γ ≥ 1), any number of classes",
        lambda: settle(entropy_bound()),
    ),
    Claim(
        "002-eq-13",
        "Equation 13 and Figure 7",
        "With two classes the solution of focal loss always has a higher entropy than that of cross-entropy.",
        Method.BALLS,
        "all γ > 0, 0 ≤ p ≤ 1",
        _more_entropy,
    ),
)
