"""Venn-Abers calibration beside the package venn-abers (`make test-peers`)."""

from __future__ import annotations

import numpy as np
import pytest

from refocal.calibrators import VennAbersCalibration

venn_abers = pytest.importorskip("venn_abers", reason="other packages are not installed: `make test-peers` runs them")


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("count", [5, 100, 3000])
def test_intervals_and_probabilities_are_those_of_the_package(count, rounded):
    rng = np.random.default_rng(count)
    p = rng.uniform(0.001, 0.999, 2 * count)
    p = np.round(p, 2).clip(0.01, 0.99) if rounded else p  # many ties, also between old and new scores
    labels = (rng.random(2 * count) < p**2).astype(int)
    labels[:2] = 0, 1
    theirs = venn_abers.VennAbers()
    theirs.fit(np.stack([1 - p, p], axis=1)[:count], labels[:count])
    probs, ends = theirs.predict_proba(np.stack([1 - p, p], axis=1)[count:])
    ours = VennAbersCalibration(input="probs").fit(p[:count], labels[:count])
    np.testing.assert_allclose(ours.predict_interval(p[count:])[:, 1], ends, atol=1e-9)
    np.testing.assert_allclose(ours.predict_proba(p[count:]), probs, atol=1e-9)
