"""Slow, obvious oracles: the textbook formulas in mpmath, or in plain float64 loops."""

from __future__ import annotations

from typing import Any

import mpmath as mp
import numpy as np


def mp_log_posterior(
    logits: Any, *, gamma: Any, temperature: float = 1.0, weight: Any = None, detached: bool = False
) -> list[mp.mpf]:
    """log Psi of one row of logits, from Eqs. 11-13 of 001 in 60 digits, -inf for masked classes.

    q = 1 - p is summed over the other classes and log p = log1p(-q) where q is small, so 60 digits suffice
    however far apart the logits are.
    """
    with mp.workdps(60):
        largest = max(logits)
        scores = [mp.exp((mp.mpf(float(z)) - mp.mpf(float(largest))) / mp.mpf(temperature)) for z in logits]
        total = mp.fsum(scores)
        prefix, suffix = [mp.mpf(0)], [mp.mpf(0)]
        for score in scores:
            prefix.append(prefix[-1] + score)
        for score in reversed(scores):
            suffix.append(suffix[-1] + score)
        gammas = np.broadcast_to(np.asarray(gamma, dtype=float), len(scores))
        logs = []
        for i, score in enumerate(scores):
            p = score / total
            q = (prefix[i] + suffix[len(scores) - 1 - i]) / total
            if p == 0:
                logs.append(-mp.inf)
                continue
            if q == 0:
                logs.append(mp.inf)
                continue
            g = mp.mpf(float(gammas[i]))
            log_p = mp.log1p(-q) if q < mp.mpf("1e-10") else mp.log(p)
            log_h = log_p - g * mp.log(q)
            if not detached:
                log_h -= mp.log(1 - g * p * log_p / q)
            if weight is not None:
                log_h -= mp.log(mp.mpf(float(weight[i])))
            logs.append(log_h)
        if mp.inf in logs:
            return [mp.mpf(0) if value == mp.inf else -mp.inf for value in logs]
        top = max(logs)
        normaliser = top + mp.log(mp.fsum(mp.exp(value - top) for value in logs if value != -mp.inf))
        return [value - normaliser for value in logs]


def relative_errors(log_probs: Any, reference: list[mp.mpf]) -> np.ndarray:
    """|Psi / reference - 1| of each class, from log-probabilities; 0 for classes whose reference is below 1e-290."""
    floor = mp.log(mp.mpf("1e-290"))
    errors = [
        0.0 if exact < floor else float(abs(mp.expm1(mp.mpf(float(value)) - exact)))
        for value, exact in zip(log_probs, reference, strict=True)
    ]
    return np.array(errors)
