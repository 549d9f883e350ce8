"""Prediction sets from probabilities: how well each class conforms to a row, and which classes reach a threshold.

The functions run on arrays of any library, and on the symbols of an ONNX graph.
"""

from __future__ import annotations

from typing import Any

from refocal._arrays import Array, ArrayT, Namespace, device


def conform(probs: ArrayT, own: ArrayT, *, ranked: bool, penalty: float, penalty_after: int, xp: Namespace) -> ArrayT:
    """Compute how well classes conform to their row; larger is better.

    Without ranks this is the probability p_k itself. With ranks it is the total probability of the classes that are at
    most as probable, 1 - sum(p_j for p_j > p_k), minus `penalty` for each rank after `penalty_after`. A sum of small
    numbers stays exact where the sum of large ones rounds to 1. Equal probabilities have equal results.

    Args:
        probs: Probabilities of all classes (..., K).
        own: Probabilities of the classes in question (..., C), which are among those of the row.
        ranked: Whether classes are compared with the others of their row.
        penalty: The penalty per rank, >= 0.
        penalty_after: The number of most probable classes that have no penalty.
        xp: The array namespace.
    """
    if not ranked:
        return own
    classes = probs.shape[-1]
    ordered = xp.sort(probs, axis=-1)
    upto = xp.cumulative_sum(ordered, axis=-1)
    ranks = classes - xp.astype(xp.arange(classes, device=device(probs)), probs.dtype)
    beyond = xp.where(ranks > penalty_after, ranks - penalty_after, 0.0)
    return xp.take_along_axis(upto - penalty * beyond, _find_last(ordered, own, xp=xp), axis=-1)


def choose_classes(probs: ArrayT, conformity: Array, thresholds: Array, *, allow_empty: bool, xp: Namespace) -> Any:
    """Choose the classes whose conformity reaches their threshold (K,), as booleans (..., K).

    A set that would be empty gets the most probable class, unless `allow_empty`.
    """
    member: Any = ~(conformity < thresholds)
    if allow_empty:
        return member
    empty = xp.sum(xp.astype(member, probs.dtype), axis=-1, keepdims=True) < 0.5
    places = xp.arange(probs.shape[-1], device=device(probs))
    return member | (empty & (places == xp.argmax(probs, axis=-1, keepdims=True)))


def set_head(
    logits: ArrayT,
    thresholds: Array,
    *,
    part: Any,
    allow_empty: bool,
    ranking: dict[str, Any],
    log: bool,  # noqa: ARG001
    xp: Namespace,
    **arrays: Array,
) -> Any:
    """Compute the prediction sets of logits (..., K) as booleans.

    `part` has the function from logits to probabilities and its settings; `arrays` are its arrays. `ranking` has the
    settings of `conform`.
    """
    function, settings = part
    probs = function(logits, **arrays, **settings, log=False, xp=xp)
    return choose_classes(probs, conform(probs, probs, **ranking, xp=xp), thresholds, allow_empty=allow_empty, xp=xp)


def _find_last(ordered: Array, x: Array, *, xp: Namespace) -> Array:
    """Find the last place of each x in its row of `ordered`, which is ascending, by bisection."""
    place = xp.astype(x > xp.inf, xp.int64)  # zeros
    size = ordered.shape[-1]
    while size > 1:
        half = size // 2
        further = ~(x < xp.take_along_axis(ordered, place + half, axis=-1))
        place = place + half * xp.astype(further, xp.int64)
        size -= half
    return place
