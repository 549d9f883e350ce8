"""Claims of Kimura and Naganuma (2024), from Lemma 1 to Theorem 2."""

from __future__ import annotations

from typing import Any

import mpmath as mp
import numpy as np
from flint import arb

from refocal_lab.claims.balls import decide, decimal, expm1_ratio, format_ball, prove
from refocal_lab.claims.claim import DEFINITION, CheckMethod, Claim, Finding, Outcome, not_checkable, settle
from refocal_lab.claims.identities import check_identity, is_cross_entropy
from refocal_lab.claims.mukhoti2020_entropy import entropy_bound
from refocal_lab.claims.sampling import check_at_least, search

_LOSSES = ("0.1", "0.5", "2")  # the cross-entropies of the three parameters of a finite Theta


def _bernoulli() -> Finding:
    """(1-p)^gamma - 1 + gamma p is 0 at p = 0 and has slope gamma (1 - e^-x) with x = (1 - gamma) log(1 - p)."""
    inside = prove(expm1_ratio, [(-64.0, 64.0)])
    half = decimal("0.5")
    gap = half.sqrt() - (1 - half / 2)
    return settle(
        decide(gap, "", "γ = 1/2, p = 1/2: (1−p)^γ = 0.7071 is below 1 − γp = 0.75"),
        inside=inside.prefix("the slope of (1−p)^γ − 1 + γp has the sign of γ − 1"),
        where="for γ ≥ 1 and γ = 0",
    )


def _lemma_1() -> Finding:
    def deficit(rows: np.ndarray) -> np.ndarray:
        p, q, gamma = rows[:, :3], rows[:, 3:6], rows[:, 6:]
        focal = np.sum(q * (1 - p) ** gamma * -np.log(p), axis=1)
        return np.sum(-q * np.log(p) - gamma * -p * np.log(p), axis=1) - focal

    def candidates(rng: np.random.Generator, count: int) -> np.ndarray:
        p = np.maximum(rng.dirichlet(np.full(3, 0.5), count), 1e-12)
        gamma = 10 ** rng.uniform(-3, 1, (count, 1))
        return np.hstack([p / p.sum(axis=1, keepdims=True), rng.dirichlet(np.full(3, 0.2), count), gamma])

    proof = "the bound holds even though Bernoulli's inequality fails for 0 < γ < 1: "
    bound = entropy_bound()
    return settle(bound._replace(words=proof + bound.words) & search(deficit, candidates, budget=200_000))


def _gibbs(beta: Any) -> list[Any]:
    weights = [mp.exp(-beta * mp.mpf(loss)) for loss in _LOSSES]
    return [weight / mp.fsum(weights) for weight in weights]


def _mean_loss(beta: Any) -> Any:
    return mp.fsum(p * mp.mpf(loss) for p, loss in zip(_gibbs(beta), _LOSSES, strict=True))


def _maximum_entropy() -> Finding:
    """For any p with the same mean loss, H(gibbs) - H(p) = KL(p || gibbs) >= 0."""

    def entropy(p: list[Any]) -> Any:
        return -mp.fsum(v * mp.log(v) for v in p)

    def others(beta: Any, step: Any) -> list[Any]:
        # (l2 - l3, l3 - l1, l1 - l2) changes neither the sum nor the mean loss
        l1, l2, l3 = map(mp.mpf, _LOSSES)
        return [v + step * d for v, d in zip(_gibbs(beta), (l2 - l3, l3 - l1, l1 - l2), strict=True)]

    def divergence(beta: Any, step: Any) -> Any:
        return mp.fsum(v * mp.log(v / g) for v, g in zip(others(beta, step), _gibbs(beta), strict=True))

    points = [(beta, step) for beta in ("-1", "0.5", "2") for step in ("-0.03", "0.01", "0.04")]
    found = check_identity(lambda b, t: entropy(_gibbs(b)) - entropy(others(b, t)), divergence, points)
    return settle(found.prefix("H(p̃) − H(p) = KL(p‖p̃), which is positive unless p = p̃"))


