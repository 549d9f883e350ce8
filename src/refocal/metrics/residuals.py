"""Calibration errors as norms of summed residuals, the form in which they are simulated.

Each function takes a sample, the settings of its measure, and `by_row`: whether the residuals of each row are needed,
to resample rows. Sums over columns are enough if no two columns share a row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refocal import _check
from refocal.metrics import smooth_error
from refocal.metrics.binned import check_bins, top_k_events
from refocal.metrics.classwise import REDUCTIONS, Reduction, class_columns
from refocal.metrics.inputs import Events, Sample, concatenate_events
from refocal.metrics.kernel_error import KERNEL_CLASSES, KernelClasses
from refocal.stats.binning import BINS, Binning, bin_index, dropped_bin, mass_index_of_counts, width_index
from refocal.stats.gap_norms import GapNorm, calibration_error
from refocal.stats.inverted_tests import NormFunction
from refocal.stats.resampling import (
    Gaps,
    HitFunction,
    ResidualColumns,
    calibrated_hits,
    class_hits,
    group_cells,
    residual_matrix,
)
from refocal.stats.simulated_sums import ColumnSums, sum_columns

_TINY = float(np.finfo(np.float64).tiny)
_END_LEVELS = 20
# How much of the noise in the mass of a bin is noise of the measure.
_MASS_SHARES: dict[GapNorm, float] = {"l1": 1.0, "l2": 0.5, "max": 0.0}


def binned_residuals(
    sample: Sample,
    *,
    by_row: bool,
    bins: int,
    binning: Binning,
    norm: GapNorm,
    debias: bool = False,  # noqa: ARG001 the truth that an interval is for has no bias
) -> Gaps:
    """The residuals of `ece`, `adaptive_ece` and, with norm="max", `mce`."""
    return event_residuals(sample.all_events(), by_row=by_row, bins=bins, binning=binning, norm=norm)


def top_k_residuals(sample: Sample, *, by_row: bool, k: int, bins: int, binning: Binning, norm: GapNorm) -> Gaps:
    """The residuals of `top_k_ece`."""
    events = top_k_events(sample, k=_check.count(k, "k", most=sample.classes))
    return event_residuals(events, by_row=by_row, bins=bins, binning=binning, norm=norm)


def event_residuals(events: Events, *, by_row: bool, bins: int, binning: Binning, norm: GapNorm) -> Gaps:
    """One column for each bin of confidence."""
    check_bins(bins, binning, norm)
    index, size = bin_index(events.confidence, events.weights, bins=bins, binning=binning)
    columns = _sum_events(events, index, size)
    shares = columns.weight
    drop = dropped_bin(bins=bins, binning=binning)
    if drop is not None:
        columns = _empty(columns, drop)
    return Gaps(
        columns,
        _event_hits(events, np.where(index == drop, size, index), size),
        lambda gaps: calibration_error(gaps, shares, norm=norm),
        **_rows(events, index, size, by_row=by_row, drop=drop),
        mass_share=_MASS_SHARES[norm],
    )


def classwise_residuals(
    sample: Sample,
    *,
    by_row: bool,  # noqa: ARG001 a row lies in one bin of every class, so rows are always needed
    bins: int,
    binning: Binning,
    norm: GapNorm,
    reduction: Reduction,
) -> Gaps:
    """The residuals of `classwise_ece`."""
    _check.one_of(reduction, "reduction", REDUCTIONS)
    return class_residuals(sample, bins=bins, binning=binning, norm=norm, reduction=reduction, above=-1.0)


def thresholded_residuals(
    sample: Sample,
    *,
    by_row: bool,  # noqa: ARG001 as for `classwise_residuals`
    threshold: float,
    bins: int,
    binning: Binning,
) -> Gaps:
    """The residuals of `thresholded_ece`."""
    above = _check.share(threshold, "threshold")
    return class_residuals(sample, bins=bins, binning=binning, norm="l1", reduction="mean", above=above)


def class_residuals(
    sample: Sample, *, bins: int, binning: Binning, norm: GapNorm, reduction: Reduction, above: float
) -> Gaps:
    """One column for each bin of each class that has probabilities above the threshold."""
    check_bins(bins, binning, norm)
    exclusive = sample.classes > 1  # exactly one class of a row comes true
    rows, width = (int(np.count_nonzero(sample.counts())), sample.classes) if exclusive else sample.shape[:2]
    weight = np.zeros(rows)
    residuals = ResidualColumns(rows, width)
    classes: list[ColumnSums] = []
    masses: list[np.ndarray] = []
    parts: list[tuple[Events, np.ndarray]] = []
    held = (rows, width) if exclusive else (0, 0)
    probs, column = np.zeros(held, dtype=np.float32), np.full(held, -1, dtype=np.int32)
    drop = dropped_bin(bins=bins, binning=binning)
    for number, (places, events) in enumerate(class_columns(sample)):
        own = events.scale
        weight[places] += own
        if exclusive:
            probs[:, number] = events.confidence
        keep = np.flatnonzero((events.confidence > above) & (own > 0))
        if len(keep) == 0:
            continue
        part = Events(events.confidence[keep], events.correct[keep], None if events.weights is None else own[keep])
        index, size = bin_index(part.confidence, part.weights, bins=bins, binning=binning)
        residual = part.scale * (part.confidence - part.correct.astype(np.float64))
        residual[index == drop] = 0.0
        residuals.add(places[keep], index, residual, size=size)
        used = np.where(index == drop, -1, len(classes) * size + index)
        if exclusive:
            column[keep, number] = used
        else:
            parts.append((part, used))
        sums = _sum_events(part, index, size, total=1.0)
        masses.append(sums.weight)
        classes.append(sums if drop is None else _empty(sums, drop))
    if not masses:
        msg = f"some probability must be above the threshold {above:g}, got none"
        raise ValueError(msg)
    total = float(weight.sum())
    mass = np.array(masses) / total
    powers = (1, 2, 1, 1, 2)  # of the weights in each sum
    columns = ColumnSums(
        *(np.concatenate(part) / total**power for part, power in zip(zip(*classes, strict=True), powers, strict=True))
    )

    def draw_hits(resamples: int, rng: np.random.Generator) -> np.ndarray:
        if exclusive:
            np.putmask(column, column < 0, mass.size)
            scale = weight / (width * total)
            return class_hits(probs, column, scale, size=mass.size, resamples=resamples, rng=rng)
        joined = concatenate_events([part for part, _ in parts])
        where = np.concatenate([used for _, used in parts])
        return _event_hits(joined, np.where(where < 0, mass.size, where), mass.size, total=total)(resamples, rng)

    def error(gaps: np.ndarray) -> np.ndarray:
        errors = calibration_error(gaps.reshape(*gaps.shape[:-1], *mass.shape), mass, norm=norm)
        return errors.mean(axis=-1) if reduction == "mean" else errors.sum(axis=-1)

    return Gaps(
        columns,
        draw_hits,
        error,
        residuals.matrix(),
        weight,
        depends=True,
        groups=len(mass),
        pools=np.tile(np.arange(mass.shape[1]), len(mass)),
        mass_share=_MASS_SHARES[norm],
        most=1.0 if reduction == "mean" else float(len(mass)),
    )


def smooth_residuals(sample: Sample, *, by_row: bool) -> Gaps:
    """The residuals of `smooth_ece`. The norm finds the bandwidth of each sum, as the measure does."""
    events = sample.all_events()
    bandwidth = smooth_error.find_smooth_error(events).bandwidth
    widths = np.unique(np.minimum(1.0, bandwidth * np.geomspace(1 / 5, 5, 9)))  # with the bandwidth itself
    level = width_index(events.confidence, bins=int(np.clip(8 / bandwidth, 200, 800))) + _END_LEVELS
    # The measure reflects its grid without the ends, so a claim in the first or last step counts the less, the nearer
    # it is to 0 or 1. Levels are narrow there.
    narrow = _END_LEVELS * (smooth_error.grid_points(bandwidth) - 1)
    place = width_index(events.confidence, bins=narrow)
    level = np.where(place < _END_LEVELS, place, level)
    level = np.where(place >= narrow - _END_LEVELS, place + narrow, level)

    def norm(places: np.ndarray, mass: np.ndarray) -> NormFunction:
        kernels = [_smoothing_matrix(places, width) for width in widths]
        kernels = [kernel / np.sum(mass @ kernel) for kernel in kernels]

        def error(sums: np.ndarray) -> np.ndarray:
            rows = sums.reshape(-1, sums.shape[-1])
            found = _fixed_point(widths, lambda k, some: np.abs(rows[some] @ kernels[k]).sum(axis=-1), len(rows))
            return found.reshape(sums.shape[:-1])

        return error

    return _level_residuals(events, level, norm, by_row=by_row)


def _smoothing_matrix(places: np.ndarray, width: float) -> np.ndarray:
    """The smoothed value of a unit at each place, at some points of the measure, (M, points).

    Each value is multiplied by the number of points that it stands for: between two, the values count as a line.
    """
    grid = smooth_error.grid_points(width)
    lower, share = smooth_error.neighbors(places, points=grid)
    alone = np.zeros((len(places), grid))
    rows = np.arange(len(places))
    alone[rows, lower] = 1 - share
    alone[rows, lower + 1] = share
    smooth = smooth_error.smooth(alone, bandwidth=width)
    every = np.arange(smooth.shape[1])
    kept = np.linspace(0, every[-1], int(np.clip(5 / width, 100, 500))).round().astype(np.intp)
    lines = np.array([np.interp(every, kept, unit).sum() for unit in np.eye(len(kept))])
    return smooth[:, kept] * lines


def _fixed_point(widths: np.ndarray, error: Callable[[int, np.ndarray], np.ndarray], rows: int) -> np.ndarray:
    """Find the errors (rows,) at the first width, of those that the measure tries, where they are at most the width.

    The search is a bisection. Between two neighbors among `widths`, the error is taken to be a power of the width;
    beyond the first and the last, it is that of the nearest one.

    Args:
        widths: Rising widths (W,).
        error: From the number of a width and the numbers of rows to their errors, which fall as the width grows.
        rows: The number of rows.
    """
    low, high = np.zeros(rows, dtype=np.intp), np.full(rows, len(widths) - 1)
    known = np.full((len(widths), rows), np.nan)

    def require(at: np.ndarray, some: np.ndarray) -> None:
        for number in np.flatnonzero(np.bincount(at[some])).tolist():
            wanted = some[(at[some] == number) & np.isnan(known[number, some])]
            known[number, wanted] = np.log(np.maximum(error(number, wanted), _TINY))

    def look_up(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        require(low, everyone)
        require(high, everyone)
        return known[low, everyone], known[high, everyone], lines[low], lines[high]

    everyone, lines = np.arange(rows), np.log(widths)
    while len(open_rows := np.flatnonzero(high - low > 1)):
        middle = (low + high) // 2
        require(middle, open_rows)
        above = known[middle[open_rows], open_rows] >= lines[middle[open_rows]]
        low[open_rows[above]], high[open_rows[~above]] = middle[open_rows[above]], middle[open_rows[~above]]
    at_low, at_high, left, right = look_up(low, high)
    fall = (at_low - left) + (right - at_high)  # of the error against the width
    share = np.clip(np.divide(at_low - left, fall, out=np.zeros(rows), where=fall > 0), 0, 1)
    width = np.log(smooth_error.round_up(np.exp(left + share * (right - left))))
    # Rounded up, the width may lie between two other neighbors, or beyond the last.
    low = np.clip(np.searchsorted(lines, width, side="right") - 1, 0, max(0, len(widths) - 2))
    high = np.minimum(low + 1, len(widths) - 1)
    at_low, at_high, left, right = look_up(low, high)
    share = np.clip(np.divide(width - left, right - left, out=np.zeros(rows), where=right > left), 0, 1)
    found: np.ndarray = np.exp(at_low + share * (at_high - at_low))
    return found


def kernel_residuals(
    sample: Sample, *, by_row: bool, kernel_width: float, unbiased: bool, classes: KernelClasses
) -> Gaps:
    """The residuals of `kernel_calibration_error` for the top label."""
    _check.one_of(classes, "classes", KERNEL_CLASSES)  # for events, both mean the same
    width = _check.positive(kernel_width, "kernel_width")

    def norm(places: np.ndarray, _: np.ndarray) -> NormFunction:
        values, vectors = np.linalg.eigh(np.exp(-np.abs(places[:, None] - places) / width))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return lambda sums: np.sqrt(np.sum((sums @ root) ** 2, axis=-1))

    events = sample.all_events()
    level = width_index(events.confidence, bins=int(np.clip(20 / width, 200, 1000)))
    gaps = _level_residuals(events, level, norm, by_row=by_row)
    return gaps._replace(power=2 if unbiased else 1)


def _level_residuals(events: Events, level: np.ndarray, norm: Callable[..., NormFunction], *, by_row: bool) -> Gaps:
    """Residuals at many levels of confidence, from a function of their mean confidences and masses to the norm.

    `level` (n,) numbers the level of each event, from the lowest to the highest.
    """
    _, index = np.unique(level, return_inverse=True)
    size = int(index.max()) + 1
    columns = _sum_events(events, index, size)
    used = columns.weight > 0
    places = np.divide(columns.claim, columns.weight, out=np.zeros(size), where=used)
    # The gaps of a truth: one value for each of 15 groups of levels, since a level has too few samples for its own.
    blocks = mass_index_of_counts(columns.weight, bins=BINS)
    return Gaps(
        columns,
        _event_hits(events, index, size),
        norm(places, columns.weight),
        **_rows(events, index, size, by_row=by_row, drop=None),
        blocks=blocks,
    )


def _event_hits(events: Events, index: np.ndarray, size: int, *, total: float | None = None) -> HitFunction:
    """Hits of claims that come true independently. Claims with index `size` are left out."""
    cells = group_cells(events.confidence, np.zeros(len(index), dtype=bool), events.weights, index)
    scale = float(np.sum(events.scale)) if total is None else total

    def draw_hits(resamples: int, rng: np.random.Generator) -> np.ndarray:
        return calibrated_hits(cells, resamples=resamples, bins=size + 1, rng=rng)[:, :size] / scale

    return draw_hits


def _sum_events(events: Events, index: np.ndarray, size: int, *, total: float | None = None) -> ColumnSums:
    weight = events.scale / (float(np.sum(events.scale)) if total is None else total)
    return sum_columns(index, events.confidence.astype(np.float64), events.correct, weight, size=size)


def _rows(events: Events, index: np.ndarray, size: int, *, by_row: bool, drop: int | None) -> dict[str, Any]:
    """The residuals of each row, for `Gaps`."""
    if not by_row:
        return {}
    residual = events.scale * (events.confidence.astype(np.float64) - events.correct)
    residual[index == drop] = 0.0
    matrix = residual_matrix(np.arange(len(index)), index, residual, (len(index), size))
    return {"residuals": matrix, "weight": events.scale}


def _empty(columns: ColumnSums, drop: int) -> ColumnSums:
    """The columns without the claims of one of them."""
    return ColumnSums(*(np.where(np.arange(len(part)) == drop, 0.0, part) for part in columns))
