"""Random labeled logits for the tests of likelihoods."""

from __future__ import annotations

import numpy as np

from refocal.calibrators.fit.temperature_likelihood import LabeledLogits


def draw_problem(rows=40, classes=5, *, spread=3.0, dtype=np.float64, weighted=True):
    """Draw logits, and labels and weights that do not depend on them."""
    rng = np.random.default_rng(1)
    logits = (spread * rng.standard_normal((rows, classes))).astype(dtype)
    weights = rng.random(rows) if weighted else None
    return LabeledLogits.prepare(logits, rng.integers(0, classes, rows), weights)
