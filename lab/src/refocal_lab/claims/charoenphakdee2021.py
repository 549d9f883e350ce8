"""Claims of Charoenphakdee et al. (2021), and of the talk about the paper."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import mpmath as mp
import numpy as np
from flint import arb

from refocal.maps.focal import phi
from refocal.maps.minimizer import minimizer
from refocal.maps.posterior import posterior
from refocal.maps.sigmoid import sigmoid_minimizer
from refocal.maps.theory import thresholds
from refocal_lab.claims import lemmas
from refocal_lab.claims.balls import decide, decimal, format_ball, log_phi_rate, prove, slope_sign
from refocal_lab.claims.charoenphakdee2021_map import GAMMAS, search_sizes
from refocal_lab.claims.claim import (
    ABOUT_NETWORKS,
    DEFINITION,
    CheckMethod,
    Claim,
    Finding,
    Outcome,
    not_checkable,
    settle,
)
from refocal_lab.claims.identities import (
    check_identity,
    compare_printed,
    is_cross_entropy,
    mp_loss,
    mp_phi,
    mp_posterior,
)
from refocal_lab.claims.sampling import search, simplex_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _regime_violation(rows: np.ndarray, gamma: float) -> np.ndarray:
    """By how much a row violates Theorem 8: Psi raises a top score <= tau_oc, or lowers one >= tau_uc."""
    tau_oc, tau_uc = thresholds(gamma)
    drop = lemmas.top_drop(rows, gamma)
    return np.where(rows[:, 0] <= tau_oc, -drop, np.where(rows[:, 0] >= tau_uc, drop, -1.0))


def _classification_calibrated() -> Finding:
    def order(rows: np.ndarray) -> np.ndarray:
        return np.max(np.diff(minimizer(rows, gamma=2.0), axis=1), axis=1)

    tried = search(order, partial(simplex_rows, classes=10), budget=2_000)
    return settle(lemmas.loss_is_convex().prefix("h = −1/ℓ' increases, so η_i < η_j implies q_i < q_j") & tried)


def _is_improper() -> Outcome:
    """At q = eta the risk is stationary only if phi takes the same value at both entries."""
    low, top = decimal("0.1"), decimal("0.9")
    proof = prove(lambda gamma: log_phi_rate(low, gamma) - log_phi_rate(top, gamma), [(0.0, 2.0**40)])
    return proof.prefix("φ(0.1) > φ(0.9)")


def _fixed_points() -> Finding:
    rows = [np.r_[np.full(m, 1 / m), np.zeros(20 - m)] for m in range(1, 21)]
    moved = max(float(np.max(np.abs(posterior(row, gamma=float(g)) - row))) for row in rows for g in GAMMAS)
    exact = check_identity(
        lambda g, m: mp_posterior([1 / m] * int(m), g)[0],
        lambda _, m: 1 / m,
        [(g, m) for g in GAMMAS for m in ("2", "3", "7", "100")],
    )
    vectors = "Ψ changes vectors of 20 classes with 1 to 20 equal entries by"
    zeros = Outcome(
        moved < 1e-15, f"{vectors} {moved:.1g}"
    )  # rounding differs between machines, so no exact number is reported
    return settle(exact.prefix("Ψ maps uniform vectors to themselves") & zeros.reword(f"{vectors} less than 10⁻¹⁵"))


def _thresholds() -> Finding:
    return settle(lemmas.threshold_is_below_half())


def _regimes() -> Finding:
    reduction = (
        "Ψ_top < q_top if and only if Σ q_l (φ_top/φ_l − 1) > 0; φ increases up to τ_oc, and φ_l > φ_top above τ_uc"
    )
    return settle(lemmas.threshold_is_below_half().prefix(reduction) & search_sizes(_regime_violation))


def _underconfident_above_half() -> Finding:
    return settle(lemmas.threshold_is_below_half().reword("τ_uc < 1/2 for every γ > 0 (see 001-thm-8-1)"))


def _binary_underconfident() -> Finding:
    return settle(lemmas.binary_gap_grows())


def _gap_grows() -> Finding:
    """d/dgamma of logit Psi is u - (t_p - t_q) with t = s / (1 + gamma s), and t_p - t_q <= s_p - s_q < u."""
    tried = search(
        lambda rows: sigmoid_minimizer(rows[:, 0], gamma=2.0) - sigmoid_minimizer(rows[:, 0], gamma=1.9),
        lambda rng, count: rng.uniform(0.5, 1, (count, 1)),
        budget=5_000,
    )
    return settle(lemmas.binary_gap_grows().prefix("s(p) − s(1−p) < logit p") & tried)


def _phi_is_derivative() -> Finding:
    points = [(p, g) for p in ("0.001", "0.2", "0.5", "0.99") for g in GAMMAS]
    return settle(
        check_identity(lambda p, g: -p * mp.diff(lambda v: mp_loss(v, g), p), mp_phi, points, tolerance="1e-15")
    )


def _footnote() -> Finding:
    """Near the uniform vector, Psi lowers the top score if and only if phi'(1/K) > 0, that is k(1/K, gamma) > 0."""
    fifth, quarter = decimal("0.2"), decimal("0.25")
    edge = slope_sign(fifth, arb(0)) / fifth  # the gamma at which k(1/5, gamma) = 0
    printed, _ = compare_printed([("the edge of γ for K = 5", float(edge.mid()), "0.03")])
    four = decide(-slope_sign(quarter, arb(0)), "K = 4: k(1/4, γ) < 0 for every γ ≥ 0", "K = 4 can be overconfident")
    elsewhere = lemmas.confidence_falls(("0.333", "0.333", "0.333", "0.001"), "1")
    far = elsewhere.prefix("the limit max q → 1/K matters, elsewhere four classes are enough")
    return settle(
        printed.reword(f"K = 5: k(1/5, γ) > 0 for γ < {format_ball(edge, 4)}, which rounds to 0.03") & four & far
    )


