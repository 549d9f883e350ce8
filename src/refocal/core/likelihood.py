"""The likelihood of labels under scaled logits, with exact first and second derivatives.

Temperature scaling is softmax(beta d) with d = logits - max and beta = 1 / T; its negative log-likelihood (NLL) is
convex in beta. Focal temperature scaling is Psi^gamma(softmax(beta d)). Rows are worked through in blocks that stay
in a core's cache, so the memory needed does not grow with the data; sums over rows are in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from refocal.core.descent import Quadratic, Slope
from refocal.core.focal import focus_of_top

_BLOCK_BYTES = 1 << 18  # of one temporary, so that a few of them stay in a core's cache
_FOCAL_BLOCK_BYTES = 1 << 19  # the focal derivatives amortise some work a row over the classes
_BLOCK_ROWS = 8192  # so that columns stay in the cache, too

_FEW_CLASSES = 64
_ROWS_FOR_SCALE = 1000
_VANISHING = -80.0  # e^-80 beside 1 is nothing, in float64 too
_FAINT = -40.0  # where products of such masses are taken, they end here: beside 1, e^-40 is below rounding
_FAINT_P = 1e-18  # up to here h(p) = p to the last digit, while p^2 may be subnormal


class Labelled(NamedTuple):
    """Logits with their labels, prepared once for many evaluations of a likelihood.

    Attributes:
        logits: (N, K), finite, float32 or float64.
        labels: (N,) class indices.
        share: (N,) weights of the rows, summing to 1.
        samples: How many samples the rows stand for: their number, or the sum of their weights.
        top: (N,) the largest logit of each row.
        label_gap: (N,) logit of the true class minus `top`, <= 0, in float64.
        scale: Mean distance of a logit below its row's largest, in up to 2,000 rows; 0 if every row is constant.
    """

    logits: np.ndarray
    labels: np.ndarray
    share: np.ndarray
    samples: float
    top: np.ndarray
    label_gap: np.ndarray
    scale: float

    @classmethod
    def of(cls, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> Labelled:
        """Prepare; `weights` (N,) are non-negative with a positive sum, None for equal ones."""
        rows = len(logits)
        samples = float(rows if weights is None else weights.sum())
        share = np.full(rows, 1 / rows) if weights is None else weights / samples
        top = np.empty(rows, logits.dtype)
        for block in _blocks(logits, _BLOCK_BYTES, logits.dtype):
            part = logits[block]
            if logits.shape[1] < _FEW_CLASSES:  # along whole vectors
                np.max(np.ascontiguousarray(part.T), axis=0, out=top[block])
            else:
                np.max(part, axis=1, out=top[block])
        some = slice(None, None, max(1, rows // _ROWS_FOR_SCALE))
        scale = float(np.mean(top[some, None] - logits[some], dtype=np.float64))
        if scale == 0:
            scale = float(np.mean(top[:, None] - logits, dtype=np.float64))
        chosen = np.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
        gap = chosen.astype(np.float64) - top.astype(np.float64)
        return cls(logits, labels, share, samples, top, gap, scale)

    @property
    def classes(self) -> int:
        """K."""
        return self.logits.shape[1]

    @property
    def single(self) -> bool:
        """Whether the logits are of single precision."""
        return self.logits.dtype == np.float32

    def sample(self, size: int) -> Labelled | None:
        """About `size` rows for a first guess; None where there are too few to be worth it."""
        return self.thin(len(self.logits) // size) if len(self.logits) >= 4 * size else None

    def thin(self, step: int) -> Labelled:
        """Every `step`-th row."""
        rows = slice(None, None, step)
        share = self.share[rows] / self.share[rows].sum()
        kept = self._replace(logits=self.logits[rows], labels=self.labels[rows], share=share)
        return kept._replace(top=self.top[rows], label_gap=self.label_gap[rows])

    def of_temperature(self, beta: float, *, exact: bool = True, curvature: bool = True) -> Slope:
        """`temperature_likelihood` of these rows."""
        return temperature_likelihood(self, beta, exact=exact, curvature=curvature)

    def of_focal(self, gamma: float, beta: float, *, exact: bool = True, curvature: bool = True) -> Quadratic:
        """`focal_likelihood` of these rows."""
        return focal_likelihood(self, gamma, beta, exact=exact, curvature=curvature)


def temperature_likelihood(data: Labelled, beta: float, *, exact: bool = True, curvature: bool = True) -> Slope:
    """NLL in beta = 1 / T: E[log sum e^(beta d) - beta d_y], E[<d> - d_y] and E[Var d], means under the softmax.

    Args:
        data: The logits and labels.
        beta: The inverse temperature, > 0.
        exact: Whether to compute in float64; else in the precision of the logits, which is faster in float32.
        curvature: Whether the second derivative is wanted; else it is None.
    """
    dtype = np.dtype(np.float64) if exact else data.logits.dtype
    value = slope = bend = 0.0
    for block in _blocks(data.logits, _BLOCK_BYTES, dtype):
        distance = _distances(data, block, dtype)
        mass = _exp(distance * beta, below=_VANISHING)
        total = np.einsum("ij->i", mass)
        mean = np.vecdot(mass, distance) / total
        share = data.share[block]
        value += float(share @ (np.log(total) - beta * data.label_gap[block]))
        slope += float(share @ (mean - data.label_gap[block]))
        if curvature:
            mass *= distance
            square = np.vecdot(mass, distance) / total
            bend += float(share @ (square - mean * mean))
    return Slope(value, slope, bend if curvature else None)


def focal_likelihood(
    data: Labelled, gamma: float, beta: float, *, exact: bool = True, curvature: bool = True
) -> Quadratic:
    """NLL in (gamma, beta) with gradient and Hessian, for gamma > -1 and beta > 0.

    With a_j = log h(p_j) measured from the top class's, NLL = log sum e^(a_j) - a_y, so its gradient is
    <a'> - a'_y and its Hessian Cov(a', a') + <a''> - a''_y, with means under Psi.

    Args:
        data: The logits and labels.
        gamma: The focal parameter.
        beta: The inverse temperature.
        exact: Whether to compute in float64; else in the precision of the logits.
        curvature: Whether the Hessian is wanted, which is half of the work; else it is None.
    """
    dtype = np.dtype(np.float64) if exact else data.logits.dtype
    value = 0.0
    gradient, hessian = np.zeros(2), np.zeros((2, 2))
    work = None
    for block in _blocks(data.logits, _FOCAL_BLOCK_BYTES, dtype):
        share = data.share[block]
        work = _room(work, 11, data.logits[block], dtype)
        distance = _distances(data, block, dtype, out=work[0])
        rows = _focal_rows(distance, data.labels[block], gamma, beta, _Work(*work[1:]), curvature=curvature)
        value += float(share @ rows.loss)
        gradient += rows.first @ share
        if rows.second is not None:
            second = rows.second @ share
            hessian += [[second[0], second[1]], [second[1], second[2]]]
    return Quadratic(value, gradient, hessian if curvature else None)


def top_confidences(data: Labelled, beta: float, *, gamma: float = 0.0) -> np.ndarray:
    """The largest probability of each row of Psi^gamma(softmax(beta logits)), (N,) in float64."""
    confidence = np.empty(len(data.logits))
    work = None
    dtype = data.logits.dtype
    for block in _blocks(data.logits, _FOCAL_BLOCK_BYTES, dtype):
        work = _room(work, 4, data.logits[block], dtype)
        distance = _distances(data, block, dtype, out=work[0])
        if gamma == 0.0:
            distance *= beta
            confidence[block] = 1.0 / np.einsum("ij->i", _exp(distance, below=_VANISHING))
        else:
            confidence[block] = _focal_confidence(distance, gamma, beta, work[1:])
    return confidence


def _blocks(data: np.ndarray, size: int, dtype: np.dtype) -> Iterator[slice]:
    rows, classes = data.shape
    step = min(_BLOCK_ROWS, max(1, size // (classes * dtype.itemsize)))
    return (slice(start, start + step) for start in range(0, rows, step))


def _room(work: np.ndarray | None, arrays: int, rows: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Room for temporaries, the same for every block but the last, which is shorter."""
    if work is None:
        work = np.empty((arrays, *rows.shape), dtype)
    return work[:, : len(rows)]


