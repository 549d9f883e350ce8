"""Calibration errors as norms of summed residuals, the form in which they are resampled.

Each function takes a sample, the settings of its measure, and `compress`: whether to group similar samples. Without it,
each sample has one row.
"""

from __future__ import annotations

import functools

import numpy as np

from refocal import _check
from refocal.metrics import smooth_error
from refocal.metrics.binned import check_bins, top_k_events
from refocal.metrics.classwise import REDUCTIONS, Reduction, class_columns
from refocal.metrics.inputs import Events, Sample
from refocal.metrics.kernel_error import KERNEL_CLASSES, KernelClasses
from refocal.stats.binning import Binning, bin_index, dropped_bin
from refocal.stats.gap_norms import GapNorm, calibration_error
from refocal.stats.resampling import Cells, Gaps, ResidualColumns, SparseMatrix, group_cells, residual_matrix


def binned_residuals(
    sample: Sample,
    *,
    compress: bool,
    bins: int,
    binning: Binning,
    norm: GapNorm,
    debias: bool = False,  # noqa: ARG001 the truth that an interval is for has no bias
) -> Gaps:
    """The residuals of `ece`, `adaptive_ece` and, with norm="max", `mce`."""
    return _event_residuals(sample.all_events(), compress=compress, bins=bins, binning=binning, norm=norm)


def top_k_residuals(sample: Sample, *, compress: bool, k: int, bins: int, binning: Binning, norm: GapNorm) -> Gaps:
    """The residuals of `top_k_ece`."""
    events = top_k_events(sample, k=_check.count(k, "k", most=sample.classes))
    return _event_residuals(events, compress=compress, bins=bins, binning=binning, norm=norm)


def _event_residuals(events: Events, *, compress: bool, bins: int, binning: Binning, norm: GapNorm) -> Gaps:
    check_bins(bins, binning, norm)
    index, size = bin_index(events.confidence, events.weights, bins=bins, binning=binning)
    cells = _group(events, index, compress=compress)
    mass = cells.copies * cells.weight
    shares = np.bincount(cells.bin, weights=mass, minlength=size) / mass.sum()
    residual = cells.weight * (cells.confidence - cells.correct)
    residual[cells.bin == dropped_bin(bins=bins, binning=binning)] = 0.0
    matrix = residual_matrix(np.arange(len(mass)), cells.bin, residual, (len(mass), size))
    return Gaps(matrix, cells.weight, cells.copies, lambda gaps: calibration_error(gaps, shares, norm=norm))


def classwise_residuals(
    sample: Sample,
    *,
    compress: bool,  # noqa: ARG001 a sample lies in one bin of every class, so no two samples are equal
    bins: int,
    binning: Binning,
    norm: GapNorm,
    reduction: Reduction,
) -> Gaps:
    """The residuals of `classwise_ece`."""
    _check.one_of(reduction, "reduction", REDUCTIONS)
    return _class_residuals(sample, bins=bins, binning=binning, norm=norm, reduction=reduction, above=-1.0)


def thresholded_residuals(
    sample: Sample,
    *,
    compress: bool,  # noqa: ARG001 as for `classwise_residuals`
    threshold: float,
    bins: int,
    binning: Binning,
) -> Gaps:
    """The residuals of `thresholded_ece`."""
    above = _check.share(threshold, "threshold")
    return _class_residuals(sample, bins=bins, binning=binning, norm="l1", reduction="mean", above=above)


def _class_residuals(
    sample: Sample, *, bins: int, binning: Binning, norm: GapNorm, reduction: Reduction, above: float
) -> Gaps:
    """One column for each bin of each class that has probabilities above the threshold."""
    check_bins(bins, binning, norm)
    weight = np.zeros(sample.shape[0] if sample.classes == 1 else np.count_nonzero(sample.counts()))
    residuals = ResidualColumns(len(weight), sample.shape[1] if sample.classes == 1 else sample.classes)
    masses: list[np.ndarray] = []
    drop = dropped_bin(bins=bins, binning=binning)
    for places, events in class_columns(sample):
        own = events.scale
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
        errors = calibration_error(gaps.reshape(*gaps.shape[:-1], *mass.shape), mass, norm=norm)
        return errors.mean(axis=-1) if reduction == "mean" else errors.sum(axis=-1)

    most = 1.0 if reduction == "mean" else float(len(mass))
    return Gaps(residuals.matrix(), weight, np.ones(len(weight)), error, most=most)


def smooth_residuals(sample: Sample, *, compress: bool) -> Gaps:
    """The residuals of `smooth_ece`, at the bandwidth of the sample."""
    events = sample.all_events()
    bandwidth = smooth_error.find_smooth_error(events).bandwidth
    cells = _group(events, np.zeros(len(events.correct), dtype=np.int32), compress=compress)
    points = smooth_error.grid_points(bandwidth)
    matrix = _spread(cells, points)
    grid = smooth_error.sum_on_grid(cells.confidence, cells.copies * cells.weight, points=points)
    mass = smooth_error.smooth(grid, bandwidth=bandwidth)
    scale = float(mass.sum() / (cells.copies @ cells.weight))
    return Gaps(
        matrix,
        cells.weight,
        cells.copies,
        lambda gaps: np.sum(np.abs(gaps), axis=-1) / scale,
        lambda sums: smooth_error.smooth(sums, bandwidth=bandwidth),
    )


def kernel_residuals(
    sample: Sample, *, compress: bool, kernel_width: float, unbiased: bool, classes: KernelClasses
) -> Gaps:
    """The residuals of `kernel_calibration_error` for the top label, on a grid."""
    _check.one_of(classes, "classes", KERNEL_CLASSES)  # for events, both mean the same
    width = _check.positive(kernel_width, "kernel_width")
    events = sample.all_events()
    cells = _group(events, np.zeros(len(events.correct), dtype=np.int32), compress=compress)
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


@functools.lru_cache(maxsize=1)  # the next model mostly uses the same kernel
def _kernel_root(points: int, width: float) -> np.ndarray:
    """A root of the kernel matrix: |v root|^2 is the sum of v_i v_j exp(-|x_i - x_j| / width)."""
    places = np.linspace(0, 1, points)
    values, vectors = np.linalg.eigh(np.exp(-np.abs(places[:, None] - places) / width))
    return vectors * np.sqrt(np.maximum(values, 0.0))


def _group(events: Events, index: np.ndarray, *, compress: bool) -> Cells:
    weights = events.weights if compress else events.scale  # samples with weights are not grouped
    return group_cells(events.confidence, events.correct, weights, index)


def _spread(cells: Cells, points: int) -> SparseMatrix:
    """Residuals split between their neighbors on a grid, as in `smooth_error.sum_on_grid`."""
    lower, share = smooth_error.neighbors(cells.confidence, points=points)
    residual = cells.weight * (cells.confidence - cells.correct)
    rows = np.arange(len(residual))
    return residual_matrix(
        np.concatenate([rows, rows]),
        np.concatenate([lower, lower + 1]),
        np.concatenate([(1 - share) * residual, share * residual]),
        (len(residual), points),
    )
