"""Claims of Kimura and Naganuma (2024) about curvature, the gradient of focal loss, and the trace penalty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mpmath as mp
import numpy as np
from flint import arb

from refocal_lab.claims import lemmas
from refocal_lab.claims.balls import c, decide, decimal, format_ball, loss_slope, phi, prove, s
from refocal_lab.claims.claim import ABOUT_NETWORKS, CheckMethod, Claim, Finding, Outcome, not_checkable, settle
from refocal_lab.claims.identities import check_identity, is_cross_entropy, mp_loss, mp_phi
from refocal_lab.claims.sampling import check_at_least, search

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GAMMAS = ("0.25", "0.5", "1", "2", "5")
_POINTS = [(p, g) for p in ("0.1", "0.5", "0.9") for g in _GAMMAS]


def printed_gradient(p: Any, gamma: Any) -> Any:
    """Equation 30 as printed, for mpmath numbers."""
    return (1 - p) ** gamma * (gamma * p * (1 - p) ** (gamma - 1) - (1 - p) ** gamma * mp.log(p))


def _curvature_term() -> Finding:
    """FL is a function F of u = -log p with F' = phi(p) and F'' = -p phi'(p), so FL'' = phi u'' - p phi' u'^2.

    For one sample at its own maximum, u' = 0. At the maximum of the likelihood of a data set, only the sum of the u' of
    its samples is 0.
    """

    def at_maximum(p0: Any, g: Any) -> Any:
        """The second derivative at t = 0 for p(t) = p0 e^(-t^2/2), where that of -log p is 1."""
        return mp.diff(lambda t: mp_loss(p0 * mp.exp(-(t**2) / 2), g), 0, 2)

    def along_logit(p0: Any, g: Any) -> Any:
        z = mp.log(p0 / (1 - p0))
        return mp.diff(lambda t: mp_loss(1 / (1 + mp.exp(-z - t)), g), 0, 2)

    def two_terms(p: Any, g: Any) -> Any:
        """With p = sigmoid(z), u'' = p (1 - p) and u' = p - 1."""
        return mp_phi(p, g) * p * (1 - p) - p * mp.diff(lambda v: mp_phi(v, g), p) * (1 - p) ** 2

    printed = check_identity(at_maximum, lambda p0, g: (1 - p0) ** g, _POINTS, tolerance="1e-10")
    factor = check_identity(at_maximum, mp_phi, _POINTS, tolerance="1e-10")
    both = check_identity(along_logit, two_terms, _POINTS, tolerance="1e-10")
    return settle(
        printed._replace(words=f"even for one sample the factor is not (1−p)^γ, (p, γ) {printed.words}"),
        instead=(factor & both).reword(
            "the second derivative is φ ∂²ℓ − p φ'(p) ∂ℓ ∂ℓᵀ with φ = (1−p)^γ − γ(1−p)^(γ−1) p log p; the second term "
            "vanishes at the maximum of one sample's likelihood, but not for the samples of a data set at the maximum "
            f"of theirs: {both.words}. Section 3.1 concludes from Eq. 28 that γ reduces the curvature"
        ),
    )


def _larger_gamma_flattens() -> Finding:
    """d log(phi) / dgamma = log q + s / (1 + gamma s) <= log q + s, which is 0 at p = 1/2 and falls above 1/2.

    Its slope is (-log p - 2 q) / q^2, and q c(q) < 1 gives -log p < 2 q for p >= 1/2.
    """
    inside = prove(lambda p: 1 - (1 - p) * c(1 - p), [(0.5, 1.0)])
    p, gamma = decimal("0.1"), arb(1)
    grows = phi(p, gamma)
    return settle(
        decide(1 - grows, "", f"p = 0.1: the factor is 1 at γ = 0 and {format_ball(grows, 4)} at γ = 1"),
        inside=inside.prefix("φ falls as γ ≥ 0 grows"),
        where="for p ≥ 1/2",
    )


def _gradient_formula() -> Finding:
    def true(p: Any, g: Any) -> Any:
        return mp.diff(lambda v: mp_loss(v, g), p)

    printed = check_identity(true, printed_gradient, _POINTS, tolerance="1e-12")
    true_one = check_identity(
        true, lambda p, g: g * (1 - p) ** (g - 1) * mp.log(p) - (1 - p) ** g / p, _POINTS, tolerance="1e-12"
    )
    mend = "ℓ' = γ(1−p)^(γ−1) log p − (1−p)^γ/p"
    return settle(
        printed._replace(
            words=f"g is not the derivative, (p, γ) {printed.words}; at γ = 0 the printed g is −log p, the loss itself"
        ),
        instead=true_one.reword(f"{mend}: {true_one.words}. The advice γ > 1/2 rests on Eq. 30 (004-text-gamma-half)"),
    )