def _exp(exponent: np.ndarray, *, below: float) -> np.ndarray:
    """e^x in place, exactly 0 below a bound: what is left of subnormal numbers takes a hundred times as long."""
    if exponent.min() < below:
        np.putmask(exponent, exponent < below, -np.inf)
    return np.exp(exponent, out=exponent)


def _distances(data: Labelled, block: slice, dtype: np.dtype, out: np.ndarray | None = None) -> np.ndarray:
    return np.subtract(data.logits[block], data.top[block, None], out=out, dtype=dtype)


class _Row(NamedTuple):
    loss: np.ndarray  # (n,)
    first: np.ndarray  # (2, n): in gamma, in beta
    second: np.ndarray | None  # (3, n): gamma gamma, gamma beta, beta beta


class _Top(NamedTuple):
    """The top class of each row: columns (n, 1) in float64, where nothing underflows."""

    argmax: np.ndarray  # (n,)
    rest: np.ndarray  # the sum over the other classes of p_j / p_runner_up
    log_p: np.ndarray
    log_q: np.ndarray
    q: np.ndarray
    focus: np.ndarray  # 1 + gamma s
    excess: np.ndarray  # s - p
    log_h: np.ndarray  # log h(p) - log p


def _split_top(distance: np.ndarray, odds: np.ndarray, p: np.ndarray, gamma: float, beta: float) -> _Top:
    """The top class; fills `odds` with p_j / p_runner_up and `p` with p_j, both 0 at the top class."""
    rows = np.arange(len(distance))
    index = np.argmax(distance, axis=1)
    distance[rows, index] = -np.inf
    runner_up = np.max(distance, axis=1, keepdims=True)
    np.subtract(distance, runner_up, out=odds)
    odds *= beta
    _exp(odds, below=_VANISHING)
    distance[rows, index] = 0.0
    rest = np.einsum("ij->i", odds)[:, None].astype(np.float64)
    gap = -beta * runner_up.astype(np.float64)
    against = rest * np.exp(-gap)
    log_total = np.log1p(against)
    focus, excess = focus_of_top(against, gamma=gamma, gamma_plus_one=gamma + 1, xp=np)
    np.multiply(odds, (np.exp(-gap) / (1 + against)).astype(p.dtype), out=p)
    np.putmask(p, p < _FAINT_P, 0.0)
    log_q = np.log(rest) - gap - log_total
    log_h = -gamma * log_q - np.log(focus)
    return _Top(index, rest, -log_total, log_q, against / (1 + against), focus, excess, log_h)


