"""What an interval of a calibration error simulates: each possible truth, and none of them twice."""

from __future__ import annotations

import numpy as np

from refocal.metrics.norm_intervals import drop_repeated, find_possible_gaps
from refocal.stats.inverted_tests import Direction, Evidence, limits
from refocal.stats.simulated_sums import ColumnSums


def test_equal_gaps_are_tried_once():
    """If all gaps are clear, those beyond two and three standard errors are all of them."""
    weight = np.full(4, 0.25)
    columns = ColumnSums(weight, weight / 1000, 0.5 * weight, np.array([0.1, 0.3, 0.6, 0.9]) * weight, weight**2 / 4000)
    every = find_possible_gaps(columns)
    tried = drop_repeated(every)
    assert len(every) == 4
    np.testing.assert_array_equal(tried, [every[0], every[3]])
    other = np.arange(4.0)
    np.testing.assert_array_equal(drop_repeated([other, every[0], other]), [other, every[0]])


def test_a_calibrated_model_is_simulated_once():
    """It is the same in all directions; equal directions do not change the limits."""
    noise = np.linspace(-1, 1, 201)
    places = []

    def simulate(t):
        places.append(t)
        return np.maximum(0.0, 2 * t + noise)

    direction = Direction(lambda t: 2 * t, simulate)
    for value in (0.5, 3.0):
        places.clear()
        one = limits(Evidence(value, [direction], [], 99.0), level=0.9)
        assert places.count(0.0) == 1
        assert len(places) == len(set(places))
        places.clear()
        assert limits(Evidence(value, [direction] * 3, [direction], 99.0), level=0.9) == one
        assert places.count(0.0) == 1
