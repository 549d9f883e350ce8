"""Intervals and tests for the parts of the Brier score.

Isotonic recalibration fits the noise of its own sample, so the calibration part is too large and the refinement too
small. The calibration part is a norm of residuals over cells of similar predictions, so its labels are drawn from the
predictions as those of other calibration errors. The resamples of the other parts come from models whose truth is
known: recalibrated predictions, moved toward the given ones. With pi_t = p + t (pi - p), the model is calibrated at
t = 0, and at every t the true parts are known.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy

from refocal.metrics.classwise import class_columns
from refocal.metrics.decomposition import BrierDecomposition
from refocal.metrics.inputs import ArrayLike, Events, Sample, Task
from refocal.metrics.measure_record import Interval, PairedTest, Part, Request
from refocal.metrics.norm_intervals import residual_evidence
from refocal.metrics.residuals import class_residuals, event_residuals
from refocal.stats.binning import BINS, mass_edges, mass_index_of_counts
from refocal.stats.inverted_tests import Evidence, bisect, two_sided_p_value
from refocal.stats.isotonic import brier_parts, calibration_part, isotonic_rows
from refocal.stats.resampling import Gaps, draw_counts

BRIER_PARTS: tuple[Part, ...] = ("refinement", "uncertainty", "resolution")  # the parts that `BrierPartMethod` handles

_PartsFunction = Callable[..., np.ndarray]  # `brier_parts`, or one of them
_Column = tuple[np.ndarray, Events]  # the rows of a class, and its events

_CELLS = 1 << 11  # for all classes together, but at least 16 per class
_CHUNK_ELEMENTS = 1 << 20
_SMALLEST_SHARE = 1e-6  # of the largest refinement; a smaller one is rounding error, as of separable data


@dataclass(frozen=True)
class BrierPartMethod:
    """A bootstrap of recalibrated predictions. Their true parts are known, so the errors include overfitting.

    Attributes:
        part: A field of `BrierDecomposition`.
    """

    part: Part

    def interval(self, request: Request, scores: ArrayLike, *, level: float) -> Interval:
        """The part minus the quantiles of its error; the refinement divided by those of its relative error."""
        (resamples,) = resample_brier(request, scores)
        value, errors = request.value(scores), self._errors(resamples)
        quantiles = np.quantile(errors, [(1 + level) / 2, (1 - level) / 2])
        mean = float(np.mean(errors))
        center, most = value - mean, resamples.largest_refinement
        if self.part == "refinement" and min(value, center) > _SMALLEST_SHARE * most:
            # Errors of a mean variance grow with it. Their ratio to the truth varies less than they do.
            ratios = 1 + (quantiles - mean) / center
            low, high = (min(most, center / ratio) if ratio > 0 else most for ratio in ratios)
        else:
            low, high = np.maximum(0.0, value - quantiles)
        return Interval(value, float(low), float(high))

    def paired_test(self, request: Request, first: ArrayLike, second: ArrayLike) -> PairedTest:
        """Compare the difference of the parts with the differences of their errors."""
        if self.part == "uncertainty":
            msg = (
                "part must not be 'uncertainty' in a paired test: it depends on the labels alone, so it is equal for "
                "all models; test 'calibration', 'refinement' or 'resolution'"
            )
            raise ValueError(msg)
        one, two = (self._errors(each) for each in resample_brier(request, first, second))
        a, b = request.value(first), request.value(second)
        return PairedTest(a, b, two_sided_p_value(a - b, one - two))

    def _errors(self, resamples: BrierResamples) -> np.ndarray:
        return resamples.errors()[BrierDecomposition._fields.index(self.part)]


def brier_evidence(request: Request, *predictions: ArrayLike) -> list[Evidence]:
    """The evidence of the calibration part."""
    return residual_evidence(functools.partial(brier_residuals, task=request.common["task"]))(request, *predictions)


def brier_residuals(sample: Sample, *, by_row: bool, task: Task) -> Gaps:
    """The residuals of the calibration part, in cells of equal mass for each class."""
    cells: dict[str, Any] = {"binning": "equal_mass", "norm": "l1"}
    if task == "binary":
        gaps = event_residuals(sample.all_events(), by_row=by_row, bins=_count_cells(1), **cells)
    else:
        columns = sample.classes if sample.classes > 1 else sample.shape[1]
        gaps = class_residuals(sample, bins=_count_cells(columns), reduction="mean", above=-1.0, **cells)
    shape, classes = (gaps.groups, -1), max(1, sample.classes)
    weight, claim = (part.reshape(shape) for part in (gaps.columns.weight, gaps.columns.claim))
    used = weight > 0
    # An empty cell is like the one below it, and weighs nothing. The first one is never empty.
    alike = np.maximum.accumulate(np.where(used, np.arange(weight.shape[1]), 0), axis=1)
    mass = np.where(used, weight, 1e-12 * weight.max())
    places = np.take_along_axis(claim / mass, alike, axis=1)
    # The gaps of a truth: one for each of 15 groups of cells, since a cell has too few samples for its own.
    blocks = [BINS * k + mass_index_of_counts(own, bins=BINS) for k, own in enumerate(weight)]

    def recalibrate(rates: np.ndarray) -> np.ndarray:
        filled = np.take_along_axis(rates, np.broadcast_to(alike, rates.shape), axis=-1)
        return isotonic_rows(filled, np.broadcast_to(mass, rates.shape))

    def error(sums: np.ndarray) -> np.ndarray:
        hits = claim - sums.reshape(*sums.shape[:-1], *mass.shape)
        return np.maximum(0.0, calibration_part(places, weight, hits, 1 / classes, recalibrate(hits / mass)))

    def row_losses(gap: np.ndarray) -> np.ndarray:
        true = places - gap.reshape(mass.shape)
        losses: np.ndarray = (places - true) ** 2 - (recalibrate(true) - true) ** 2
        return classes * np.where(used, losses, 0.0).ravel()

    most = min(2.0, float(classes))
    return gaps._replace(norm=error, row_losses=row_losses, blocks=np.concatenate(blocks), most=most)


class BrierResamples(NamedTuple):
    """Cells of the predictions of each class, and their resamples."""

    places: np.ndarray  # (K, C) mean prediction p
    fitted: np.ndarray  # (K, C) its isotonic recalibration pi
    mass: np.ndarray  # (K, C)
    hits: np.ndarray  # (K, C)
    resampled_mass: np.ndarray  # (R, K, C)
    deviations: np.ndarray  # (R, K, C) of resampled hits from those expected under pi
    classes: int  # per sample; the mass of all cells is divided by it

    @property
    def value(self) -> float:
        """The calibration part of these cells."""
        return float(self._parts(calibration_part, self.mass, self.hits, self.fitted))

    @property
    def largest_refinement(self) -> float:
        """The mean variance of outcomes of which all are equally likely."""
        return 0.25 if self.classes == 1 else 1 - 1 / self.classes

    def truth(self, t: float, parts: _PartsFunction) -> np.ndarray:
        """The true parts (5,), or one part (), if pi_t is the truth."""
        fitted = self._move(t)
        return self._parts(parts, self.mass, self.mass * fitted, fitted)

    def simulate(self, t: float, parts: _PartsFunction) -> np.ndarray:
        """The parts (5, R), or one part (R,), in resamples of labels and rows if pi_t is the truth."""
        moved, result = self._move(t), []
        step = max(1, _CHUNK_ELEMENTS // self.mass.size)
        for start in range(0, len(self.deviations), step):
            rows = slice(start, start + step)
            hits = self.mass * moved + self.deviations[rows]
            fitted = isotonic_rows(hits / self.mass, np.broadcast_to(self.mass, hits.shape))
            mass = self.resampled_mass[rows]
            new_labels = self._parts(parts, self.mass, hits, fitted)
            result.append(new_labels + self._parts(parts, mass, mass * moved, moved))
        return np.concatenate(result, axis=-1) - self.truth(t, parts)[..., None]

    def errors(self) -> np.ndarray:
        """The differences of simulated parts from the true ones, at the t that matches the observed ones, (5, R)."""

        def is_large(t: float) -> bool:
            return bool(np.mean(self.simulate(t, calibration_part)) >= self.value)

        matched = 0.0 if is_large(0.0) else bisect(is_large, 1.0, halvings=6)
        return self.simulate(matched, brier_parts) - self.truth(matched, brier_parts)[:, None]

    def _move(self, t: float) -> np.ndarray:
        return self.places + t * (self.fitted - self.places)

    def _parts(self, parts: _PartsFunction, mass: np.ndarray, hits: np.ndarray, fitted: np.ndarray) -> np.ndarray:
        divisor = mass.sum(axis=(-2, -1)) / self.classes
        return parts(self.places, mass, hits, divisor, fitted)


def resample_brier(request: Request, *predictions: ArrayLike) -> list[BrierResamples]:
    """The cells of each prediction, with the same resamples of the same rows."""
    samples = [request.read(scores) for scores in predictions]
    prepared = [_prepare(sample, task=request.common["task"]) for sample in samples]
    weight = prepared[0][1][0].sum(axis=1)
    counts = np.concatenate(list(draw_counts(weight, resamples=request.resamples, rng=request.rng)))
    result = []
    for cells, rows in prepared:
        shape = (request.resamples, *cells.mass.shape)
        mass, deviations = (counts @ rows[0]).reshape(shape), ((counts - 1) @ rows[1]).reshape(shape)
        result.append(cells._replace(resampled_mass=mass, deviations=deviations))
    return result


def _count_cells(columns: int) -> int:
    """The number of cells of each column."""
    return int(np.clip(_CELLS // columns, 16, 128))


def _prepare(sample: Sample, *, task: Task) -> tuple[BrierResamples, np.ndarray]:
    """Cells without resamples, and the contribution of each group of rows to mass and residuals, (2, G, K C)."""
    columns: list[_Column]
    if task == "binary":
        events = sample.all_events()
        columns = [(np.arange(len(events.correct)), events)]
    else:
        columns = list(class_columns(sample))
    size = _count_cells(len(columns))
    last = max(int(places[-1]) for places, _ in columns)
    groups = min(last + 1, max(512, (1 << 23) // (len(columns) * size)))
    tables = [_cells(events, size) for _, events in columns]
    places, mass, hits = (np.array([table[part] for table in tables]) for part in (1, 2, 3))
    fitted = isotonic_rows(hits / mass, mass)
    rows = np.zeros((2, groups, len(columns) * size))
    for k, ((column_rows, events), (index, *_)) in enumerate(zip(columns, tables, strict=True)):
        scale = events.scale
        # Rows of a group stay together in a resample: there are too many rows to draw each.
        where = (column_rows % groups, index)
        for part, values in enumerate((scale, scale * (events.correct - fitted[k][index]))):
            sums = scipy.sparse.csr_array((values, where), shape=(groups, size)).toarray()
            rows[part, :, k * size : (k + 1) * size] = sums
    nothing = np.zeros((0, *mass.shape))
    return BrierResamples(places, fitted, mass, hits, nothing, nothing, max(1, sample.classes)), rows


def _cells(events: Events, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The cell of each event; and the mean prediction, mass and hits of `size` cells with equally many events.

    Empty cells get a negligible mass.
    """
    scale = events.scale
    edges = mass_edges(events.confidence, events.weights, bins=size)
    index = np.searchsorted(edges, events.confidence, side="left")
    mass, total, hits = (
        np.bincount(index, weights=part, minlength=size)
        for part in (scale, scale * events.confidence.astype(np.float64), scale * events.correct)
    )
    # An empty cell takes the prediction of its edge, so that predictions increase.
    used = mass > 0
    places = np.where(used, total / np.where(used, mass, 1.0), np.append(edges, 1.0))
    places = np.maximum.accumulate(places)
    mass = np.where(used, mass, 1e-9 * scale.mean())
    return index, places, mass, np.where(used, hits, mass * places)