def _focal_confidence(distance: np.ndarray, gamma: float, beta: float, work: np.ndarray) -> np.ndarray:
    """Psi of the top class, (n,)."""
    p, q, ratio = work[:3]
    top = _split_top(distance, ratio, p, gamma, beta)
    dtype = distance.dtype
    distance *= beta  # log p_j - log p_top, which becomes log h_j - log h_top
    np.subtract(1, p, out=q)
    np.add(distance, top.log_p.astype(dtype), out=ratio)
    ratio *= p
    ratio /= q
    np.subtract(1, np.multiply(ratio, gamma, out=ratio), out=ratio)
    distance -= np.log(ratio, out=ratio)
    np.log(q, out=q)
    q *= gamma
    distance -= q
    distance -= top.log_h.astype(dtype)
    distance[np.arange(len(distance)), top.argmax] = 0.0
    return 1.0 / np.einsum("ij->i", _exp(distance, below=_VANISHING))


class _Work(NamedTuple):
    """Room for temporaries (n, K); what each holds at the end of the functions below."""

    odds: np.ndarray  # o = p / q
    a_beta: np.ndarray  # d log h / d beta
    a: np.ndarray  # log h
    a_gamma: np.ndarray  # d log h / d gamma
    inverse: np.ndarray  # 1 / (1 + gamma s); then d2 log h / d gamma d beta
    focused: np.ndarray  # s / (1 + gamma s); then d2 log h / d gamma2
    slope: np.ndarray  # ds / dt
    scaled: np.ndarray  # the same over 1 + gamma s
    growth: np.ndarray  # d log h / dt
    bend: np.ndarray  # d2 log h / d beta2


def _focal_rows(
    distance: np.ndarray, labels: np.ndarray, gamma: float, beta: float, work: _Work, *, curvature: bool
) -> _Row:
    """Loss and derivatives of each row; log h and its first derivatives are measured from the top class's."""
    top = _split_top(distance, work.odds, work.a_beta, gamma, beta)
    rows = np.arange(len(distance))
    mean = np.vecdot(work.odds, distance)[:, None] / top.rest
    if curvature:
        np.multiply(work.odds, distance, out=work.odds)
        square = np.vecdot(work.odds, distance)[:, None] / top.rest
    _first_derivatives(distance, top, mean, work, gamma=gamma, beta=beta)
    if curvature:
        variance, of_top = _second_derivatives_of_top(top, mean, square, gamma)
        _second_derivatives(distance, variance, gamma, work)
    for term in (work.a, work.a_gamma, work.a_beta):
        term[rows, top.argmax] = 0.0

    level = work.a[rows, labels]
    mass = _exp(work.a, below=_FAINT)
    total = np.einsum("ij->i", mass)
    mass *= (1 / total)[:, None]
    loss = np.log(total) - level
    mean_gamma, mean_beta = np.vecdot(mass, work.a_gamma), np.vecdot(mass, work.a_beta)
    gradient = np.stack([mean_gamma - work.a_gamma[rows, labels], mean_beta - work.a_beta[rows, labels]])
    if not curvature:
        return _Row(loss, gradient, None)
    terms = (work.focused, work.inverse, work.bend)
    for term, column in zip(terms, of_top, strict=True):
        term[rows, top.argmax] = column[:, 0]
    second = [np.vecdot(mass, term) - term[rows, labels] for term in terms]
    weighted = np.multiply(mass, work.a_gamma, out=work.odds)
    second[0] += np.vecdot(weighted, work.a_gamma) - mean_gamma * mean_gamma
    second[1] += np.vecdot(weighted, work.a_beta) - mean_gamma * mean_beta
    mass *= work.a_beta
    second[2] += np.vecdot(mass, work.a_beta) - mean_beta * mean_beta
    return _Row(loss, gradient, np.stack(second))