def _printed_limits() -> Finding:
    """The printed g is gamma p q^(2 gamma - 1) - q^(2 gamma) log p; evaluate it at q = 10^-60."""
    with mp.workdps(80):
        near = 1 - mp.mpf("1e-60")
        values = {g: printed_gradient(near, mp.mpf(g)) for g in ("0", "0.25", "0.5", "0.75", "2")}
    fits = values["0"] < 1e-20 and values["0.25"] > 1e20 and abs(values["0.5"] - 0.5) < 1e-20
    fits = fits and values["0.75"] < 1e-20 and values["2"] < 1e-20
    words = ", ".join(f"γ = {g}: {mp.nstr(value, 3)}" for g, value in values.items())
    return settle(
        Outcome(bool(fits), f"at 1 − p = 10⁻⁶⁰ the printed g is {words}; this says nothing about the true derivative")
    )


def _limit_in_gamma() -> Finding:
    half = mp.mpf("0.5")
    points = [("0.1",), ("0.5",), ("0.9",)]
    printed = check_identity(
        lambda p: printed_gradient(p, half), lambda p: p / 2 - mp.log(p) + half * mp.log(p), points
    )
    corrected = check_identity(lambda p: printed_gradient(p, half), lambda p: p / 2 - mp.log(p) + p * mp.log(p), points)
    return settle(
        printed._replace(words=f"with γ log p = ½ log p the limit is wrong, p {printed.words}"),
        corrected=corrected.prefix("the limit of the printed g is p/2 − log p + p log p"),
    )


def slope_vanishes() -> Outcome:
    """|l'| = q^gamma (1 + gamma s) / p <= 2 (1 + gamma) q^gamma if 1 <= 2 p and s <= 2 p."""
    bound = prove(lambda p: (2 * p - 1).min(2 * p - s(p)), [(0.51, 1.0)])
    return bound.prefix("|ℓ'| < 2(1+γ)(1−p)^γ for p ≥ 0.51, so it tends to 0 as p → 1 for every γ > 0")


def _gamma_above_half() -> Finding:
    """At gamma = 1/4 the derivative tends to 0 as well."""
    value = loss_slope(1 - decimal("1e-30"), decimal("0.25"))
    near = decide(decimal("1e-6") - abs(value), f"γ = 1/4: ℓ' = {format_ball(value, 2)} at 1 − p = 10⁻³⁰", "no limit")
    found = slope_vanishes() & near
    return settle(found.as_counterexample())


def _entropy_and_curvature() -> Finding:
    """Two classes: d/dp of the entropy is log((1-p)/p) and of p (1 - p), the curvature in the logit, 1 - 2p.

    The Gibbs distribution of a quadratic loss c t^2 / 2 of given mean delta is normal with variance 2 delta / c.
    """
    both_rise = prove(lambda p: ((1 - p) / p).log().min(1 - 2 * p), [(2.0**-30, 0.499)])

    def entropy(c_: Any, delta: Any) -> Any:
        beta = 1 / (2 * delta)
        total = mp.quad(lambda t: mp.exp(-beta * c_ * t**2 / 2), [-mp.inf, 0, mp.inf])
        mean = mp.quad(lambda t: c_ * t**2 / 2 * mp.exp(-beta * c_ * t**2 / 2), [-mp.inf, 0, mp.inf]) / total
        return mp.log(total) + beta * mean

    points = [(c_, delta) for c_ in ("0.1", "1", "50") for delta in ("0.2", "3")]
    flat = check_identity(
        entropy, lambda c_, delta: mp.log(4 * mp.pi * mp.e * delta / c_) / 2, points, tolerance="1e-15"
    )
    words = (
        "the entropy of the predictions, which Lemma 1 rewards, and the curvature p(1−p) of cross-entropy in the logit "
        "both rise from p = 0 to 1/2 and peak there: more entropy comes with more curvature"
    )
    return settle(
        both_rise.reword(f"{words}, {both_rise.words}").as_counterexample(),
        inside=flat.prefix("it is ½ log(4πeδ/c), so flatter minima have more entropy"),
        where="for the entropy of the distribution of θ in Theorem 1 around a quadratic minimum of curvature c",
    )


