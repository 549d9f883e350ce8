"""Intervals and tests for areas under ranking curves, by the percentiles of a bootstrap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from refocal.metrics.inputs import ArrayLike, Events
from refocal.metrics.measure_record import Interval, PairedTest, Request
from refocal.metrics.ranking import all_decisions, sort_by_confidence
from refocal.stats.inverted_tests import two_sided_p_value
from refocal.stats.resampling import resample_counts


@dataclass(frozen=True)
class RankingMethod:
    """A bootstrap of the decisions.

    Attributes:
        area: The measure of decisions sorted by decreasing confidence.
    """

    area: Callable[[Events], float]

    def interval(self, request: Request, scores: ArrayLike, *, level: float) -> Interval:
        """The area with percentiles of its bootstrap."""
        events, _ = sort_by_confidence(all_decisions(request.read(scores)))
        value = self.area(events)
        if np.isnan(value):  # there is nothing to rank: all decisions are right, or all are wrong
            return Interval(value, 0.0, 1.0)
        resamples = resample_counts(events.scale, resamples=request.resamples, rng=request.rng)
        areas = [self.area(_reweight(events, counts)) for counts in resamples]
        low, high = np.nanquantile(areas, [(1 - level) / 2, (1 + level) / 2])
        return Interval(value, float(low), float(high))

    def paired_test(self, request: Request, first: ArrayLike, second: ArrayLike) -> PairedTest:
        """Compare the difference of the areas with its bootstrap."""
        decisions = [all_decisions(request.read(scores)) for scores in (first, second)]
        both = [sort_by_confidence(events) for events in decisions]
        a, b = (self.area(events) for events, _ in both)
        if np.isnan(a - b):
            return PairedTest(a, b, float("nan"))
        differences = []
        for counts in resample_counts(decisions[0].scale, resamples=request.resamples, rng=request.rng):
            one, two = (self.area(_reweight(events, counts[order])) for events, order in both)
            differences.append(one - two)
        null = np.array(differences) - (a - b)
        return PairedTest(a, b, two_sided_p_value(a - b, null[np.isfinite(null)]))


def _reweight(events: Events, counts: np.ndarray) -> Events:
    return events._replace(weights=events.scale * counts)
