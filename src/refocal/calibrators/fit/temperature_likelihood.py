"""The likelihood of labels under temperature scaling, with exact first and second derivatives.

Temperature scaling is softmax(beta d) with d = logits - max and beta = 1 / T. Its negative log-likelihood (NLL) is
convex in beta. Rows are processed in blocks that fit into a core's cache, so the memory does not grow with the data.
Sums over rows are in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from refocal.calibrators.fit.descent import Quadratic, Slope

_BLOCK_BYTES = 1 << 18  # size of one temporary: a few of them fit into a core's cache
_BLOCK_ROWS = 8192  # columns of this length fit into the cache, too

_FEW_CLASSES = 64
_ROWS_FOR_SCALE = 256
_VANISHING = -80.0  # 1 + e^-80 is 1, also in float64


MASKED = 1e4  # leads; classes farther below the top count as masked
_LARGEST_LEAD = 1e3  # that is usual among the scores of networks; log-probabilities lead by less
_FEW = 0.05  # of the rows; if so many have more than one class that is not masked, they are found
_FAR_BELOW = 1e6  # spreads; logits farther below the top count as this far: e^-100 is 0 even for the least beta


FocalNLL = Callable[..., Quadratic]  # a function of gamma and beta, with keywords `exact` and `curvature`


class Scales(NamedTuple):
    """Typical distances between the logits of a row. They are medians, so masks and outliers do not matter.

    Attributes:
        lead: Distance between the two largest logits of a row.
        spread: Distance of a logit below the largest of its row, masked classes aside. 0 if every row is constant.
    """

    lead: float
    spread: float

    @classmethod
    def measure(cls, logits: np.ndarray, top: np.ndarray) -> Scales:
        """Measure up to 512 rows (N, K) with these largest logits (N,). All rows are measured if those are constant."""
        step = max(1, len(logits) // _ROWS_FOR_SCALE)
        found = cls._measure(logits[::step], top[::step])
        return found if found.spread or step == 1 else cls._measure(logits, top)

    @classmethod
    def _measure(cls, logits: np.ndarray, top: np.ndarray) -> Scales:
        with np.errstate(over="ignore"):
            distances = top.astype(np.float64)[:, None] - logits
        distances[~(distances > 0)] = np.inf  # the top class and its equals
        leads = distances.min(axis=1)
        leads = leads[np.isfinite(leads)]
        if not len(leads):
            return cls(0.0, 0.0)
        lead = float(np.median(leads[find_open_rows(leads)]))
        return cls(lead, float(np.median(distances[distances <= MASKED * lead])))


def find_open_rows(leads: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Find the rows with more than one class that is not masked with a finite number such as -1e9.

    They are told from others only if they are the smaller part. If they are the larger part, medians are theirs.

    Args:
        leads: Distance between the two largest logits of each row (N,).
        weights: Weights of the rows (N,), or None if they are equal.

    Returns:
        Whether each row counts (N,).
    """
    least, middle = np.quantile(leads, [_FEW, 0.5], weights=weights, method="inverted_cdf")
    open_rows: np.ndarray = leads <= (MASKED * least if middle > _LARGEST_LEAD else np.inf)
    return open_rows


