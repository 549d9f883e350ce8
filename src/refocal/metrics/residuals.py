"""Calibration errors as norms of summed residuals, the form in which they are resampled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from refocal import _check
from refocal.metrics import binned as calibration
from refocal.metrics import classwise
from refocal.metrics import kernel_error as kernel
from refocal.metrics import smooth_error as smooth
from refocal.metrics.inputs import Events, Sample, read
from refocal.stats.binning import bin_index, dropped_bin
from refocal.stats.gap_norms import calibration_error
from refocal.stats.resampling import Cells, Gaps, ResidualColumns, as_cells, residual_matrix

Array = Any


def gaps_of(
    measure: Callable[..., float],
    scores: Array,
    labels: Array,
    common: dict[str, Any],
    settings: dict[str, Any],
    *,
    compress: bool = True,
) -> Gaps:
    """The residuals of a measure with its settings; without `compress`, one row for each sample."""
    if measure in (classwise.classwise_ece, classwise.thresholded_ece):
        classwise.check_task(common["task"])
    sample = read(scores, labels, **common)
    return GAPS[measure](sample, compress=compress, **settings)


def _binned(
    sample: Sample,
    *,
    compress: bool,
    bins: int = 15,
    binning: str = "equal_width",
    norm: str = "l1",
    debias: bool = False,  # noqa: ARG001 the truth that an interval is for has no bias
) -> Gaps:
    return _event_gaps(sample.all_events(), compress=compress, bins=bins, binning=binning, norm=norm)


def _adaptive(sample: Sample, *, compress: bool, binning: str = "equal_mass", **settings: Any) -> Gaps:
    return _binned(sample, compress=compress, binning=binning, **settings)


def _largest(sample: Sample, *, compress: bool, bins: int = 15, binning: str = "equal_width") -> Gaps:
    return _binned(sample, compress=compress, bins=bins, binning=binning, norm="max")


def _top_k(
    sample: Sample, *, compress: bool, k: int, bins: int = 15, binning: str = "equal_width", norm: str = "l1"
) -> Gaps:
    events = calibration.top_k_events(sample, k=_check.count(k, "k", most=sample.classes))
    return _event_gaps(events, compress=compress, bins=bins, binning=binning, norm=norm)


def _event_gaps(events: Events, *, compress: bool, bins: int, binning: str, norm: str) -> Gaps:
    _check.count(bins, "bins")
    _check.one_of(binning, "binning", calibration.BINNINGS)
    _check.one_of(norm, "norm", calibration.NORMS)
    index, size = bin_index(events.confidence, events.weights, bins=bins, binning=binning)
    cells = _cells(events, index, compress=compress)
    mass = cells.copies * cells.weight
    shares = np.bincount(cells.bin, weights=mass, minlength=size) / mass.sum()
    residual = cells.weight * (cells.confidence - cells.correct)
    residual[cells.bin == dropped_bin(bins=bins, binning=binning)] = 0.0
    matrix = residual_matrix(np.arange(len(mass)), cells.bin, residual, (len(mass), size))
    return Gaps(matrix, cells.weight, cells.copies, lambda gaps: calibration_error(gaps, shares, norm=norm))


def _classwise(
    sample: Sample,
    *,
    compress: bool,  # noqa: ARG001 a sample is in one bin of every class: none are equal
    bins: int = 15,
    binning: str = "equal_width",
    norm: str = "l1",
    reduction: str = "mean",
) -> Gaps:
    _check.one_of(norm, "norm", calibration.NORMS)
    _check.one_of(reduction, "reduction", ("mean", "sum"))
    return _class_gaps(sample, bins=bins, binning=binning, norm=norm, reduction=reduction, above=-1.0)


def _thresholded(
    sample: Sample,
    *,
    compress: bool,  # noqa: ARG001 as for `_classwise`
    threshold: float = 0.01,
    bins: int = 15,
    binning: str = "equal_mass",
) -> Gaps:
    above = _check.share(threshold, "threshold")
    return _class_gaps(sample, bins=bins, binning=binning, norm="l1", reduction="mean", above=above)


def _class_gaps(sample: Sample, *, bins: int, binning: str, norm: str, reduction: str, above: float) -> Gaps:
    """One column for each bin of each class that has probabilities above the threshold."""
    _check.count(bins, "bins")
    _check.one_of(binning, "binning", calibration.BINNINGS)
    weight = np.zeros(sample.shape[0] if sample.classes == 1 else np.count_nonzero(sample.counts()))
    residuals = ResidualColumns(len(weight), sample.shape[1] if sample.classes == 1 else sample.classes)
    masses: list[np.ndarray] = []
    drop = dropped_bin(bins=bins, binning=binning)
    for places, events in classwise.class_columns(sample):
        own = np.ones(len(events.correct)) if events.weights is None else events.weights
        weight[places] += own
        keep = np.flatnonzero(events.confidence > above)
        if not own[keep].any():
            continue
        confidence, scale = events.confidence[keep], own[keep]
        index, size = bin_index(confidence, None if events.weights is None else scale, bins=bins, binning=binning)
        residual = scale * (confidence - events.correct[keep].astype(np.float64))
        residual[index == drop] = 0.0
        residuals.add(places[keep], index, residual, size=size)
        masses.append(np.bincount(index, weights=scale, minlength=size))
    if not masses:
        msg = f"some probability must be above the threshold {above:g}, got none"
        raise ValueError(msg)
    mass = np.array(masses) / weight.sum()

    def error(gaps: np.ndarray) -> np.ndarray:
        of_classes = calibration_error(gaps.reshape(*gaps.shape[:-1], *mass.shape), mass, norm=norm)
        return of_classes.mean(axis=-1) if reduction == "mean" else of_classes.sum(axis=-1)

    most = 1.0 if reduction == "mean" else float(len(mass))
    return Gaps(residuals.matrix(), weight, np.ones(len(weight)), error, most=most)


def _smooth(sample: Sample, *, compress: bool) -> Gaps:
    events = sample.all_events()
    bandwidth = smooth.smoothed(events).bandwidth
    cells = _cells(events, np.zeros(len(events.correct), dtype=np.int32), compress=compress)
    points = smooth.grid_points(bandwidth)
    matrix = _spread(cells, points)
    mass = smooth.smooth(
        smooth.on_grid(cells.confidence, cells.copies * cells.weight, points=points), bandwidth=bandwidth
    )
    scale = float(mass.sum() / (cells.copies @ cells.weight))
    return Gaps(
        matrix,
        cells.weight,
        cells.copies,
        lambda gaps: np.sum(np.abs(gaps), axis=-1) / scale,
        lambda sums: smooth.smooth(sums, bandwidth=bandwidth),
    )


def _kernel(
    sample: Sample, *, compress: bool, kernel_width: float = 0.4, unbiased: bool = False, classes: str = "top"
) -> Gaps:
    _check.one_of(classes, "classes", ("top", "all"))  # of events, both are one
    width = _check.positive(kernel_width, "kernel_width")
    events = sample.all_events()
    cells = _cells(events, np.zeros(len(events.correct), dtype=np.int32), compress=compress)
    points = int(np.clip(np.ceil(50 / width), 200, 2000))
    root = _kernel_root(points, width)
    return Gaps(
        _spread(cells, points),
        cells.weight,
        cells.copies,
        lambda gaps: np.sqrt(np.sum(gaps**2, axis=-1)),
        lambda sums: sums @ root,
        power=2 if unbiased else 1,
    )


@functools.lru_cache(maxsize=1)  # the next model's, or the next split's, is mostly that of the same kernel
def _kernel_root(points: int, width: float) -> np.ndarray:
    """The quadratic form of the kernel as a sum of squares: |v root|^2 = sum of v_i v_j exp(-|x_i - x_j| / width)."""
    places = np.linspace(0, 1, points)
    values, vectors = np.linalg.eigh(np.exp(-np.abs(places[:, None] - places) / width))
    return vectors * np.sqrt(np.maximum(values, 0.0))


def _cells(events: Events, index: np.ndarray, *, compress: bool) -> Cells:
    weights = events.weights
    if not compress and weights is None:
        weights = np.ones(len(events.correct))
    return as_cells(events.confidence, events.correct, weights, index)


def _spread(cells: Cells, points: int) -> Any:
    """Residuals split between their neighbors on a grid, as `smooth.on_grid` does."""
    lower, share = smooth.neighbors(cells.confidence, points=points)
    residual = cells.weight * (cells.confidence - cells.correct)
    rows = np.arange(len(residual))
    return residual_matrix(
        np.concatenate([rows, rows]),
        np.concatenate([lower, lower + 1]),
        np.concatenate([(1 - share) * residual, share * residual]),
        (len(residual), points),
    )


GAPS: dict[Callable[..., float], Callable[..., Gaps]] = {
    calibration.ece: _binned,
    calibration.adaptive_ece: _adaptive,
    calibration.mce: _largest,
    calibration.top_k_ece: _top_k,
    classwise.classwise_ece: _classwise,
    classwise.thresholded_ece: _thresholded,
    smooth.smooth_ece: _smooth,
    kernel.kernel_calibration_error: _kernel,
}
