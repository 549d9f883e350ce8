"""The proper part of focal loss in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from refocal._arrays import ClassWeights, PerClass
from refocal.jax.inputs import read_softmax_examples, read_weight
from refocal.maps.minimizer import proper_focal_partial_unchecked


def proper_focal_loss(
    logits: jax.Array,
    labels: jax.Array,
    *,
    gamma: PerClass,
    weight: ClassWeights = None,
    where: jax.Array | None = None,
) -> jax.Array:
    """The proper part of focal loss of each example: softmax(logits) is trained to be p(y|x) itself.

    It is the focal loss of the risk minimizer q that belongs to the posterior softmax(logits). The search for q takes
    about six Newton steps on all classes, so the loss costs more than focal loss; under `jit` it is one compiled loop.

    Args:
        logits: Scores (..., K). A class masked with -inf has probability 0.
        labels: Class indices (...).
        gamma: Focusing parameter >= 0: a number, or one value per class. It is a constant and cannot be traced.
        weight: Class weights (K,).
        where: Mask (...) of the examples that count, as in `focal_loss`.

    Returns:
        Losses (...), NaN in the cases that `focal_loss` names. Their gradient comes from the implicit function theorem.

    Example:
        >>> round(proper_focal_loss(jnp.array([[2.1972, 0.0]]), jnp.array([0]), gamma=1.0).item(), 4)
        0.0577

    Reference: Komisarenko and Kull (2024), Props. 2 and 4.
    """
    if isinstance(gamma, jax.core.Tracer):
        msg = "gamma must be a constant, got a traced array: make it with NumPy, or name it in static_argnames of jit"
        raise TypeError(msg)
    examples = read_softmax_examples(logits, labels, where, soft=False)
    rows, indices = examples.logits, examples.labels
    weights = read_weight(weight, rows)
    # a broken row has no minimizer to search for
    log_probs = jnp.where(examples.broken[..., None], 0.0, jax.nn.log_softmax(rows, axis=-1))
    losses = proper_focal_partial_unchecked(log_probs, indices, gamma=gamma, in_logs=True, xp=jnp)
    return examples.finish(losses if weights is None else weights[indices] * losses)