def _chain_rule() -> Finding:
    """Two parameters, under which the label has entropies log(2) and 0; theta is the first one with probability w.

    Then H(y | theta) = w log 2, and H(theta) is largest at w = 1/2.
    """
    half, tenth = decimal("0.5"), decimal("0.1")

    def entropy(w: arb) -> arb:
        return -w * w.log() - (1 - w) * (1 - w).log()

    falls = (entropy(half) - entropy(tenth)).min(half * decimal("2").log() - tenth * decimal("2").log())
    words = (
        "two parameters, one with predictions (1/2, 1/2) and one with (1, 0): if the first has probability 0.1 instead "
        f"of 0.5, H(θ) falls from {format_ball(entropy(half), 3)} to {format_ball(entropy(tenth), 3)}, and H(y | x; θ) "
        "falls too, from 0.347 to 0.0693; H(y, θ | x) is not constant. Theorem 1 then maximizes H(θ), the opposite"
    )
    return settle(decide(falls, words, "no counterexample").as_counterexample())


def _stationary() -> Finding:
    """The derivative of -p log p - beta L p - eta p with respect to p, at the printed and at the corrected p."""

    def slope(beta: Any, loss: Any, eta: Any, *, printed: bool) -> Any:
        p = mp.exp(beta * loss - eta + 1) if printed else mp.exp(-beta * loss - eta - 1)
        return mp.diff(lambda v: -v * mp.log(v) - beta * loss * v - eta * v, p)

    points = [("1", "0.5", "0.2"), ("2", "1", "0")]
    as_printed = check_identity(lambda *a: slope(*a, printed=True), lambda *_: mp.mpf(0), points, tolerance="1e-12")
    mended = check_identity(lambda *a: slope(*a, printed=False), lambda *_: mp.mpf(0), points, tolerance="1e-12")
    words = "log p = −βL − η − 1, so α = e^(−1−η) in Eq. 14"
    return settle(
        as_printed.prefix("with log p = βL − η + 1 the derivative is not 0"),
        corrected=mended._replace(words=f"{words}: the derivative vanishes at {len(points)} points"),
    )


def _constraint() -> Finding:
    """Compare the mean of L under the Gibbs distribution with the product and the quotient of the two integrals."""

    def integrals(beta: Any) -> tuple[Any, Any]:
        weights = [mp.exp(-beta * mp.mpf(loss)) for loss in _LOSSES]
        return mp.fsum(weights), mp.fsum(w * mp.mpf(loss) for w, loss in zip(weights, _LOSSES, strict=True))

    points = [("0.5",), ("1",)]
    printed = check_identity(lambda b: integrals(b)[0] * integrals(b)[1], _mean_loss, points)
    corrected = check_identity(lambda b: integrals(b)[1] / integrals(b)[0], _mean_loss, points)
    return settle(
        printed._replace(words=f"L = {', '.join(_LOSSES)}: the product is not the mean, β {printed.words}"),
        corrected=corrected.prefix("∫L e^(−βL) / ∫e^(−βL) = δ, as in Eqs. 8 and 9"),
    )


def _limits() -> Finding:
    with mp.workdps(30):
        low, high = _mean_loss(mp.mpf(200)), _mean_loss(mp.mpf(-200))
        falls = all(_mean_loss(mp.mpf(b)) > _mean_loss(mp.mpf(b) + 1) for b in range(-20, 20))
    reaches = (
        f"L = {', '.join(_LOSSES)}: the mean falls from {mp.nstr(high, 4)} at β = −200 to {mp.nstr(low, 4)} at β = 200"
    )
    printed = Outcome(bool(low < 0.05 and high > 100), f"{reaches}; there is no solution for δ outside of [0.1, 2]")
    inside = Outcome(
        bool(falls) and bool(low - mp.mpf("0.1") < 1e-9) and bool(mp.mpf(2) - high < 1e-9),
        "the mean falls through all values in between",
    )
    return settle(printed, inside=inside, where="for inf L < δ < sup L, which are 0 and ∞ only if L attains them")


def bound_frequency(*, trials: int, seed: int = 0, samples: int = 50, epsilon: float = 0.05, rate: float = 1.0) -> int:
    """Count how often the PAC-Bayes bound of Corollary 1 holds for all posteriors at once.

    There are three parameters with error rates R = 0.1, 0.3, 0.5 and prior proportional to e^-2R. By Donsker and
    Varadhan's formula, the bound holds for every posterior if and only if
    log E_prior exp(n lambda ((1 - lambda/2) R - R_n)) <= log(2 sqrt(n) / eps).

    Args:
        trials: Number of trials.
        seed: Seed of the random numbers.
        samples: Number of samples n per trial.
        epsilon: Probability with which the bound may fail.
        rate: Lambda.
    """
    rates = np.array([0.1, 0.3, 0.5])
    prior = np.exp(-2 * rates) / np.exp(-2 * rates).sum()
    errors = np.random.default_rng(seed).binomial(samples, rates, (trials, 3)) / samples
    exponent = samples * rate * ((1 - rate / 2) * rates - errors)
    return int(np.sum(np.log(np.exp(exponent) @ prior) <= np.log(2 * np.sqrt(samples) / epsilon)))


