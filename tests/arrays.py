"""Conversion of arrays to NumPy, and random predictions."""

from __future__ import annotations

import numpy as np


def to_numpy(array):
    """Convert an array of any library to NumPy."""
    if hasattr(array, "detach"):
        array = array.detach()
        return array.float().numpy() if str(array.dtype) == "torch.bfloat16" else array.numpy()
    return np.from_dlpack(array) if type(array).__module__.startswith("array_api_strict") else np.asarray(array)


def random_simplex(rng, shape, *, spread=1.0):
    """Draw rows of the simplex: softmax of Gaussian scores."""
    scores = spread * rng.standard_normal(shape)
    mass = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return mass / mass.sum(axis=-1, keepdims=True)


def draw_calibrated(rng, shape, *, spread=2.0):
    """Draw rows of the simplex, and labels from them."""
    probs = random_simplex(rng, shape, spread=spread)
    labels = (probs.cumsum(axis=1) < rng.random((shape[0], 1))).sum(axis=1).clip(0, shape[1] - 1)
    return probs, labels


def sharpen(probs, *, power):
    """Raise probabilities to a power and normalize them; they are overconfident if power > 1."""
    mass = probs**power
    return mass / mass.sum(axis=1, keepdims=True)


def spoil(array, index, value):
    """Return a copy with one value changed."""
    copy = np.array(array)
    copy[index] = value
    return copy
