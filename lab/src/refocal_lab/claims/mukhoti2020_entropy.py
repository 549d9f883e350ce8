"""Claims of Mukhoti et al. (2020) about temperature scaling by NLL and about entropy (Appendix H)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpmath as mp
import numpy as np
from flint import arb

from refocal.maps.sigmoid import sigmoid_minimizer
from refocal_lab.claims import lemmas
from refocal_lab.claims.balls import c, decide, decimal, format_ball, prove, s
from refocal_lab.claims.claim import CheckMethod, Claim, Finding, Outcome, settle
from refocal_lab.claims.identities import check_identity

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _convex_in_inverse_temperature() -> Finding:
    """The second derivative of NLL in beta = 1/T is the variance of the logits under the softmax."""

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

    equal = check_identity(
        lambda b: mp.diff(lambda v: nll(v, rows), b, 2), variance, [("0.1",), ("1",), ("5",)], tolerance="1e-12"
    )
    shape = "the second derivative of NLL with respect to 1/T is the variance of the logits, which is never negative"
    # NLL is convex in 1/T, so each stationary point is a global minimum.
    words = f"{shape} ({equal.words}); so NLL has at most one minimum in T and no other stationary point"
    return settle(equal.reword(words).as_counterexample())


def _not_convex_in_temperature() -> Finding:
    """One sample of the first class with logits (1, 0): log(1 + e^(-1/T)) at T = 1, 3 and 5."""

    def nll(t: str) -> arb:
        return (-(1 / decimal(t))).exp().log1p()

    bend = nll("3") - (nll("1") + nll("5")) / 2
    words = "one sample of the first class with logits (1, 0): NLL at T = 3 exceeds the mean of NLL at T = 1 and T = 5"
    return settle(decide(bend, f"{words} by {format_ball(bend, 3)}", "no bend found"))


def entropy_bound() -> Outcome:
    """FL >= CE - gamma H for every gamma >= 0.

    The difference is linear in the true distribution, so one-hot distributions are the worst case. Among distributions
    that give the true class x, the one on two classes has the smallest entropy. Also 1 - (1-x)^gamma <= -gamma
    log(1-x). It remains to show H(x, 1-x) >= log(x) log(1-x), that is (A-1)(B-1) < 1 with A = -log(x)/(1-x) and
    B = -log(1-x)/x, which is symmetric in x.
    """
    proof = prove(lambda x: 1 - (s(x) - x) * c(x), [(0.0, 0.5)])
    return proof.prefix("it reduces to H(x, 1−x) ≥ log x · log(1−x)")


def _third_line() -> Finding:
    """-sum (1 - gamma q_i) p_i log q_i, expanded."""
    p, q = [mp.mpf("0.7"), mp.mpf("0.3")], [mp.mpf("0.6"), mp.mpf("0.4")]

    def start(g: Any) -> Any:
        return -mp.fsum((1 - g * b) * a * mp.log(b) for a, b in zip(p, q, strict=True))

    def expanded(g: Any, *, absolute: bool) -> Any:
        tail = mp.fsum(a * b * mp.log(b) for a, b in zip(p, q, strict=True))
        return -mp.fsum(a * mp.log(b) for a, b in zip(p, q, strict=True)) - g * (abs(tail) if absolute else tail)

    points = [("1",), ("2",)]
    printed = check_identity(start, lambda g: expanded(g, absolute=True), points)
    bare = check_identity(start, lambda g: expanded(g, absolute=False), points)
    note = (
        "our text copy has no bars, but the remark beside the line, log q ≤ 0, and the bars in the next line call for "
        f"them; without them the line fails, γ {bare.words}"
    )
    return settle(printed._replace(words=f"p = (0.7, 0.3), q = (0.6, 0.4): {printed.words}; {note}"))


def _more_entropy() -> Finding:
    """The solution lies between 1/2 and p, by Corollary 10 of Charoenphakdee et al. (2021)."""
    equal = float(sigmoid_minimizer(np.array(0.5), gamma=2.0))
    inside = lemmas.binary_gap_grows().prefix("q lies strictly between p and 1/2")
    return settle(
        Outcome(equal != 0.5, "p = 1/2: both solutions are 1/2 and have the same entropy"),
        inside=inside,
        where="for p other than 0, 1/2, 1",
    )


def draw_temperature(ax: Axes) -> None:
    """Draw NLL of three right samples and a confident mistake, against T and against 1/T."""
    t = np.linspace(0.2, 6, 300)
    logits = np.array([3.0, 2.0, 1.0, -2.0])  # margins of the right class
    nll = np.mean(np.log1p(np.exp(-logits[:, None] / t)), axis=0)
    ax.plot(t, nll, color="black", label="against T")
    ax.plot(1 / t, nll, color="0.45", linestyle="--", label="against 1/T")
    ax.set(xlim=(0, 6), xlabel="T, or 1/T", ylabel="NLL")
    ax.legend(frameon=False)


CLAIMS = (
    Claim(
        "002-text-nll-convex",
        "Section 6, temperature scaling",
        "NLL is not a convex function of T.",
        CheckMethod.BALLS,
        "one sample, two classes",
        _not_convex_in_temperature,
        draw_temperature,
    ),
    Claim(
        "002-text-nll-stuck",
        "Section 6, temperature scaling",
        "Therefore an optimizer may get stuck at a locally optimal T.",
        CheckMethod.IDENTITY,
        "any logits; second derivative for two samples at three temperatures",
        _convex_in_inverse_temperature,
        draw_temperature,
    ),
    Claim(
        "002-appendix-h-line-3",
        "Appendix H, third line",
        "−Σ(1−γq)p log q = −Σ p log q − γ |Σ p q log q|.",
        CheckMethod.IDENTITY,
        "two classes, γ = 1 and 2",
        _third_line,
    ),
    Claim(
        "002-appendix-h",
        "Appendix H",
        "FL(p, q) ≥ CE(p, q) − γ H(q), so KL(p‖q) ≤ FL(p, q) + γ H(q) − H(p), for γ ≥ 1.",
        CheckMethod.BALLS,
        "all γ ≥ 0 (the paper: γ ≥ 1), any number of classes",
        lambda: settle(entropy_bound()),
    ),
    Claim(
        "002-eq-13",
        "Equation 13 and Figure 7",
        "With two classes, the solution of focal loss always has a higher entropy than that of cross-entropy.",
        CheckMethod.BALLS,
        "all γ > 0, 0 ≤ p ≤ 1",
        _more_entropy,
    ),
)
