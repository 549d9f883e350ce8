"""Focal loss of the softmax in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from refocal import _check
from refocal._arrays import ClassWeights, PerClass
from refocal.jax.inputs import read_gamma, read_softmax_examples, read_weight
from refocal.maps.focal import focal_partial_unchecked
from refocal.maps.simplex import (
    guard_impossible,
    log_odds_against,
    log_p_and_q,
    log_p_and_q_from_odds,
    split_logits,
)


def focal_loss(
    logits: jax.Array,
    labels: jax.Array,
    *,
    gamma: PerClass,
    weight: ClassWeights = None,
    label_smoothing: float = 0.0,
    where: jax.Array | None = None,
) -> jax.Array:
    """Focal loss of each example: cross-entropy that counts examples less the better they are classified.

    The loss is sum_c t_c w_c (1 - p_c)^gamma (-log p_c) with p = softmax(logits). At gamma = 0 it equals
    `optax.softmax_cross_entropy`. The softmax of a network trained with it is not p(y|x):
    `refocal.posterior_from_logits(logits, gamma=gamma)` is.

    Args:
        logits: Scores (..., K). A class masked with -inf has probability 0.
        labels: Class indices (...), or class probabilities t (..., K).
        gamma: Focusing parameter >= 0: a number, or one value per class. It may be traced, so that a schedule needs no
            new compilation.
        weight: Class weights w (K,). A mean of the losses does not divide by them.
        label_smoothing: Share of the uniform distribution that is mixed into t, in [0, 1].
        where: Mask (...) of the examples that count. The others have loss 0 and gradient 0, whatever their logits and
            labels are. For an ignored label, pass `where=labels != -1`; then `jnp.mean(losses, where=labels != -1)`.

    Returns:
        Losses (...). 16-bit input is computed in float32. A row with NaN, +inf or no possible class has loss NaN, and
        so has an index outside the classes under `jit` (elsewhere on a CPU it raises).

    Example:
        >>> losses = focal_loss(jnp.array([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), jnp.array([0, 2]), gamma=2.0)
        >>> [round(loss, 4) for loss in losses.tolist()]
        [0.0109, 0.9635]

    Reference: Charoenphakdee et al. (2021), Eq. 5.
    """
    label_smoothing = _check.label_smoothing(label_smoothing, allow_one=True)
    examples = read_softmax_examples(logits, labels, where, soft=True)
    rows, targets = examples.logits, examples.labels
    exponent, weights = read_gamma(gamma, rows), read_weight(weight, rows)
    if examples.has_indices and not label_smoothing:
        losses = _focal_loss_of_indices(rows, targets, exponent, weights)
    else:
        target = jax.nn.one_hot(targets, rows.shape[-1], dtype=rows.dtype) if examples.has_indices else targets
        if label_smoothing:
            target = (1 - label_smoothing) * target + label_smoothing / rows.shape[-1]
        losses = _focal_loss_of_distributions(rows, target, exponent, weights)
    return examples.finish(losses)


def _focal_loss_of_indices(rows: jax.Array, labels: jax.Array, gamma: Any, weights: jax.Array | None) -> jax.Array:
    log_p, log_q = log_p_and_q_from_odds(log_odds_against(rows, labels, xp=jnp), xp=jnp)
    if isinstance(gamma, jax.Array) and gamma.ndim:
        gamma = gamma[labels]
    losses = focal_partial_unchecked(log_p, log_q, gamma=gamma, xp=jnp)
    return losses if weights is None else weights[labels] * losses


def _focal_loss_of_distributions(
    rows: jax.Array, target: jax.Array, gamma: Any, weights: jax.Array | None
) -> jax.Array:
    log_p, log_q = log_p_and_q(split_logits(rows, temperature=1.0, xp=jnp), xp=jnp)
    target = target if weights is None else target * weights
    log_p, log_q = guard_impossible(log_p, log_q, target, xp=jnp)
    return jnp.sum(target * focal_partial_unchecked(log_p, log_q, gamma=gamma, xp=jnp), axis=-1)
