"""Reliability bins: which bin a confidence falls in, and the sums over each bin, in float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refocal.stats.proper_scores import true_places

# bins whose edges do not depend on the data, and bins of equally many samples
FIXED = ("equal_width", "guo2017", "torchmetrics")
ADAPTIVE = ("equal_mass", "mukhoti2020")


class Bins(NamedTuple):
    """Sums over bins of the confidence; without weights, `samples` counts."""

    samples: np.ndarray
    confidence: np.ndarray
    correct: np.ndarray

    @property
    def expected_calibration_error(self) -> float:
        """The mean over samples of |confidence - accuracy| of their bin."""
        return float(np.sum(np.abs(self.confidence - self.correct)) / np.sum(self.samples))


class PairSums(NamedTuple):
    """Sums over bins of w^2 and w^2 r^2, r = confidence - correct: what pairs of different samples need."""

    weight: np.ndarray
    residual: np.ndarray


def equal_width_bins(confidence: np.ndarray, correct: np.ndarray, *, bins: int) -> Bins:
    """Sum confidence and correctness over `bins` bins of equal width, in float64."""
    return bin_sums(width_index(confidence, bins=bins), confidence, correct, size=bins)


def equal_mass_bins(confidence: np.ndarray, correct: np.ndarray, *, bins: int) -> Bins:
    """Sum over `bins` bins of equally many samples; equal confidences stay together, in the lower of their bins."""
    edges = mass_edges(confidence, None, bins=bins)
    return bin_sums(np.searchsorted(edges, confidence, side="left"), confidence, correct, size=bins)


def width_index(confidence: np.ndarray, *, bins: int) -> np.ndarray:
    """The right-closed bin (i / bins, (i + 1) / bins] of each confidence; 0 is in the first."""
    scaled = confidence * np.float64(bins)
    upper = np.ceil(scaled)
    index = upper.astype(np.int32)
    index -= 1
    np.minimum(np.maximum(index, 0, out=index), bins - 1, out=index)
    if confidence.dtype == np.float64:  # the product of two float64 is rounded, and may cross an edge near by
        upper -= scaled
        upper -= 0.5
        from_middle = np.abs(upper, out=upper)  # of the bin, whose edges are at 0.5
        close = 0.5 - 1e-12 * bins
        if from_middle.max(initial=0.0) >= close:
            near = np.nonzero((from_middle >= close) & (scaled > 0.5) & (scaled < bins - 0.5))
            edges = np.arange(bins + 1) / bins
            at, found = confidence[near], index[near]
            found -= (at <= edges[found]) & (found > 0)
            found += (at > edges[1:][found]) & (found < bins - 1)
            index[near] = found
    return index


def mass_edges(confidence: np.ndarray, weights: np.ndarray | None, *, bins: int) -> np.ndarray:
    """Upper edges of the first bins - 1 of `bins` bins with equal shares of the samples (or of their weight)."""
    if weights is None:
        last = -(-np.arange(1, bins) * len(confidence) // bins) - 1
        return np.partition(confidence, last)[last]
    order = np.argsort(confidence)
    total = np.cumsum(weights[order])
    # the smallest confidence up to which the share is reached, rounding of the sums apart
    wanted = np.arange(1, bins) * (total[-1] / bins) * (1 - 1e-12)
    return confidence[order][np.searchsorted(total, wanted, side="left")]


def mass_index_of_counts(counts: np.ndarray, *, bins: int) -> np.ndarray:
    """The equal-mass bin of each cell of a histogram; a cell's samples stay together, in the lower of their bins."""
    total = np.cumsum(counts)
    wanted = np.arange(1, bins) * (total[-1] / bins) * (1 - 1e-12)
    upper_edges = np.searchsorted(total, wanted, side="left")
    return np.searchsorted(upper_edges, np.arange(len(counts)), side="left")