class LabeledLogits(NamedTuple):
    """Logits with their labels, prepared once for many evaluations of a likelihood.

    Attributes:
        logits: (N, K), finite, float32 or float64. Masked classes, such as -inf, lie a million spreads below the top.
        labels: (N,) class indices.
        share: (N,) weights of the rows, summing to 1.
        samples: The number of samples: rows, or the sum of their weights.
        top: (N,) the largest logit of each row.
        label_gap: (N,) logit of the true class minus `top`, <= 0, in float64.
        scales: Typical distances between the logits of a row.
    """

    logits: np.ndarray
    labels: np.ndarray
    share: np.ndarray
    samples: float
    top: np.ndarray
    label_gap: np.ndarray
    scales: Scales

    @classmethod
    def prepare(cls, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> LabeledLogits:
        """Prepare logits (N, K) with class indices (N,); `weights` (N,) have a positive sum, or are None if equal.

        A label must not be a masked class.
        """
        rows = len(logits)
        samples = float(rows if weights is None else weights.sum())
        share = np.full(rows, 1 / rows) if weights is None else weights / samples
        top = np.empty(rows, logits.dtype)
        if logits.shape[1] >= _FEW_CLASSES:  # the arg max of rows is faster than their maximum
            top = logits[np.arange(rows), np.argmax(logits, axis=1)]
        else:  # the maximum along whole columns
            for start in range(0, rows, _BLOCK_ROWS):
                block = slice(start, start + _BLOCK_ROWS)
                np.max(np.ascontiguousarray(logits[block].T), axis=0, out=top[block])
        scales = Scales.measure(logits, top)
        # If no row has two different logits that are not masked, only their size tells a unit.
        farthest = _FAR_BELOW * (scales.spread or max(1.0, float(np.max(np.abs(top)))))
        depth, largest = float(top.max()) - float(logits.min()), float(np.finfo(logits.dtype).max)
        if farthest < min(depth, largest):
            logits = np.maximum(logits, top[:, None] - logits.dtype.type(farthest))
        elif depth > largest:
            far = float(np.max(np.abs(logits)))
            msg = f"logits must have differences that are finite in {logits.dtype}, got logits of size {far:g}"
            raise ValueError(msg)
        own = logits[np.arange(rows), labels]
        gap = own.astype(np.float64) - top.astype(np.float64)
        return cls(logits, labels, share, samples, top, gap, scales)

    @property
    def classes(self) -> int:
        """The number of classes, K."""
        return self.logits.shape[1]

    @property
    def single(self) -> bool:
        """Whether the logits are float32."""
        return self.logits.dtype == np.float32

    def sample(self, size: int) -> LabeledLogits | None:
        """About `size` rows for a first guess; None if there are too few rows for this to pay."""
        return self.thin(len(self.logits) // size) if len(self.logits) >= 4 * size else None

    def thin(self, step: int) -> LabeledLogits:
        """Every `step`-th row."""
        rows = slice(None, None, step)
        share = self.share[rows] / self.share[rows].sum()
        kept = self._replace(logits=self.logits[rows], labels=self.labels[rows], share=share)
        return kept._replace(top=self.top[rows], label_gap=self.label_gap[rows])

    def temperature_nll(self, beta: float, *, exact: bool = True, curvature: bool = True) -> Slope:
        """Evaluate `temperature_likelihood` of these rows."""
        return temperature_likelihood(self, beta, exact=exact, curvature=curvature)

    def prepare_focal_nll(self) -> FocalNLL:
        """Prepare `focal_likelihood` of these rows, a function of gamma and beta, for many evaluations."""
        from refocal.calibrators.fit.focal_likelihood import focal_likelihood
        from refocal.calibrators.fit.focal_masses import Parameters, RankedLogits

        ranked = RankedLogits.prepare(self)
        return lambda gamma, beta, **how: focal_likelihood(ranked, Parameters(gamma, beta), **how)


def temperature_likelihood(data: LabeledLogits, beta: float, *, exact: bool = True, curvature: bool = True) -> Slope:
    """Evaluate the NLL in beta = 1 / T, with its first and second derivative.

    They are E[log sum e^(beta d) - beta d_y], E[<d> - d_y] and E[Var d], where <d> and Var d are under the softmax.

    Args:
        data: The logits and labels.
        beta: The inverse temperature, > 0.
        exact: Whether to compute in float64; otherwise in the dtype of the logits, and float32 is faster.
        curvature: Whether to compute the second derivative; otherwise it is None.
    """
    dtype = np.dtype(np.float64) if exact else data.logits.dtype
    value = slope = bend = 0.0
    for block, room in in_blocks(data.logits, dtype, arrays=2, size=_BLOCK_BYTES):
        distance, mass = room
        np.subtract(data.logits[block], data.top[block, None], out=distance, dtype=dtype)
        with np.errstate(over="ignore"):  # a masked class has the lowest logit of its dtype
            np.multiply(distance, beta, out=mass)
        total = np.einsum("ij->i", exp_in_place(mass))
        mean = np.vecdot(mass, distance) / total
        share = data.share[block]
        value += float(share @ (np.log(total) - beta * data.label_gap[block]))
        slope += float(share @ (mean - data.label_gap[block]))
        if curvature:
            mass *= distance
            square = np.vecdot(mass, distance) / total
            bend += float(share @ (square - mean * mean))
    return Slope(value, slope, bend if curvature else None)


def top_softmax(data: LabeledLogits, beta: float) -> np.ndarray:
    """Compute the largest probability of each row of softmax(beta logits), (N,) in float64."""
    confidence = np.empty(len(data.logits))
    for block, room in in_blocks(data.logits, data.logits.dtype, arrays=1, size=_BLOCK_BYTES):
        exponent = np.subtract(data.logits[block], data.top[block, None], out=room[0])
        with np.errstate(over="ignore"):
            exponent *= beta
        confidence[block] = 1.0 / np.einsum("ij->i", exp_in_place(exponent))
    return confidence


def label_likelihoods(data: LabeledLogits, beta: float) -> np.ndarray:
    """Compute the probability of the label of each row under softmax(beta logits), (N,) in float64."""
    likelihoods: np.ndarray = top_softmax(data, beta) * np.exp(beta * data.label_gap)
    return likelihoods


def in_blocks(rows: np.ndarray, dtype: np.dtype, *, arrays: int, size: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Iterate over blocks of rows, each with the same room (arrays, n, K) for temporaries of `size` bytes each."""
    count, classes = rows.shape
    step = min(_BLOCK_ROWS, max(1, size // (classes * dtype.itemsize)))
    room = np.empty((arrays, min(step, count), classes), dtype)
    for start in range(0, count, step):
        block = slice(start, min(start + step, count))
        yield block, room[:, : block.stop - start]


def exp_in_place(exponent: np.ndarray) -> np.ndarray:
    """Compute e^x, and exactly 0 for tiny values: arithmetic with subnormal numbers is a hundred times slower."""
    if exponent.min() < _VANISHING:
        np.putmask(exponent, exponent < _VANISHING, -np.inf)
    return np.exp(exponent, out=exponent)