def _proper_is_calibrated() -> Finding:
    """The minimizer of a strictly proper loss is eta itself; focal loss shows that the converse is false."""

    def loss_of_another(rows: np.ndarray) -> np.ndarray:
        """Minus the excess loss of the best prediction in which the top class is not ahead: the top two tie."""
        other = rows.copy()
        other[:, :2] = rows[:, :2].mean(axis=1, keepdims=True)
        log = np.sum(rows * (np.log(other) - np.log(rows)), axis=1)
        return np.maximum(log, -np.sum((rows - other) ** 2, axis=1))

    def untied(rng: np.random.Generator, count: int) -> np.ndarray:
        rows = simplex_rows(rng, count, classes=5)
        rows[:, 0] += 0.01
        return np.asarray(rows / rows.sum(axis=1, keepdims=True))

    implied = search(loss_of_another, untied, budget=20_000, least=-1e-9)
    converse = lemmas.loss_is_convex() & _is_improper()
    return settle(
        implied.prefix("q* = η has the arg max of η, and with any other arg max log-loss and Brier score are higher")
        & converse.reword(
            "focal loss with γ > 0 is classification-calibrated (001-thm-3), not strictly proper (001-thm-5)"
        )
    )


def _talk_table() -> Finding:
    values = [
        (f"γ = {g}", float(sigmoid_minimizer(np.array(0.9), gamma=float(g))), said)
        for g, said in ((1, "0.78"), (3, "0.65"), (5, "0.60"))
    ]
    printed, right = compare_printed(values)
    corrected, _ = compare_printed([(name, value, f"{value:.2f}") for name, value, _ in values])
    return settle(printed, corrected=corrected.reword(f"the top scores are {right}"))


def draw_phi(ax: Axes) -> None:
    """Draw phi for several gammas, and the regions for gamma = 3."""
    p = np.linspace(0, 1, 400)
    tau_oc, tau_uc = thresholds(3.0)
    for low, high, shade, name in (
        (0, tau_oc, "0.75", "overconfident"),
        (tau_oc, tau_uc, "0.87", "depends"),
        (tau_uc, 1, "0.96", "underconfident"),
    ):
        ax.axvspan(low, high, color=shade, linewidth=0, label=f"γ = 3: {name}")
    for gamma, style in ((0.5, ":"), (1.0, "-."), (3.0, "-"), (5.0, "--")):
        ax.plot(p, phi(p, gamma=gamma), color="black", linestyle=style, label=f"γ = {gamma:g}")
    ax.axhline(1, color="0.5", linewidth=0.8)
    ax.set(xlim=(0, 1), ylim=(0, 1.9), xlabel="top score", ylabel="φ")
    ax.legend(loc="upper right", ncols=2, framealpha=1, edgecolor="none", fontsize="small")


