"""Smooth ECE beside the package of its authors (`make test-peers`)."""

from __future__ import annotations

import numpy as np
import pytest

from refocal import metrics

relplot = pytest.importorskip("relplot", reason="other packages are not installed: `make test-peers` runs them")


@pytest.mark.parametrize("power", [0.5, 1.0, 1.3, 3.0])
@pytest.mark.parametrize("count", [200, 2_000, 50_000])
def test_smooth_ece_is_smece(count, power):
    rng = np.random.default_rng(count)
    p = rng.random(count)
    y = (rng.random(count) < p**power).astype(int)
    assert metrics.smooth_ece(p, y, task="binary") == pytest.approx(relplot.smECE(p, y.astype(float)), abs=1e-6)


def test_smooth_ece_is_smece_at_the_ends_and_for_confidences():
    rng = np.random.default_rng(0)
    p = np.concatenate([np.zeros(300), np.ones(500), rng.random(200)])
    y = (rng.random(1000) < 0.6).astype(int)
    assert metrics.smooth_ece(p, y, task="binary") == pytest.approx(relplot.smECE(p, y.astype(float)), abs=1e-6)
    probs = rng.dirichlet([0.3] * 5, 3000)
    labels = rng.integers(0, 5, 3000)
    theirs = relplot.smECE(probs.max(axis=1), (probs.argmax(axis=1) == labels).astype(float))
    assert metrics.smooth_ece(probs, labels) == pytest.approx(theirs, abs=1e-6)
