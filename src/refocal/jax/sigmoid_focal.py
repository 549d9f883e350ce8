"""Focal loss of independent sigmoid outputs in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from refocal._arrays import PerClass
from refocal.jax.inputs import read_alpha, read_gamma, read_sigmoid_examples
from refocal.maps.focal import focal_partial_unchecked
from refocal.maps.simplex import guard_impossible, softplus


def sigmoid_focal_loss(
    logits: jax.Array,
    labels: jax.Array,
    *,
    gamma: PerClass = 2.0,
    alpha: PerClass | None = None,
    where: jax.Array | None = None,
) -> jax.Array:
    """Sigmoid focal loss of each score, for classes that do not exclude each other.

    The loss is t alpha (1-p)^gamma (-log p) + (1-t) (1-alpha) p^gamma (-log(1-p)) with p = sigmoid(logits). For labels
    0 and 1 it equals `optax.sigmoid_focal_loss`, with the same defaults: without alpha, both terms have weight 1. Soft
    labels t enter linearly, so that `refocal.sigmoid_posterior` holds for them too; optax puts them into the focusing
    factor instead.

    Args:
        logits: Scores, any shape.
        labels: 0, 1 or a probability for each score.
        gamma: Focusing parameter >= 0: a number, or one value for each entry of the last axis. It may be traced.
        alpha: Weight of the positives in (0, 1); negatives have weight 1 - alpha. A number, one value for each entry of
            the last axis, or None for no balancing. It may be traced. Lin et al. take 0.25.
        where: Mask of the scores that count, of their shape. The others have loss 0 and gradient 0.

    Returns:
        Losses, of the shape of `logits`. 16-bit input is computed in float32.

    Example:
        >>> losses = sigmoid_focal_loss(jnp.array([0.0, 2.0]), jnp.array([1, 0]), alpha=0.25)
        >>> [round(loss, 4) for loss in losses.tolist()]
        [0.0433, 1.2376]

    Reference: Lin et al., Focal Loss for Dense Object Detection (2017), Eq. 5.
    """
    examples = read_sigmoid_examples(logits, labels, where)
    scores, t = examples.logits, examples.labels
    exponent, balance = read_gamma(gamma, scores), read_alpha(alpha, scores)
    log_p, log_q = -softplus(-scores, xp=jnp), -softplus(scores, xp=jnp)
    of_positive, of_negative = (t, 1 - t) if balance is None else (balance * t, (1 - balance) * (1 - t))

    def loss_of(share: jax.Array, log_true: jax.Array, log_false: jax.Array) -> jax.Array:
        log_true, log_false = guard_impossible(log_true, log_false, share, xp=jnp)
        return share * focal_partial_unchecked(log_true, log_false, gamma=exponent, xp=jnp)

    return examples.finish(loss_of(of_positive, log_p, log_q) + loss_of(of_negative, log_q, log_p))