CLAIMS = (
    not_checkable("001-def-1", "Definition 1", "The Bayes-optimal classifier predicts arg max η.", DEFINITION),
    Claim(
        "001-eq-6",
        "Equations 5 and 6",
        "Focal loss −Σ v_i (1−u_i)^γ log u_i with γ = 0 is cross-entropy.",
        CheckMethod.IDENTITY,
        "p = 0.1, 0.5, 0.9",
        lambda: settle(is_cross_entropy(0)),
    ),
    not_checkable(
        "001-def-2",
        "Definition 2",
        "A loss is classification-calibrated if its risk minimizer always predicts the Bayes-optimal class.",
        DEFINITION,
    ),
    Claim(
        "001-thm-3",
        "Theorem 3",
        "Focal loss is classification-calibrated for every γ ≥ 0: η_i < η_j implies q_i < q_j.",
        CheckMethod.BALLS,
        "all γ ≥ 0, 0 ≤ p ≤ 1; search: 10 classes, γ = 2",
        _classification_calibrated,
    ),
    not_checkable(
        "001-def-4",
        "Definition 4",
        "A loss is strictly proper if the true posterior is its only minimizer.",
        DEFINITION,
    ),
    Claim(
        "001-thm-5",
        "Theorem 5",
        "Focal loss is not strictly proper for any γ > 0: q = η = (0.9, 0.1) is not stationary, since φ(0.1) ≠ φ(0.9).",
        CheckMethod.BALLS,
        "0 < γ ≤ 10¹²",
        lambda: settle(_is_improper()),
    ),
    Claim(
        "001-text-proper",
        "Section 4.1, below Definition 4",
        "Every strictly proper loss is classification-calibrated, and the converse is false.",
        CheckMethod.BALLS,
        "implication: by definition, and log-loss and Brier score, five classes; converse: focal loss, 0 < γ ≤ 10¹²",
        _proper_is_calibrated,
    ),
    Claim(
        "001-prop-6",
        "Proposition 6",
        "If all non-zero entries of the minimizer q are equal, then q = η.",
        CheckMethod.IDENTITY,
        "1 to 20 of 20 classes, up to 100 classes; γ from 0.01 to 20",
        _fixed_points,
    ),
    not_checkable(
        "001-def-7",
        "Definition 7",
        "A minimizer is η-underconfident if max q < max η, η-overconfident if max q > max η.",
        DEFINITION,
    ),
    Claim(
        "001-eq-10",
        "Equation 10",
        "φ(p) = (1−p)^γ − γ(1−p)^(γ−1) p log p is −p times the derivative of focal loss.",
        CheckMethod.IDENTITY,
        "p from 0.001 to 0.99, γ from 0.01 to 20",
        _phi_is_derivative,
    ),
    Claim(
        "001-thm-8-1",
        "Theorem 8, part 1",
        "With τ_oc = arg max φ and φ(τ_uc) = 1: 0 < τ_oc < τ_uc < 1/2.",
        CheckMethod.BALLS,
        "0 < γ ≤ 10¹²",
        _thresholds,
        draw_phi,
    ),
    Claim(
        "001-thm-8",
        "Theorem 8, parts 2 and 3",
        "Unless all non-zero scores are equal, a minimizer is overconfident if max q ≤ τ_oc and underconfident if "
        "max q ≥ τ_uc.",
        CheckMethod.BALLS,
        "0 < γ ≤ 10¹², any number of classes; search: γ from 0.05 to 10",
        _regimes,
        draw_phi,
    ),
    Claim(
        "001-cor-9",
        "Corollary 9",
        "For every γ > 0, a minimizer with 1/2 < max q < 1 is underconfident.",
        CheckMethod.BALLS,
        "0 < γ ≤ 10¹², any number of classes",
        _underconfident_above_half,
    ),
    Claim(
        "001-footnote-2",
        "Footnote 2",
        "As max q → 1/K, a minimizer can be overconfident with as few as K = 5 classes, if γ ≤ 0.03.",
        CheckMethod.BALLS,
        "K = 4 and 5, near the uniform vector; the edge of γ rounded to two decimals",
        _footnote,
    ),
    Claim(
        "001-cor-10",
        "Corollary 10",
        "With two classes, a minimizer is underconfident unless it is uniform or one-hot.",
        CheckMethod.BALLS,
        "all γ > 0, 1/2 ≤ p ≤ 1",
        _binary_underconfident,
    ),
    Claim(
        "001-fig-2",
        "Section 4.2 and Figure 2a",
        "With two classes, a larger γ widens the gap between max q and max η.",
        CheckMethod.BALLS,
        "all γ ≥ 0, 1/2 ≤ p ≤ 1; search: γ = 1.9 and 2",
        _gap_grows,
    ),
    Claim(
        "001-talk-table",
        "Talk, tables of the main result",
        "For η = (0.90, 0.10), the top scores of the minimizers are 0.78 (γ = 1), 0.65 (γ = 3) and 0.60 (γ = 5).",
        CheckMethod.IDENTITY,
        "two classes, rounded to two decimals",
        _talk_table,
    ),
    not_checkable(
        "001-experiments",
        "Sections 5.2 and 6, Figures 3 to 6",
        "Ψ improves the calibration of trained networks on most data sets; the best γ grows with network size.",
        ABOUT_NETWORKS,
    ),
)