def _pac_bayes() -> Finding:
    trials, epsilon = 20_000, 0.05
    held = bound_frequency(trials=trials, epsilon=epsilon)
    corrected = check_at_least(held, trials, 1 - epsilon, error=1e-9)
    printed = check_at_least(trials - held, trials, 1 - epsilon, error=1e-9)
    return settle(
        printed._replace(words=f"ε = 0.05: the bound fails in {printed.words}, but ≤ ε requires 0.95"),
        corrected=corrected._replace(
            words=f"P[…] ≥ 1 − ε for 0 < λ < 2; with ε = 0.05 the bound holds in {corrected.words}"
        ),
    )


def _gibbs_posterior() -> Finding:
    """F(post) - F(gibbs) = KL(post || gibbs) / (n lambda (1 - lambda/2)) on a finite Theta."""
    prior, risks, n = (mp.mpf("0.5"), mp.mpf("0.3"), mp.mpf("0.2")), (mp.mpf("0.1"), mp.mpf("0.3"), mp.mpf("0.4")), 20

    def gibbs(rate: Any) -> list[Any]:
        weights = [p * mp.exp(-rate * n * r) for p, r in zip(prior, risks, strict=True)]
        return [w / mp.fsum(weights) for w in weights]

    def bound(post: list[Any], rate: Any) -> Any:
        mean = mp.fsum(v * r for v, r in zip(post, risks, strict=True))
        kl = mp.fsum(v * mp.log(v / p) for v, p in zip(post, prior, strict=True))
        return mean / (1 - rate / 2) + kl / (n * rate * (1 - rate / 2))

    def post(a: Any) -> list[Any]:
        return [a, (1 - a) / 3, 2 * (1 - a) / 3]

    def excess(a: Any, rate: Any) -> Any:
        kl = mp.fsum(v * mp.log(v / g) for v, g in zip(post(a), gibbs(rate), strict=True))
        return kl / (n * rate * (1 - rate / 2))

    points = [(a, rate) for a in ("0.1", "0.5", "0.8") for rate in ("0.3", "1", "1.7")]
    found = check_identity(lambda a, rate: bound(post(a), rate) - bound(gibbs(rate), rate), excess, points)
    return settle(found.prefix("the bound exceeds that at ς_λ by a KL divergence"))


def _best_rate() -> Finding:
    """The derivative of R / (1 - lambda/2) + C / (n lambda (1 - lambda/2)) with respect to lambda."""

    def slope(risk: Any, cost: Any, n: Any) -> Any:
        rate = 2 / (mp.sqrt(2 * n * risk / cost + 1) + 1)
        return mp.diff(lambda v: risk / (1 - v / 2) + cost / (n * v * (1 - v / 2)), rate)

    points = [("0.1", "3", "100"), ("0.4", "8", "1000"), ("0.01", "20", "50")]
    found = check_identity(slope, lambda *_: mp.mpf(0), points, tolerance="1e-12")
    words = "λ = 2/(√(2nR/C + 1) + 1), C = KL + log(2√n/ε); our text copy has it twice, with different fraction bars"
    return settle(found._replace(words=f"{words}; the derivative is 0: {found.words}"))


def _fisher() -> Finding:
    """Bernoulli distributions: KL(t || t + d) / d^2 tends to half the Fisher information 1 / (t (1 - t))."""

    def kl(t: Any, d: Any) -> Any:
        return t * mp.log(t / (t + d)) + (1 - t) * mp.log((1 - t) / (1 - t - d))

    zero = check_identity(
        lambda t: mp.diff(lambda d: kl(t, d), 0), lambda _: mp.mpf(0), [("0.2",), ("0.5",)], tolerance="1e-12"
    )
    second = check_identity(
        lambda t: mp.diff(lambda d: kl(t, d), 0, 2),
        lambda t: 1 / (t * (1 - t)),
        [("0.2",), ("0.5",)],
        tolerance="1e-12",
    )
    return settle(zero.prefix("the first derivative is 0") & second.prefix("the second is the Fisher information"))