def _curvature_and_lipschitz() -> Finding:
    """Cross-entropy as a function of the logit has slope 1 - p in size and curvature p (1 - p)."""
    low, half = decimal("1e-6"), decimal("0.5")
    smaller, steeper = half * (1 - half) - low * (1 - low), (1 - low) - (1 - half)

    def excess(rows: np.ndarray) -> np.ndarray:
        """How far |f'(x)| exceeds x times the largest |f''| on [0, x], for polynomials with f'(0) = 0."""
        x, coefficients = rows[:, :1], rows[:, 1:]
        powers = np.arange(2, 2 + coefficients.shape[1])
        grid = x * np.linspace(0, 1, 201)
        bend = np.abs(
            np.sum((coefficients * powers * (powers - 1))[:, None, :] * grid[..., None] ** (powers - 2), axis=2)
        )
        slope = np.abs(np.sum(coefficients * powers * x ** (powers - 1), axis=1))
        return slope - 1.001 * x[:, 0] * bend.max(axis=1)  # the grid may miss the peak by a little

    def candidates(rng: np.random.Generator, count: int) -> np.ndarray:
        return np.hstack([rng.uniform(0, 2, (count, 1)), rng.standard_normal((count, 5))])

    words = (
        "cross-entropy in the logit: at p = 10⁻⁶ the curvature p(1−p) is 10⁻⁶ and the slope 1 − p nearly 1, its "
        "largest value; at p = 1/2 the curvature is 0.25, its largest value, and the slope 0.5. A linear function has "
        "no curvature and any Lipschitz constant"
    )
    near = search(excess, candidates, budget=5_000)
    return settle(
        decide(smaller.min(steeper), words, "not at these points").as_counterexample(),
        inside=near.prefix("the slope is at most the distance times the largest curvature on the way"),
        where="around a stationary point, by the mean value theorem",
    )


def _figure_gamma() -> Finding:
    return settle(
        is_cross_entropy(1).prefix("with γ = 1 they differ, p"),
        corrected=is_cross_entropy(0).prefix("they coincide when γ = 0"),
    )


def _figure_smaller() -> Finding:
    """For the loss, (1-p)^gamma < 1. For its slope, phi < 1 above tau_uc < 1/2."""
    below = lemmas.threshold_is_below_half()
    return settle(below.reword("for every γ > 0, φ < 1 above τ_uc < 1/2 (001-thm-8-1) and (1−p)^γ < 1"))


