"""Calibrators compared, and mixed, by their predictions of rows that they were not fitted to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from refocal.calibrators.fit.logistic import fit_mixture, fit_square_mixture

Fold = tuple[np.ndarray, np.ndarray]  # the rows to fit to, and the rows that are held out

_LEAST_WEIGHT = 0.01  # candidates with less weight are left out of a mixture
_LEAST_LOG = -700.0  # a probability of 0 for the true class counts as e^-700, so that means stay comparable


class HeldOut(NamedTuple):
    """Predictions of held-out rows, fold after fold.

    Attributes:
        scores: The score of each row (n,), the lower the better.
        likelihoods: The probability of the label of each row (n,).
        labels: The label of each row (n,).
        errors: Probabilities minus the one-hot labels, (n, K) in float32; None if the score is the NLL.
    """

    scores: np.ndarray
    likelihoods: np.ndarray
    labels: np.ndarray
    errors: np.ndarray | None

    def take(self, rows: np.ndarray) -> HeldOut:
        """Some of the rows."""
        errors = None if self.errors is None else self.errors[rows]
        return HeldOut(self.scores[rows], self.likelihoods[rows], self.labels[rows], errors)

    @classmethod
    def collect(
        cls, predictions: Iterable[np.ndarray], folds: Sequence[Fold], labels: np.ndarray, scoring: str
    ) -> HeldOut:
        """Collect log-probabilities (n, K) of the held-out rows of each fold."""
        logs, errors = [], []
        for log_probs, (_, held) in zip(predictions, folds, strict=True):
            at_label = np.arange(len(held)), labels[held]
            logs.append(np.maximum(log_probs[at_label].astype(np.float64), _LEAST_LOG))
            if scoring == "brier":
                probs = np.exp(log_probs)
                probs[at_label] -= 1
                errors.append(probs.astype(np.float32))
        own = np.concatenate(logs)
        true = np.concatenate([labels[held] for _, held in folds])
        if scoring == "nll":
            return cls(-own, np.exp(own), true, None)
        joined = np.concatenate(errors)
        return cls(np.einsum("ij,ij->i", joined, joined, dtype=np.float64), np.exp(own), true, joined)


def compare(scores: np.ndarray, counts: np.ndarray, parameters: np.ndarray) -> list[dict[str, Any]]:
    """Compare candidates by their mean scores, the best first, and mark the one of the one-standard-error rule.

    Args:
        scores: The score of each candidate on each row, (candidates, n), the lower the better.
        counts: Weights of the rows (n,); a weight of 2 counts as two equal samples.
        parameters: The effective number of parameters of each candidate.
    """
    samples = counts.sum()
    share = counts / samples
    means = scores @ share
    away = scores - scores[np.argmin(means)]
    behind = away @ share
    errors = np.sqrt((away - behind[:, None]) ** 2 @ share / max(1.0, samples - 1))
    eligible = np.flatnonzero(behind <= errors)
    chosen = min(eligible, key=lambda index: (parameters[index], means[index]))
    return [
        {
            "index": int(index),
            "score": float(means[index]),
            "behind": float(behind[index]),
            "error": float(errors[index]),
            "p_value": _p_value(float(behind[index]), float(errors[index])),
            "chosen": bool(index == chosen),
        }
        for index in np.argsort(means, kind="stable")
    ]


def _p_value(behind: float, error: float) -> float:
    """The one-sided p-value of a mean difference, by the central limit theorem; 1 without a difference."""
    return 1.0 if behind == 0 else math.erfc(behind / max(error, 1e-300) / math.sqrt(2)) / 2


def mix(
    candidates: Sequence[HeldOut], share: np.ndarray, classes: int, *, scoring: str, least_uniform: float
) -> tuple[np.ndarray, float]:
    """Find the mixture of candidates and the uniform distribution with the best mean score.

    Args:
        candidates: Their predictions.
        share: Weights of the rows (n,), summing to 1.
        classes: K.
        scoring: "nll" or "brier".
        least_uniform: The least share of the uniform distribution; 0 to leave it out.

    Returns:
        The weights of the candidates, summing to 1, and the share of the uniform distribution. Candidates with a weight
        below 1 % are left out, unless no candidate has more: then those with less than half of the largest are.
    """
    parts = list(candidates)
    if least_uniform:
        parts.append(_make_uniform(candidates[0], classes))
    weights = _fit_weights(parts, share, scoring)
    # The heaviest candidates stay even if their weights are small: many may share the weight, or nothing may beat the
    # uniform distribution, which always stays.
    least = min(_LEAST_WEIGHT, weights[: len(candidates)].max() / 2)
    members = np.flatnonzero((weights >= least) | (np.arange(len(parts)) == len(candidates)))
    fitted = np.zeros(len(candidates) + 1)
    fitted[members] = _fit_weights([parts[index] for index in members], share, scoring)
    uniform = max(least_uniform, float(fitted[-1]))
    shares = fitted[:-1] if fitted[:-1].sum() > 0 else np.eye(len(candidates))[members[0]]
    return shares / shares.sum(), min(uniform, 1.0)


def mix_held_out(
    candidates: Sequence[HeldOut],
    share: np.ndarray,
    classes: int,
    sizes: Sequence[int],
    *,
    scoring: str,
    least_uniform: float,
) -> HeldOut:
    """Predict the rows of each fold by a mixture whose weights are fitted to the rows of the other folds.

    Args:
        candidates: Their predictions.
        share: Weights of the rows (n,), summing to 1.
        classes: K.
        sizes: The number of rows of each fold; a single fold is divided into two.
        scoring: "nll" or "brier".
        least_uniform: The least share of the uniform distribution; 0 to leave it out.
    """
    if len(sizes) == 1:
        sizes = [sizes[0] // 2, sizes[0] - sizes[0] // 2]
    fold = np.repeat(np.arange(len(sizes)), sizes)
    parts = []
    for number in range(len(sizes)):
        own = fold == number
        others = ~own if share[~own].sum() > 0 else own  # a single row has no others
        if not own.any():
            continue
        fitted = [candidate.take(others) for candidate in candidates]
        total = share[others].sum()
        shares, uniform = mix(fitted, share[others] / total, classes, scoring=scoring, least_uniform=least_uniform)
        parts.append(_blend([candidate.take(own) for candidate in candidates], shares, uniform, classes))
    errors = None if parts[0].errors is None else np.concatenate([part.errors for part in parts])
    return HeldOut(
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.likelihoods for part in parts]),
        np.concatenate([part.labels for part in parts]),
        errors,
    )


def _blend(candidates: Sequence[HeldOut], shares: np.ndarray, uniform: float, classes: int) -> HeldOut:
    """Predictions of a mixture: `shares` of the candidates sum to 1, and `uniform` is the rest of the whole."""
    parts = [*candidates, _make_uniform(candidates[0], classes)]
    weights = np.append((1 - uniform) * shares, uniform)
    likelihoods = np.stack([part.likelihoods for part in parts], axis=1) @ weights
    errors: Any = None
    for weight, part in zip(weights, parts, strict=True):
        if part.errors is None:
            return HeldOut(-np.log(np.maximum(likelihoods, math.exp(_LEAST_LOG))), likelihoods, part.labels, None)
        errors = np.float32(weight) * part.errors + (0 if errors is None else errors)
    return HeldOut(np.einsum("ij,ij->i", errors, errors, dtype=np.float64), likelihoods, parts[0].labels, errors)


def _make_uniform(like: HeldOut, classes: int) -> HeldOut:
    """Predictions of the uniform distribution of the rows of another candidate."""
    rows = len(like.scores)
    likelihoods = np.full(rows, 1 / classes)
    if like.errors is None:
        return HeldOut(-np.log(likelihoods), likelihoods, like.labels, None)
    errors = np.full((rows, classes), 1 / classes, np.float32)
    errors[np.arange(rows), like.labels] -= 1
    return HeldOut(np.full(rows, 1 - 1 / classes), likelihoods, like.labels, errors)


def _fit_weights(parts: Sequence[HeldOut], share: np.ndarray, scoring: str) -> np.ndarray:
    if scoring == "nll":
        return fit_mixture(np.stack([part.likelihoods for part in parts], axis=1), share)
    errors: list[Any] = [part.errors for part in parts]
    products = np.array([[np.einsum("ij,ij,i->", a, b, share, optimize=True) for b in errors] for a in errors])
    return fit_square_mixture(products)
