"""Claims of Charoenphakdee et al. (2021) about the map Psi."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import mpmath as mp
import numpy as np

from refocal.maps.minimizer import minimizer
from refocal.maps.posterior import posterior
from refocal_lab.claims import lemmas
from refocal_lab.claims.claim import CheckMethod, Claim, Finding, Outcome, settle
from refocal_lab.claims.identities import check_identity, mp_loss, mp_posterior
from refocal_lab.claims.sampling import search, simplex_rows

GAMMAS = ("0.01", "0.5", "1", "2", "3", "5", "20")
_ROWS = (("0.5", "0.3", "0.2"), ("0.34", "0.33", "0.33"), ("0.9", "0.07", "0.03"), ("0.6", "0.3999", "0.0001"))
_SIZES = (2, 3, 10, 40)
_SEARCH_GAMMAS = (0.05, 0.5, 2.0, 10.0)


def search_sizes(violation: Callable[..., np.ndarray], *, budget: int = 20_000) -> Outcome:
    """Search vectors of 2 to 40 classes for a violation at several gammas."""
    for classes in _SIZES:
        for gamma in _SEARCH_GAMMAS:
            found = search(partial(violation, gamma=gamma), partial(simplex_rows, classes=classes), budget=budget)
            if not found.holds:
                return found
    total = budget * len(_SIZES) * len(_SEARCH_GAMMAS)
    return Outcome(True, f"no violation among {total:,} vectors of {_SIZES[0]} to {_SIZES[-1]} classes, seed 0")


def _order_violation(rows: np.ndarray, gamma: float) -> np.ndarray:
    """By how much Psi reverses two neighbors of a descending row."""
    return np.max(np.diff(posterior(rows, gamma=gamma), axis=1), axis=1)


def _is_stationary() -> Outcome:
    """For eta = Psi(q) the risk is stationary at q on the simplex: eta_i l'(q_i) is the same for all i."""

    def multiplier(g: mp.mpf, row: int, i: int) -> mp.mpf:
        q = [mp.mpf(v) for v in _ROWS[row]]
        return mp_posterior(q, g)[i] * mp.diff(lambda p: mp_loss(p, g), q[i])

    points = [(g, row, i) for g in GAMMAS for row in range(len(_ROWS)) for i in (1, 2)]
    return check_identity(multiplier, lambda g, row, _: multiplier(g, row, 0), points, tolerance="1e-15")


def _recovers() -> Finding:
    return settle(_is_stationary().prefix("η_i ℓ'(q_i) is the same for all i") & lemmas.loss_is_convex())


def _only_map() -> Finding:
    """A map that recovers every posterior must send q to Psi(q), because q minimizes the risk of Psi(q) and no other.

    The risk is convex, so q is its minimizer if and only if eta_i l'(q_i) is the same for all i. This determines eta up
    to its sum: eta_i is proportional to -1 / l'(q_i) = h(q_i).
    """

    def lost(rows: np.ndarray, gamma: float) -> np.ndarray:
        found = minimizer(posterior(rows, gamma=gamma), gamma=gamma)
        return np.max(np.abs(found - rows), axis=1) - 1e-9

    stationary = _is_stationary()
    return settle(
        lemmas.loss_is_convex().prefix("the risk is convex, so stationary points are its minimizers")
        & stationary.reword(f"q is stationary for η = Ψ(q), and η ∝ −1/ℓ'(q) is determined by q: {stationary.words}")
        & search_sizes(lost, budget=500).prefix("the minimizer of the risk of Ψ(q) is q")
    )


def _keeps_decision() -> Finding:
    return settle(
        lemmas.loss_is_convex().reword("h increases strictly on (0, 1) (see 001-thm-3)")
        & search_sizes(_order_violation)
    )


CLAIMS = (
    Claim(
        "001-thm-11",
        "Theorem 11",
        "η = Ψ(q): the map Ψ_i = h(q_i) / Σ h(q_l) with h = p/φ(p) recovers the posterior from the minimizer.",
        CheckMethod.IDENTITY,
        "four vectors of three classes, γ from 0.01 to 20; convexity for all γ ≥ 0",
        _recovers,
    ),
    Claim(
        "001-text-only-map",
        "Section 6.2",
        "Ψ is the only map that recovers the posterior from the minimizer.",
        CheckMethod.BALLS,
        "scores without zeros, all γ ≥ 0; stationarity: four vectors; search: 2 to 40 classes, γ from 0.05 to 10",
        _only_map,
    ),
    Claim(
        "001-prop-12",
        "Proposition 12",
        "Ψ keeps the arg max for every γ ≥ 0.",
        CheckMethod.BALLS,
        "γ ≥ 0, any number of classes; search: 2 to 40 classes, γ from 0.05 to 10",
        _keeps_decision,
    ),
)
