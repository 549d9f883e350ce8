"""The parts of the Brier score under resampling.

Isotonic recalibration fits the noise of its own sample: the calibration part is too large, refinement too small. A
resample here is one of a model whose truth is known, the recalibrated predictions moved toward the given ones: with
pi_t = p + t (pi - p), t = 0 is calibrated, and at every t the parts are known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy

from refocal.metrics.classwise import class_columns
from refocal.metrics.inputs import Events, Sample, read
from refocal.stats.binning import mass_edges
from refocal.stats.inverted_tests import Ray, crossing
from refocal.stats.isotonic import brier_parts, calibration_part, isotonic_rows
from refocal.stats.resampling import draws

if TYPE_CHECKING:
    from refocal.metrics.norm_intervals import Request

Array = Any

_PartsOf = Callable[..., np.ndarray]  # `brier_parts`, or one of them

_CELLS = 1 << 11  # of all classes together, but 16 of each
_CHUNK_ELEMENTS = 1 << 20


class BrierResamples(NamedTuple):
    """Cells of the predictions of each class, and what resamples make of them."""

    places: np.ndarray  # (K, C) mean prediction p
    fitted: np.ndarray  # (K, C) its isotonic recalibration pi
    mass: np.ndarray  # (K, C)
    hits: np.ndarray  # (K, C)
    resampled_mass: np.ndarray  # (R, K, C)
    deviations: np.ndarray  # (R, K, C) of resampled hits, from pi
    classes: int  # of one sample: what the mass of all cells is divided by

    @property
    def found(self) -> float:
        """The calibration part of these cells."""
        return float(self._measured(calibration_part, self.mass, self.hits, self.fitted))

    def rays(self) -> list[Ray]:
        """Where the truth of the calibration part may lie."""
        return [Ray(float(self.truth(1.0, calibration_part)), lambda t: self.shown(t, calibration_part), power=2)]

    def truth(self, t: float, parts: _PartsOf) -> np.ndarray:
        """The five parts, or one, for recalibrated predictions pi_t, (5,) or ()."""
        fitted = self._moved(t)
        return self._measured(parts, self.mass, self.mass * fitted, fitted)

    def shown(self, t: float, parts: _PartsOf) -> np.ndarray:
        """What resamples show where pi_t is the truth, (5, R) or (R,): labels drawn anew, other rows of predictions."""
        moved, found = self._moved(t), []
        step = max(1, _CHUNK_ELEMENTS // self.mass.size)
        for start in range(0, len(self.deviations), step):
            rows = slice(start, start + step)
            hits = self.mass * moved + self.deviations[rows]
            fitted = isotonic_rows(hits / self.mass, np.broadcast_to(self.mass, hits.shape))
            mass = self.resampled_mass[rows]
            labels_anew = self._measured(parts, self.mass, hits, fitted)
            found.append(labels_anew + self._measured(parts, mass, mass * moved, moved))
        return np.concatenate(found, axis=-1) - self.truth(t, parts)[..., None]

    def errors(self) -> np.ndarray:
        """How far the parts of a resample are from the truth, at the likeliest t, (5, R)."""

        def mean(t: float) -> float:
            return float(np.mean(self.shown(t, calibration_part)))

        likeliest = 0.0 if mean(0.0) >= self.found else crossing(mean, self.found, 0.0, 1.0, halvings=6)
        return self.shown(likeliest, brier_parts) - self.truth(likeliest, brier_parts)[:, None]

    def _moved(self, t: float) -> np.ndarray:
        return self.places + t * (self.fitted - self.places)

    def _measured(self, parts: _PartsOf, mass: np.ndarray, hits: np.ndarray, fitted: np.ndarray) -> np.ndarray:
        divisor = mass.sum(axis=(-2, -1)) / self.classes
        return parts(self.places, mass, hits, divisor, fitted)


def brier_resamples(request: Request, *predictions: Array) -> list[BrierResamples]:
    """The cells of each prediction, with the same resamples of the same rows."""
    samples = [read(probs, request.labels, **request.common) for probs in predictions]
    prepared = [_prepare(sample, task=request.common["task"]) for sample in samples]
    weight = prepared[0][1][0].sum(axis=1)
    drawn = np.concatenate(list(draws(np.ones(len(weight)), weight, resamples=request.resamples, rng=request.rng)))
    found = []
    for cells, rows in prepared:
        shape = (request.resamples, *cells.mass.shape)
        mass, deviations = (drawn @ rows[0]).reshape(shape), ((drawn - 1) @ rows[1]).reshape(shape)
        found.append(cells._replace(resampled_mass=mass, deviations=deviations))
    return found


def _prepare(sample: Sample, *, task: str) -> tuple[BrierResamples, np.ndarray]:
    """Cells without resamples, and what each group of rows adds to their mass and to their residuals, (2, G, K C)."""
    if task == "binary":
        events = sample.all_events()
        columns = [(np.arange(len(events.correct)), events)]
    else:
        columns = list(class_columns(sample))
    size = int(np.clip(_CELLS // len(columns), 16, 128))
    last = max(int(of_rows[-1]) for of_rows, _ in columns)
    groups = min(last + 1, max(512, (1 << 23) // (len(columns) * size)))
    tables = [_cells(events, size) for _, events in columns]
    places, mass, hits = (np.array([table[part] for table in tables]) for part in (1, 2, 3))
    fitted = isotonic_rows(hits / mass, mass)
    rows = np.zeros((2, groups, len(columns) * size))
    for k, ((of_rows, events), (index, *_)) in enumerate(zip(columns, tables, strict=True)):
        scale = np.ones(len(index)) if events.weights is None else events.weights
        # rows of a group stay together in a resample: there are too many to draw each
        where = (of_rows % groups, index)
        for part, values in enumerate((scale, scale * (events.correct - fitted[k][index]))):
            sums = scipy.sparse.csr_array((values, where), shape=(groups, size)).toarray()
            rows[part, :, k * size : (k + 1) * size] = sums
    nothing = np.zeros((0, *mass.shape))
    return BrierResamples(places, fitted, mass, hits, nothing, nothing, max(1, sample.classes)), rows


def _cells(events: Events, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The cell of each event, and of each of `size` cells of equally many: mean prediction, mass, hits.

    Cells that nothing falls into have a mass of next to nothing.
    """
    scale = np.ones(len(events.correct)) if events.weights is None else events.weights
    edges = mass_edges(events.confidence, events.weights, bins=size)
    index = np.searchsorted(edges, events.confidence, side="left")
    mass, total, hits = (
        np.bincount(index, weights=part, minlength=size)
        for part in (scale, scale * events.confidence.astype(np.float64), scale * events.correct)
    )
    # an empty cell takes the prediction of its edge, so that predictions rise
    used = mass > 0
    places = np.where(used, total / np.where(used, mass, 1.0), np.append(edges, 1.0))
    places = np.maximum.accumulate(places)
    mass = np.where(used, mass, 1e-9 * scale.mean())
    return index, places, mass, np.where(used, hits, mass * places)
