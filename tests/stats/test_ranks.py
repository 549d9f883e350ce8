"""The ranks of two classes against a count of all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from refocal.stats.ranks import measure_ranks


@pytest.mark.parametrize(("direction", "reversed_"), [(1, False), (-1, True)])
def test_the_auc_counts_pairs_and_the_test_sees_the_order(direction, reversed_):
    rng = np.random.default_rng(0)
    positive = rng.random(200) < 0.4
    scores = np.round(direction * positive + rng.standard_normal(200), 1)  # with ties
    above = scores[positive][:, None] - scores[~positive]
    auc, p_value = measure_ranks(scores, positive)
    assert auc == pytest.approx(np.mean((above > 0) + 0.5 * (above == 0)))
    assert (p_value < 0.001) == reversed_
