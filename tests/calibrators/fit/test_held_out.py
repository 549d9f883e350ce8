"""Comparisons of candidates by their held-out scores."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm, ttest_rel

from refocal.calibrators.fit.held_out import compare


@pytest.mark.parametrize("rows", [200, 5000])
@pytest.mark.parametrize("gap", [0.0, 0.003, 0.03])
def test_p_values_are_those_of_a_paired_test(rows, gap):
    rng = np.random.default_rng(rows)
    best = rng.exponential(size=rows)
    other = best + gap + 0.2 * rng.standard_normal(rows)
    results = compare(np.array([other, best]), np.ones(rows), np.array([1.0, 2.0]))
    first, second = (np.array([other, best])[result["index"]] for result in results)
    theirs = ttest_rel(second, first, alternative="greater")
    assert results[0]["p_value"] == 1
    assert results[1]["behind"] / results[1]["error"] == pytest.approx(theirs.statistic)
    assert results[1]["p_value"] == pytest.approx(norm.sf(theirs.statistic))  # Student's distribution is near
    assert results[1]["p_value"] == pytest.approx(theirs.pvalue, rel=0.1, abs=1e-6)


def test_p_values_count_weights_as_repetitions():
    rng = np.random.default_rng(0)
    scores, counts = rng.exponential(size=(3, 300)), rng.integers(1, 4, 300)
    weighted = compare(scores, counts, np.ones(3))
    repeated = compare(np.repeat(scores, counts, axis=1), np.ones(counts.sum()), np.ones(3))
    assert [each["p_value"] for each in weighted] == pytest.approx([each["p_value"] for each in repeated])


def test_equal_scores_tell_nothing():
    scores = np.random.default_rng(0).exponential(size=50)
    results = compare(np.array([scores, scores, scores + 0.5]), np.ones(50), np.ones(3))
    assert [each["p_value"] for each in results] == [1, 1, 0]