def trace_estimates(*, trials: int, probes: int, seed: int = 0) -> tuple[int, float]:
    """Count how often the mean of v'Hv over random v is within 1 of the trace of H; also return the mean error.

    Args:
        trials: Number of estimates.
        probes: Number of vectors per estimate.
        seed: Seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    half = rng.standard_normal((8, 8))
    matrix = half + half.T
    v = rng.standard_normal((trials, probes, 8))
    estimates = np.mean(np.einsum("tpi,ij,tpj->tp", v, matrix, v), axis=1)
    return int(np.sum(np.abs(estimates - np.trace(matrix)) < 1)), float(np.mean(estimates) - np.trace(matrix))


def _hutchinson() -> Finding:
    trials = 200
    near, bias = trace_estimates(trials=trials, probes=5_000)
    outcome = check_at_least(near, trials, 0.9, error=1e-6)
    words = f"means of 5,000 products lie within 1 of the trace in {outcome.words}; mean error {bias:.3f}"
    return settle(outcome._replace(words=words))


def draw_gradient(ax: Axes) -> None:
    """Draw Equation 30 as printed, and minus the derivative of focal loss."""
    p = np.linspace(0.02, 0.999, 500)
    for gamma, style in ((0.25, "-"), (1.0, "--"), (2.0, ":")):
        q = 1 - p
        ax.plot(
            p,
            q ** (gamma - 1) * (q / p - gamma * np.log(p)),
            color="black",
            linestyle=style,
            label=f"−ℓ', γ = {gamma:g}",
        )
        printed = q**gamma * (gamma * p * q ** (gamma - 1) - q**gamma * np.log(p))
        ax.plot(p, printed, color="0.6", linestyle=style, label=f"as printed, γ = {gamma:g}")
    ax.set(xlim=(0, 1), ylim=(0, 4), xlabel="p", ylabel="size of the gradient")
    ax.legend(frameon=False, ncols=2, fontsize="small")


CLAIMS = (
    Claim(
        "004-fig-1",
        "Caption of Figure 1",
        "Focal loss coincides with cross-entropy when γ = 1.",
        CheckMethod.IDENTITY,
        "p = 0.1, 0.5, 0.9",
        _figure_gamma,
    ),
    Claim(
        "004-fig-1-gradient",
        "Caption of Figure 1",
        "For 0 < γ < 1, the gradient does not converge as p → 1.",
        CheckMethod.BALLS,
        "all γ > 0, p → 1",
        _gamma_above_half,
        draw_gradient,
    ),
    Claim(
        "004-fig-1-smaller",
        "Caption of Figure 1",
        "For γ ≥ 1 and p close to 1, the gradient and the loss are smaller than those of cross-entropy.",
        CheckMethod.BALLS,
        "0 < γ ≤ 10¹², p ≥ 1/2",
        _figure_smaller,
        draw_gradient,
    ),
    Claim(
        "004-eq-28",
        "Equation 28",
        "At the maximum of the likelihood, the curvature of focal loss is (1−p)^γ times that of ℓ = −log p.",
        CheckMethod.IDENTITY,
        "p(t) = p0 e^(−t²/2) and p(t) = sigmoid(z + t), p0 = 0.1, 0.5, 0.9, γ from 0.25 to 5",
        _curvature_term,
    ),
    Claim(
        "004-text-curvature",
        "Below Equation 28",
        "A larger γ makes the curvature term smaller.",
        CheckMethod.BALLS,
        "the true factor φ of ∂²ℓ, γ ≥ 0",
        _larger_gamma_flattens,
    ),
    Claim(
        "004-text-entropy-curvature",
        "Section 5",
        "Maximizing entropy is equivalent to regularization that keeps the curvature from growing.",
        CheckMethod.BALLS,
        "predictions: two classes, 2⁻³⁰ ≤ p ≤ 0.499, curvature in the logit; θ: losses cθ²/2 with c = 0.1, 1, 50 and "
        "mean δ = 0.2, 3",
        _entropy_and_curvature,
    ),
    not_checkable(
        "004-conj-1",
        "Conjecture 1",
        "γ controls the curvature and the calibration.",
        "a conjecture about trained networks",
    ),
    not_checkable(
        "004-def-3",
        "Definition 3",
        "f is Lipschitz continuous with constant L if |f(u) − f(v)| < L‖u − v‖ for all u, v.",
        "a definition; < must be ≤, because u = v is allowed",
    ),
    Claim(
        "004-text-lipschitz",
        "Below Definition 3",
        "A small curvature leads to a small Lipschitz constant.",
        CheckMethod.BALLS,
        "cross-entropy of two classes as a function of the logit; search: polynomials of degree 6 with f'(0) = 0",
        _curvature_and_lipschitz,
    ),
    Claim(
        "004-eq-30",
        "Equation 30",
        "The gradient of focal loss is g(p, γ) = (1−p)^γ (γp(1−p)^(γ−1) − (1−p)^γ log p).",
        CheckMethod.IDENTITY,
        "p = 0.1, 0.5, 0.9, γ from 0.25 to 5",
        _gradient_formula,
        draw_gradient,
    ),
    Claim(
        "004-eq-31",
        "Equation 31",
        "As p → 1, the g of Equation 30 tends to 0 for γ = 0 and γ > 1/2, 1/2 for γ = 1/2, and ∞ for 0 < γ < 1/2.",
        CheckMethod.IDENTITY,
        "γ = 0, 0.25, 0.5, 0.75, 2 at 1 − p = 10⁻⁶⁰",
        _printed_limits,
        draw_gradient,
    ),
    Claim(
        "004-eq-32",
        "Equation 32",
        "As γ → 1/2, the g of Equation 30 tends to p/2 − log p + γ log p.",
        CheckMethod.IDENTITY,
        "p = 0.1, 0.5, 0.9",
        _limit_in_gamma,
    ),
    Claim(
        "004-text-gamma-half",
        "Below Equation 32",
        "γ > 1/2 is desirable, because the gradient diverges as p → 1 for 0 < γ < 1/2.",
        CheckMethod.BALLS,
        "all γ > 0, p → 1",
        _gamma_above_half,
        draw_gradient,
    ),
    Claim(
        "004-eq-33",
        "Section 4.3, below Equation 33",
        "The mean of v'Hv over random v with E vv' = I approximates the trace of H.",
        CheckMethod.MONTE_CARLO,
        "a symmetric 8 × 8 matrix, normal v, 200 means of 5,000, seed 0; error probability 10⁻⁶",
        _hutchinson,
    ),
    not_checkable(
        "004-experiments",
        "Section 4, Figures 2 to 4",
        "The largest eigenvalue of the Hessian falls as γ grows, and a lower curvature comes with a lower ECE.",
        ABOUT_NETWORKS,
    ),
)
