"""Isotonic regression of several problems at once, against scikit-learn's of each."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from refocal.calibrators.fit.isotonic_tables import RankedScores

FLOOR = 0.01


def draw(rows=300, problems=4, *, digits=2, seed=0):
    """Scores (C, N), many of them equal, labels that depend on them, and weights (N,)."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.standard_normal((problems, rows)), digits)
    positive = rng.random((problems, rows)) < 1 / (1 + np.exp(1 - 2 * scores))
    return scores, positive, rng.integers(1, 4, rows).astype(float)


def fit_each(scores, positive, weights):
    for x, y in zip(scores, positive, strict=True):
        yield IsotonicRegression(y_min=FLOOR, y_max=1 - FLOOR, out_of_bounds="clip").fit(x, y * 1.0, weights)


@pytest.mark.parametrize("digits", [0, 1, 2, 12])
def test_each_problem_gets_its_own_regression(digits):
    scores, positive, weights = draw(digits=digits)
    points = np.linspace(-4, 4, 1001)
    found = RankedScores.rank(scores, positive).fit_isotonic(weights, floor=FLOOR)
    for (knots, values), expected in zip(found, fit_each(scores, positive, weights), strict=True):
        np.testing.assert_allclose(np.interp(points, knots, values), expected.predict(points), atol=1e-12)
        np.testing.assert_allclose(knots, expected.X_thresholds_)
        assert np.all(np.diff(knots) > 0)


def test_some_of_the_samples_give_the_tables_of_a_fit_to_them():
    scores, positive, weights = draw()
    rows = np.flatnonzero(np.random.default_rng(1).random(300) < 0.6)
    some = RankedScores.rank(scores, positive).take(rows).fit_isotonic(weights, floor=FLOOR)
    alone = RankedScores.rank(scores[:, rows], positive[:, rows]).fit_isotonic(weights[rows], floor=FLOOR)
    for table, expected in zip(some, alone, strict=True):
        for found, wanted in zip(table, expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("label", [False, True])
def test_a_problem_with_one_kind_of_label_is_constant(label):
    scores, positive, weights = draw(problems=2)
    positive[0] = label
    knots, values = RankedScores.rank(scores, positive).fit_isotonic(weights, floor=FLOOR)[0]
    np.testing.assert_array_equal(knots, [scores[0].min(), scores[0].max()])
    np.testing.assert_array_equal(values, 2 * [1 - FLOOR if label else FLOOR])


def test_equal_scores_have_one_knot():
    table = RankedScores.rank(np.ones((1, 4)), np.array([[True, False, False, False]]))
    ((knots, values),) = table.fit_isotonic(np.ones(4), floor=FLOOR)
    assert knots.tolist() == [1.0]
    assert values.tolist() == [0.25]