def bin_index(confidence: np.ndarray, weights: np.ndarray | None, *, bins: int, binning: str) -> tuple[np.ndarray, int]:
    """The bin of each confidence, and how many there are; what a convention drops has the last one.

    "equal_width" and "equal_mass" drop nothing. The others repeat what published numbers were computed with:

    - "guo2017": (a, b] between edges in float32, as torch.linspace makes them; confidence 0 is dropped.
    - "torchmetrics": [a, b) between the same edges, and confidence 1 in a bin of its own.
    - "mukhoti2020": (a, b] between quantiles; the least confident samples are dropped.
    """
    if binning == "equal_width":
        return width_index(confidence, bins=bins), bins
    if binning == "equal_mass":
        return np.searchsorted(mass_edges(confidence, weights, bins=bins), confidence, side="left"), bins
    if binning == "torchmetrics":
        edges = _float32_edges(bins)
        return np.searchsorted(edges, confidence.astype(np.float32), side="right") - 1, bins + 1
    if binning == "guo2017":
        edges = _float32_edges(bins).astype(np.float64)
    else:
        count = len(confidence)
        positions = np.linspace(0, count, bins + 1)
        edges = np.interp(positions, np.arange(count), np.sort(confidence)).astype(confidence.dtype)
    index = np.searchsorted(edges, confidence, side="left") - 1
    return np.where((index < 0) | (index >= bins), bins, index), bins + 1


def dropped_bin(*, bins: int, binning: str) -> int | None:
    """The bin whose samples a convention leaves out of its error, if there is one."""
    return bins if binning in {"guo2017", "mukhoti2020"} else None


def bin_sums(
    index: np.ndarray,
    confidence: np.ndarray,
    correct: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    size: int,
) -> Bins:
    """Sums over the samples of each bin."""
    if weights is None and correct.dtype == bool:
        # one count of (bin, correct) gives both sums; a weighted count is several times as slow
        both = np.bincount(index + size * correct.astype(index.dtype), minlength=2 * size).reshape(2, size)
        samples, hits = (both[0] + both[1]).astype(np.float64), both[1].astype(np.float64)
        return Bins(samples, np.bincount(index, weights=confidence, minlength=size), hits)
    scale = np.float64(1.0) if weights is None else weights
    return Bins(
        np.bincount(index, weights=weights, minlength=size).astype(np.float64),
        np.bincount(index, weights=scale * confidence, minlength=size),
        np.bincount(index, weights=scale * correct, minlength=size),
    )


def class_sums(
    probs: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, *, bins: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums (K, bins) of samples, probability and hits, over bins of equal width of each class's probability."""
    rows, classes = probs.shape
    size = classes * bins
    by_class = np.ascontiguousarray(probs.T)
    # most probabilities lie in the first bin, which needs no index
    above = by_class > np.float64(1 / bins)
    chosen = np.flatnonzero(above)
    values = by_class.reshape(-1).take(chosen)
    index = width_index(values, bins=bins)
    of_class = np.diff(np.searchsorted(chosen, rows * np.arange(classes + 1)))
    index += np.repeat(bins * np.arange(classes, dtype=index.dtype), of_class)
    scale = None if weights is None else weights.take(chosen % rows)
    weighted = values if scale is None else scale * values
    samples, confidence = (  # of nothing, NumPy counts in integers
        np.bincount(index, weights=part, minlength=size).astype(np.float64).reshape(classes, bins)
        for part in (scale, weighted)
    )
    first = by_class.copy()
    first.reshape(-1)[chosen] = 0.0
    if weights is None:
        samples[:, 0] += rows - samples.sum(axis=1)
        confidence[:, 0] += first.sum(axis=1, dtype=np.float64)
    else:
        samples[:, 0] += ~above @ weights
        confidence[:, 0] += first @ weights
    own = width_index(by_class.reshape(-1).take(true_places(by_class, labels)), bins=bins) + labels * bins
    hits = np.bincount(own, weights=weights, minlength=size).reshape(classes, bins)
    return samples, confidence, hits


def pair_sums(
    index: np.ndarray, confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None, *, size: int
) -> PairSums:
    """The sums that `debiased_squares` needs beside the bins."""
    residual = confidence.astype(np.float64) - correct
    scale = np.ones(len(index)) if weights is None else weights
    return PairSums(
        np.bincount(index, weights=scale**2, minlength=size),
        np.bincount(index, weights=(scale * residual) ** 2, minlength=size),
    )


def _float32_edges(bins: int) -> np.ndarray:
    """Edges as torch.linspace(0, 1, bins + 1) rounds them: from 0 up in the first half, from 1 down in the second.

    The step is rounded to float32; product and difference are rounded once, together.
    """
    step = np.float64(np.float32(1) / np.float32(bins))
    count = np.arange(bins + 1)
    return np.where(count < (bins + 1) // 2, step * count, 1 - step * (bins - count)).astype(np.float32)
