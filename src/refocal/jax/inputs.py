"""What the losses in JAX take: logits, labels, a mask, and hyper-parameters that may be traced.

Shapes and types are always checked, values only where they can be read. Under `jit` they cannot: a label outside the
classes then gives NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from refocal import _check
from refocal._arrays import can_read_values, widen


class Examples(NamedTuple):
    """A checked batch, in the precision of computation.

    Attributes:
        logits: Scores, (..., K), or of any shape for a sigmoid; 0 for examples that do not count.
        labels: Labels of examples that count, 0 for the others. Indices are within the classes.
        broken: Mask of the examples whose loss is NaN: they have no softmax, or a label outside the classes.
        counts: Mask of the examples that count; None if all do.
        dtype: The type of the losses.
    """

    logits: jax.Array
    labels: jax.Array
    broken: jax.Array
    counts: jax.Array | None
    dtype: Any

    @property
    def has_indices(self) -> bool:
        """Whether the labels are class indices."""
        return self.labels.ndim < self.logits.ndim

    def finish(self, losses: jax.Array) -> jax.Array:
        """Give broken examples NaN, examples that do not count the loss 0, and all losses their type."""
        losses = losses * jnp.where(self.broken, jnp.nan, 1.0).astype(losses.dtype)  # NaN spreads to the gradient
        counted = losses if self.counts is None else jnp.where(self.counts, losses, 0.0)
        return counted.astype(self.dtype)


def read_softmax_examples(logits: Any, labels: Any, where: Any, *, soft: bool) -> Examples:
    """Check logits (..., K) with class indices (...) or, if `soft`, class probabilities (..., K)."""
    logits, labels = _read_logits(logits), _read_array(labels, "labels")
    _check.classes_last(logits, "logits")
    has_indices = jnp.issubdtype(labels.dtype, jnp.integer)
    if not has_indices and not (soft and jnp.issubdtype(labels.dtype, jnp.floating)):
        allowed = "class indices or class probabilities" if soft else "class indices"
        msg = f"labels must hold {allowed}, got dtype {labels.dtype}"
        raise TypeError(msg)
    shape = logits.shape[:-1] if has_indices else logits.shape
    if labels.shape != shape:
        kind = "class indices" if has_indices else "class probabilities"
        msg = f"labels must have shape {shape} if they are {kind}, got {labels.shape}"
        raise ValueError(msg)
    counts = _read_mask(where, logits.shape[:-1])
    wide = widen(logits, xp=jnp)
    dtype = logits.dtype
    if not has_indices:
        dtype = jnp.result_type(logits, labels)
        labels = labels.astype(jnp.result_type(wide, labels))
        wide = wide.astype(labels.dtype)
    if counts is not None:
        # an example that does not count may have any logits and any label, and its gradient is 0
        wide = jnp.where(counts[..., None], wide, 0.0)
        labels = jnp.where(counts if has_indices else counts[..., None], labels, 0)
    broken = ~jnp.isfinite(jnp.max(wide, axis=-1))
    if has_indices:
        outside = _find_outside(labels, logits.shape[-1])
        broken, labels = broken | outside, jnp.where(outside, 0, labels)
    return Examples(wide, labels, broken, counts, dtype)


def read_sigmoid_examples(logits: Any, labels: Any, where: Any) -> Examples:
    """Check logits and labels of one shape; labels are 0, 1 or probabilities."""
    logits, labels = _read_logits(logits), _read_array(labels, "labels")
    if logits.shape != labels.shape:
        msg = f"labels must have the shape of logits, {logits.shape}, got {labels.shape}"
        raise ValueError(msg)
    counts = _read_mask(where, logits.shape)
    wide = widen(logits, xp=jnp)
    dtype = jnp.result_type(logits, labels) if jnp.issubdtype(labels.dtype, jnp.floating) else logits.dtype
    wide = wide.astype(jnp.result_type(wide, dtype))
    labels = labels.astype(wide.dtype)
    if counts is not None:
        wide, labels = jnp.where(counts, wide, 0.0), jnp.where(counts, labels, 0.0)
    _check.probabilities(labels, "labels", xp=jnp)
    return Examples(wide, labels, jnp.isnan(wide), counts, dtype)


def read_gamma(gamma: Any, logits: jax.Array) -> Any:
    """Return gamma >= 0 as a number, or as an array () or (K,) if it has one value per class or is traced."""
    if isinstance(gamma, jax.core.Tracer):
        return _read_traced(gamma, "gamma", logits)
    return _as_constant(_check.gamma(gamma, classes=_count_entries(logits), least=0.0), logits)


def read_alpha(alpha: Any, logits: jax.Array) -> Any:
    """Return the weight of positives as a number, as an array () or (K,), or as None."""
    if isinstance(alpha, jax.core.Tracer):
        return _read_traced(alpha, "alpha", logits)
    return _as_constant(_check.alpha(alpha, classes=_count_entries(logits)), logits)


def read_weight(weight: Any, logits: jax.Array) -> jax.Array | None:
    """Return class weights (K,), or None."""
    if weight is None:
        return None
    values = jnp.asarray(weight, dtype=logits.dtype)
    if values.shape != logits.shape[-1:]:
        msg = f"weight must have one value for each of {logits.shape[-1]} classes, got shape {values.shape}"
        raise ValueError(msg)
    if can_read_values(values):
        bad = ~((values >= 0) & (values < jnp.inf))
        _check.reject_rows(bad, values, "weight must be non-negative and finite", jnp)
    return values


def _read_array(array: Any, name: str) -> jax.Array:
    if not isinstance(array, (jax.Array, np.ndarray, np.generic, int, float)):
        msg = f"{name} must be a JAX or NumPy array, got {type(array).__name__}"
        raise TypeError(msg)
    return jnp.asarray(_check.unmasked(array, name))


def _read_logits(logits: Any) -> jax.Array:
    logits = _read_array(logits, "logits")
    _check.floating(logits, "logits")
    return logits


def _read_mask(where: Any, shape: tuple[int, ...]) -> jax.Array | None:
    if where is None:
        return None
    mask = _read_array(where, "where")
    if mask.dtype != bool or mask.shape != shape:
        msg = f"where must be a Boolean mask of shape {shape}, got {mask.dtype} of shape {mask.shape}"
        raise ValueError(msg)
    return mask


def _find_outside(labels: jax.Array, classes: int) -> jax.Array:
    """The mask of indices outside the classes; where values can be read, there must be none."""
    outside = (labels < 0) | (labels >= classes)
    if can_read_values(labels):
        message = f"labels must be from 0 to {classes - 1}; leave out others with where="
        _check.reject_rows(outside, labels, message, jnp)
    return outside


def _read_traced(value: jax.Array, name: str, logits: jax.Array) -> jax.Array:
    """A traced hyper-parameter: its values are unknown."""
    if value.shape not in ((), logits.shape[-1:]):
        msg = f"{name} must be a number or have one value for each entry of the last axis, got shape {value.shape}"
        raise ValueError(msg)
    return value.astype(logits.dtype)


def _as_constant(value: Any, logits: jax.Array) -> Any:
    return jnp.asarray(value, dtype=logits.dtype) if isinstance(value, tuple) else value


def _count_entries(logits: jax.Array) -> int | None:
    return logits.shape[-1] if logits.ndim else None