CLAIMS = (
    not_checkable("004-def-1", "Definition 1", "ECE is the mean of |P(correct | confidence s) − s|.", DEFINITION),
    Claim(
        "004-def-2",
        "Definition 2 and the remark below it",
        "Focal loss is −Σ q (1−p)^γ log p, and γ = 0 gives cross-entropy.",
        CheckMethod.IDENTITY,
        "p = 0.1, 0.5, 0.9",
        lambda: settle(is_cross_entropy(0)),
    ),
    Claim(
        "004-lem-1",
        "Lemma 1 and Equation 4",
        "FL ≥ CE − γ H(p) for every γ ≥ 0.",
        CheckMethod.BALLS,
        "all γ ≥ 0, any number of classes; search: three classes, γ from 0.001 to 10",
        _lemma_1,
    ),
    Claim(
        "004-eq-5",
        "Equation 5, first inequality",
        "(1−p)^γ ≥ 1 − γp (Bernoulli) for every γ ≥ 0.",
        CheckMethod.BALLS,
        "0 ≤ p < 1, |γ−1| · |log(1−p)| ≤ 64",
        _bernoulli,
    ),
    Claim(
        "004-thm-1",
        "Theorem 1",
        "Among all distributions of θ with a given mean loss, α e^(−βL) has the largest entropy.",
        CheckMethod.IDENTITY,
        "three parameters with losses 0.1, 0.5 and 2; β = −1, 0.5, 2",
        _maximum_entropy,
    ),
    Claim(
        "004-thm-1-chain",
        "Proof of Theorem 1, first step",
        "Because H(y | x; θ) = H(y, θ | x) − H(θ), maximizing H(y | x; θ) is equal to minimizing H(θ).",
        CheckMethod.BALLS,
        "two parameters, two classes",
        _chain_rule,
    ),
    Claim(
        "004-eq-12",
        "Equations 12 and 14, in the proof of Theorem 1",
        "The stationary point is log p = βL − η + 1, so α = e^(1−η).",
        CheckMethod.IDENTITY,
        "two choices of β, L and η",
        _stationary,
    ),
    Claim(
        "004-eq-15",
        "Equations 15 and 16, in the proof of Theorem 1",
        "The constraint is ∫e^(−βL) · ∫L e^(−βL) = δ.",
        CheckMethod.IDENTITY,
        "three parameters with losses 0.1, 0.5 and 2; β = 0.5 and 1",
        _constraint,
    ),
    Claim(
        "004-eq-17",
        "Equation 17, in the proof of Theorem 1",
        "The mean loss falls with β from ∞ to 0, so β exists for every δ.",
        CheckMethod.IDENTITY,
        "three parameters with losses 0.1, 0.5 and 2",
        _limits,
    ),
    Claim(
        "004-cor-1",
        "Corollary 1 and Equation 18",
        "P[for all ς: E R ≤ E R̂/(1−λ/2) + (KL(ς‖π) + log(2√n/ε))/(nλ(1−λ/2))] ≤ ε.",
        CheckMethod.MONTE_CARLO,
        "three parameters, n = 50, λ = 1, ε = 0.05, 20,000 trials, seed 0; error probability 10⁻⁹",
        _pac_bayes,
    ),
    Claim(
        "004-cor-1-posterior",
        "Corollary 1, minimum for a fixed λ",
        "The bound has its minimum at ς_λ ∝ π e^(−λnR̂).",
        CheckMethod.IDENTITY,
        "three parameters, n = 20, nine choices of ς and λ",
        _gibbs_posterior,
    ),
    Claim(
        "004-eq-19",
        "Corollary 1 and Equation 19",
        "For a fixed ς, the bound has its minimum at λ = 2/(√(2n E R̂/(KL + log(2√n/ε)) + 1) + 1).",
        CheckMethod.IDENTITY,
        "three choices of risk, divergence and n",
        _best_rate,
    ),
    not_checkable(
        "004-cor-2",
        "Corollary 2",
        "Focal loss contains the regularizer KL(ς‖π), where π is the distribution of Theorem 1.",
        "the paper does not define in which sense focal loss contains the regularizer",
    ),
    Claim(
        "004-eq-26",
        "Equations 22 to 26",
        "KL(ς‖π) = ½ Σ g_ij Δξ_i Δξ_j + o(‖Δξ‖²), where g is the Fisher information.",
        CheckMethod.IDENTITY,
        "Bernoulli distributions, two parameters",
        _fisher,
    ),
    not_checkable(
        "004-thm-2",
        "Theorem 2",
        "Learning with focal loss reduces the local sharpness of the likelihood if prior and posterior are close.",
        "a statement about learning with any network; the paper does not define its measure of sharpness",
    ),
)