def _first_derivatives(
    distance: np.ndarray, top: _Top, mean: np.ndarray, work: _Work, *, gamma: float, beta: float
) -> None:
    """Fill in log h and its first derivatives; `distance` becomes dt / d beta = d - <d>.

    For the top class, derivatives in beta come from the mean of d over the other classes, and none divides by
    q = 1 - p. The others have p <= 1/2 and go by o = p / q and s = -o log p, with derivatives in t = log p.
    """
    dtype = distance.dtype
    ratio_top = top.excess + np.exp(top.log_p)
    ratio_top_1 = -top.excess * mean
    top_gamma = -top.log_q - ratio_top / top.focus
    top_beta = -top.q * mean - gamma * (np.exp(top.log_p) * mean + ratio_top_1 / top.focus)

    odds, p, a, a_gamma, inverse, ratio, slope, scaled, growth, spare = work
    np.subtract(1, p, out=spare)
    np.divide(p, spare, out=odds)
    log_q = np.log(spare, out=spare)
    np.multiply(distance, beta, out=a)
    np.add(a, top.log_p.astype(dtype), out=ratio)
    ratio *= odds
    np.negative(ratio, out=ratio)
    np.multiply(ratio, gamma, out=inverse)
    inverse += 1
    np.divide(1, inverse, out=inverse)
    a -= np.multiply(log_q, gamma, out=a_gamma)
    a += np.log(inverse, out=a_gamma)
    a -= top.log_h.astype(dtype)
    np.subtract(ratio, 1, out=slope)
    slope *= odds
    slope += ratio  # s (1 + o) - o
    ratio *= inverse
    np.add(log_q, ratio, out=a_gamma)
    a_gamma += top_gamma.astype(dtype)
    np.negative(a_gamma, out=a_gamma)
    distance -= (top.q * mean).astype(dtype)
    np.multiply(slope, inverse, out=scaled)
    np.subtract(odds, scaled, out=growth)
    growth *= gamma
    growth += 1
    a_beta = np.multiply(growth, distance, out=p)
    a_beta -= top_beta.astype(dtype)


def _second_derivatives(tilt: np.ndarray, variance: np.ndarray, gamma: float, work: _Work) -> None:
    """Fill in the second derivatives of log h below the top class; `tilt` is dt / d beta, -variance d2 t / d beta2."""
    odds, _, _, _, cross, focused, slope, scaled, growth, bend = work
    focused *= focused
    np.multiply(odds, 2, out=bend)
    bend += 1
    bend *= slope
    bend -= odds  # d2 s / dt2
    bend *= cross
    cross *= scaled
    np.subtract(odds, cross, out=cross)
    cross *= tilt
    scaled *= scaled
    scaled *= gamma
    scaled -= bend
    scaled += odds
    np.multiply(odds, odds, out=bend)
    bend += scaled
    bend *= gamma  # d2 log h / dt2
    tilt *= tilt
    bend *= tilt
    growth *= variance.astype(tilt.dtype)
    bend -= growth


def _second_derivatives_of_top(
    top: _Top, mean: np.ndarray, square: np.ndarray, gamma: float
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Var d over all classes, and the second derivatives of log h of the top class, as columns.

    `mean` and `square` are those of d over the other classes; d = 0 at the top class.
    """
    p, q, excess, focus = np.exp(top.log_p), top.q, top.excess, top.focus
    variance = q * (square - q * mean * mean)
    variance_of_rest = np.maximum(square - mean * mean, 0.0)
    ratio = excess + p
    log_q_1, ratio_1 = p * mean, -excess * mean
    log_q_2 = p * (variance_of_rest - q * mean * mean)
    ratio_2 = (excess - p * q) * mean * mean - excess * variance_of_rest
    return variance, (
        (ratio / focus) ** 2,
        -log_q_1 - ratio_1 / focus**2,
        -variance - gamma * (log_q_2 + ratio_2 / focus - gamma * (ratio_1 / focus) ** 2),
    )
