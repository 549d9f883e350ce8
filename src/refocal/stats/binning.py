"""Reliability bins: the bin of each confidence, and sums over bins in float64."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np

from refocal.stats.proper_scores import true_places

FixedBinning = Literal["equal_width", "guo2017", "torchmetrics"]  # edges that do not depend on the data
AdaptiveBinning = Literal["equal_mass", "mukhoti2020"]  # equally many samples per bin
Binning = FixedBinning | AdaptiveBinning

FIXED: tuple[FixedBinning, ...] = get_args(FixedBinning)
ADAPTIVE: tuple[AdaptiveBinning, ...] = get_args(AdaptiveBinning)
BINNINGS: tuple[Binning, ...] = FIXED + ADAPTIVE
BINS = 15  # the default, as in Mukhoti et al. (2020), section 6, and Komisarenko and Kull (2024), section 5.1


class Bins(NamedTuple):
    """Sums over confidence bins; without weights, `samples` is a count."""

    samples: np.ndarray
    confidence: np.ndarray
    correct: np.ndarray

    @property
    def expected_calibration_error(self) -> float:
        """The mean over samples of |confidence - accuracy| of their bin."""
        return float(np.sum(np.abs(self.confidence - self.correct)) / np.sum(self.samples))


class PairSums(NamedTuple):
    """Sums over bins of w^2 and w^2 r^2 with r = confidence - correct, for means over pairs of different samples."""

    weight: np.ndarray
    residual: np.ndarray


def equal_width_bins(confidence: np.ndarray, correct: np.ndarray, *, bins: int) -> Bins:
    """Sums over `bins` bins of equal width."""
    return bin_sums(width_index(confidence, bins=bins), confidence, correct, size=bins)


def equal_mass_bins(confidence: np.ndarray, correct: np.ndarray, *, bins: int) -> Bins:
    """Sums over `bins` bins with equally many samples; equal confidences share the lower of their bins."""
    edges = mass_edges(confidence, None, bins=bins)
    return bin_sums(np.searchsorted(edges, confidence, side="left"), confidence, correct, size=bins)


def width_index(confidence: np.ndarray, *, bins: int) -> np.ndarray:
    """The right-closed bin (i / bins, (i + 1) / bins] of each confidence; confidence 0 is in the first bin."""
    scaled = confidence * np.float64(bins)
    upper = np.ceil(scaled)
    index = upper.astype(np.int32)
    index -= 1
    np.minimum(np.maximum(index, 0, out=index), bins - 1, out=index)
    if confidence.dtype == np.float64:  # the rounded product may lie on the wrong side of an edge
        upper -= scaled
        upper -= 0.5
        from_middle = np.abs(upper, out=upper)  # of the bin; its edges are at distance 0.5
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
    # The smallest confidence at which the share is reached; the factor absorbs rounding of the sums.
    wanted = np.arange(1, bins) * (total[-1] / bins) * (1 - 1e-12)
    return confidence[order][np.searchsorted(total, wanted, side="left")]


def mass_index_of_counts(counts: np.ndarray, *, bins: int) -> np.ndarray:
    """The equal-mass bin of each cell of a histogram; the samples of a cell share the lower of their bins."""
    total = np.cumsum(counts)
    wanted = np.arange(1, bins) * (total[-1] / bins) * (1 - 1e-12)
    upper_edges = np.searchsorted(total, wanted, side="left")
    return np.searchsorted(upper_edges, np.arange(len(counts)), side="left")


def bin_index(
    confidence: np.ndarray, weights: np.ndarray | None, *, bins: int, binning: Binning
) -> tuple[np.ndarray, int]:
    """The bin of each confidence, and the number of bins; samples that a convention drops get the last bin.

    "equal_width" and "equal_mass" drop nothing. The others reproduce the conventions behind published numbers:

    - "guo2017": (a, b] between the float32 edges of torch.linspace; confidence 0 is dropped.
    - "torchmetrics": [a, b) between the same edges; confidence 1 gets its own bin.
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


def dropped_bin(*, bins: int, binning: Binning) -> int | None:
    """The bin whose samples a convention leaves out of its error, or None."""
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
        # One count of (bin, correct) gives both sums; weighted counts are several times slower.
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
    """Sums (K, bins) of samples, probabilities and hits, over equal-width bins of the probability of each class."""
    rows, classes = probs.shape
    size = classes * bins
    by_class = np.ascontiguousarray(probs.T)
    # Most probabilities lie in the first bin, which needs no index.
    above = by_class > np.float64(1 / bins)
    places = np.flatnonzero(above)
    values = by_class.reshape(-1).take(places)
    index = width_index(values, bins=bins)
    counts = np.diff(np.searchsorted(places, rows * np.arange(classes + 1)))
    index += np.repeat(bins * np.arange(classes, dtype=index.dtype), counts)
    scale = None if weights is None else weights.take(places % rows)
    weighted = values if scale is None else scale * values
    samples, confidence = (  # the cast is for empty input, for which NumPy returns integers
        np.bincount(index, weights=part, minlength=size).astype(np.float64).reshape(classes, bins)
        for part in (scale, weighted)
    )
    first = by_class.copy()
    first.reshape(-1)[places] = 0.0
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
    """The sums that `debiased_squares` needs in addition to `bin_sums`."""
    residual = confidence.astype(np.float64) - correct
    scale = np.ones(len(index)) if weights is None else weights
    return PairSums(
        np.bincount(index, weights=scale**2, minlength=size),
        np.bincount(index, weights=(scale * residual) ** 2, minlength=size),
    )


def _float32_edges(bins: int) -> np.ndarray:
    """The float32 edges of torch.linspace(0, 1, bins + 1), bit for bit.

    torch counts up from 0 in the first half and down from 1 in the second. The step is rounded to float32; product and
    difference are rounded once, together.
    """
    step = np.float64(np.float32(1) / np.float32(bins))
    count = np.arange(bins + 1)
    return np.where(count < (bins + 1) // 2, step * count, 1 - step * (bins - count)).astype(np.float32)
