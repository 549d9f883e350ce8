"""Splits that do not depend on the version of any library: samples are ordered by a hash of their index."""

from __future__ import annotations

from hashlib import sha256

import numpy as np


def draw(indices: np.ndarray, count: int, *, key: str, seed: int) -> np.ndarray:
    """Draw the `count` indices i with the smallest SHA-256 of "key/seed/i", in increasing order.

    Example:
        >>> draw(np.arange(10), 3, key="cifar10", seed=0)
        array([0, 4, 8])
    """
    order = sorted(indices.tolist(), key=lambda index: sha256(f"{key}/{seed}/{index}".encode()).digest())
    return np.sort(np.array(order[:count], dtype=np.int64))


def draw_share(labels: np.ndarray, indices: np.ndarray, share: float, *, key: str, seed: int) -> np.ndarray:
    """Draw the same share of each class, rounded, in increasing order.

    Args:
        labels: Class of each index (N,).
        indices: Indices (N,).
        share: Share of each class, in (0, 1].
        key: As in `draw`.
        seed: As in `draw`.
    """
    drawn = []
    for label in np.unique(labels):
        members = indices[labels == label]
        drawn.append(draw(members, round(share * len(members)), key=key, seed=seed))
    return np.sort(np.concatenate(drawn))
