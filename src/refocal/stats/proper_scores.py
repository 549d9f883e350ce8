"""Scores of predicted probabilities, one value per sample, in float64."""

from __future__ import annotations

import numpy as np
import scipy


def log_scores(probs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """-log p of the true class, (N,); infinite if p is 0."""
    return -truth_of_probs(probs, labels)[0]


def truth_of_probs(probs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log p and log(1 - p) of the true class, for rows (N, K) or for events with probabilities (N,)."""
    if probs.ndim == 1:
        wide = probs.astype(np.float64)
        p = np.where(labels == 1, wide, 1 - wide)
        q = np.where(labels == 1, 1 - wide, wide)
    else:
        p = probs[np.arange(len(probs)), labels].astype(np.float64)
        q = np.maximum(0.0, 1 - p)
    with np.errstate(divide="ignore"):
        return np.log(p), np.log(q)


def truth_of_logits(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`truth_of_probs` of the softmax of (N, K) or the sigmoid of (N,), without saturation."""
    wide = logits.astype(np.float64)
    if wide.ndim == 1:
        signed = np.where(labels == 1, wide, -wide)
        return scipy.special.log_expit(signed), scipy.special.log_expit(-signed)
    rows = np.arange(len(wide))
    wide -= wide.max(axis=1, keepdims=True)
    own = wide[rows, labels]
    odds = np.exp(wide, out=wide)
    odds[rows, labels] = 0.0
    others = odds.sum(axis=1)
    with np.errstate(divide="ignore"):
        log_total = np.where(own == 0.0, np.log1p(others), np.log(others + np.exp(own)))
        return own - log_total, np.log(others) - log_total


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities in float64: the softmax of rows (N, K), or the sigmoid of events (N,)."""
    wide = logits.astype(np.float64)
    if wide.ndim == 1:
        return scipy.special.expit(wide)
    wide -= wide.max(axis=1, keepdims=True)
    np.exp(wide, out=wide)
    wide /= wide.sum(axis=1, keepdims=True)
    return wide


def softmax_and_scores(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`softmax`, log p of the true class as in `truth_of_logits`, and `brier_scores`, with one exponential."""
    # Classes come first, so that sums and maxima over classes run along whole vectors.
    odds = logits.T.astype(np.float64, order="C")
    flat, true = odds.reshape(-1), true_places(odds, labels)
    odds -= odds.max(axis=0)
    own = flat.take(true)
    np.exp(odds, out=odds)
    own_odds = flat.take(true)
    flat[true] = 0.0
    others, squares = odds.sum(axis=0), np.einsum("ij,ij->j", odds, odds)
    flat[true] = own_odds
    log_p = own - np.log1p(others + (own_odds - 1))  # own_odds is 1 if the true class is on top
    share = 1 / (others + own_odds)
    odds *= share
    # sum_k (p_k - [y = k])^2; for the true class, 1 - p is the share of the others.
    return odds.T, log_p, (squares + others**2) * share**2


def true_places(by_class: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Positions of the true classes in the flattened scores (K, N); one index is much faster than two."""
    return labels * by_class.shape[1] + np.arange(by_class.shape[1])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities of rows (N, K), in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def brier_scores(probs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The sum over k of (p_k - [y = k])^2 for rows (N, K); (p - y)^2 for events (N,)."""
    wide = probs.astype(np.float64)
    if wide.ndim == 1:
        return (wide - labels) ** 2
    p = wide[np.arange(len(wide)), labels]
    wide[np.arange(len(wide)), labels] = 1 - p
    return np.einsum("ij,ij->i", wide, wide)


def divergences(posterior: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """KL(posterior || probs) of each row, (N,)."""
    terms: np.ndarray = scipy.special.rel_entr(posterior.astype(np.float64), probs.astype(np.float64))
    totals: np.ndarray = terms.sum(axis=-1)
    return totals


def divergences_of_logits(posterior: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """KL(posterior || softmax(logits)) of each row, (N,); finite if the logits are."""
    wide = posterior.astype(np.float64)
    possible = wide > 0
    with np.errstate(divide="ignore"):
        log_ratio = np.where(possible, np.log(np.where(possible, wide, 1.0)) - log_softmax(logits), 0.0)
    totals: np.ndarray = (wide * log_ratio).sum(axis=-1)
    return totals
