"""Focal loss of boosted scores with its first and second derivatives, in NumPy.

Write p for the probability of the true class, q = 1 - p and s = -p log(p) / q. The derivatives of the loss
-q^gamma log p in the scores need two factors of the true class only:

    phi  = q^gamma (1 + gamma s),
    bend = gamma q^(gamma + 1) (2 + log p + (gamma - 1) s).

With the softmax P of all classes and v = P minus the one-hot label, the gradient is phi v, and the Hessian is

    phi (diag(P) - P P^T) + p bend (v / q) (v / q)^T.

The first matrix is phi times that of cross-entropy. The second is negative for hard samples, where bend < 0: focal
loss is not convex in the scores. Boosting divides by sums of second derivatives, which must be positive, so the second
matrix is left out there. The result is continuous in the scores, exact where bend >= 0, never smaller than the exact
Hessian, and no Newton step is longer than that of cross-entropy at the same scores.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refocal.maps.focal import focal_partial_unchecked
from refocal.maps.simplex import log_p_and_q_from_odds

_EXP_LIMIT = 700.0  # s is 1 to the last digit long before exp overflows


class Derivatives(NamedTuple):
    """Gradient and diagonal of the Hessian, one entry for each score."""

    gradient: np.ndarray
    hessian: np.ndarray


class TrueClass(NamedTuple):
    """What the derivatives need from the true class, one value per sample."""

    p: np.ndarray
    q: np.ndarray
    phi: np.ndarray
    bend: np.ndarray  # 0 where the exact one is negative

    @classmethod
    def at(cls, log_odds_against: np.ndarray, *, gamma: float) -> TrueClass:
        """Compute the factors from log(q / p)."""
        log_p, log_q = log_p_and_q_from_odds(log_odds_against, xp=np)
        s = -log_p * np.exp(np.minimum(-log_odds_against, _EXP_LIMIT))
        bend = gamma * np.exp((gamma + 1) * log_q) * np.maximum(2 + log_p + (gamma - 1) * s, 0)
        return cls(np.exp(log_p), np.exp(log_q), np.exp(gamma * log_q) * (1 + gamma * s), bend)


def binary_losses(scores: np.ndarray, positive: np.ndarray, *, gamma: float) -> np.ndarray:
    """Focal losses of scores (N,) for labels (N,) of booleans, not yet weighted."""
    return _losses(np.where(positive, -scores, scores), gamma=gamma)


def binary_derivatives(scores: np.ndarray, positive: np.ndarray, *, gamma: float) -> Derivatives:
    """Derivatives of `binary_losses`, shape (N,)."""
    p, q, phi, bend = TrueClass.at(np.where(positive, -scores, scores), gamma=gamma)
    pull = q * phi
    return Derivatives(np.where(positive, -pull, pull), p * (pull + bend))


def multiclass_losses(scores: np.ndarray, labels: np.ndarray, *, gamma: float) -> np.ndarray:
    """Focal losses of scores (N, K) for labels (N,) of class indices, not yet weighted."""
    against, _ = _split(scores, labels)
    return _losses(against, gamma=gamma)


def multiclass_derivatives(scores: np.ndarray, labels: np.ndarray, *, gamma: float) -> Derivatives:
    """Derivatives of `multiclass_losses`, shape (N, K)."""
    against, shares = _split(scores, labels)
    true = TrueClass.at(against, gamma=gamma)
    p, q, phi, bend = (factor[:, None] for factor in true)
    pull = q * phi
    gradient = pull * shares
    hessian = shares * (pull * (p + q * (1 - shares)) + p * bend * shares)
    rows = np.arange(len(labels))
    gradient[rows, labels] = -pull[:, 0]
    hessian[rows, labels] = (p * (pull + bend))[:, 0]
    return Derivatives(gradient, hessian)


def row_derivatives(scores: np.ndarray, label: int, *, gamma: float) -> Derivatives:
    """Gradient (K,) and the whole positive semidefinite Hessian (K, K) of one sample with scores (K,)."""
    against, shares = _split(scores[None], np.array([label]))
    p, q, phi, bend = (factor[0] for factor in TrueClass.at(against, gamma=gamma))
    residual = shares[0]  # the softmax minus the one-hot label, divided by q
    probs = q * residual
    probs[label], residual[label] = p, -1.0
    # diag(P) - P P^T, with each diagonal entry as a sum over the other classes: nothing cancels if some P is near 1
    pairs = np.outer(probs, probs)
    np.fill_diagonal(pairs, 0)
    cross_entropy = np.diag(pairs.sum(axis=0)) - pairs
    return Derivatives(q * phi * residual, phi * cross_entropy + p * bend * np.outer(residual, residual))


def _losses(log_odds_against: np.ndarray, *, gamma: float) -> np.ndarray:
    return focal_partial_unchecked(*log_p_and_q_from_odds(log_odds_against, xp=np), gamma=gamma, xp=np)


def _split(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds against the true class (N,), and the shares of the other classes in q (N, K), 0 for the true class."""
    rows = np.arange(len(labels))
    others = scores.copy()
    others[rows, labels] = -np.inf
    top = others.max(axis=1, keepdims=True)
    odds = np.exp(others - top)
    total = odds.sum(axis=1, keepdims=True)
    return np.log(total[:, 0]) + (top[:, 0] - scores[rows, labels]), odds / total
