"""Slow, obvious oracles: textbook formulas in mpmath or in plain float64 loops."""

from __future__ import annotations

from typing import Any, NamedTuple

import mpmath as mp
import numpy as np


def mp_log_posterior(
    logits: Any, *, gamma: Any, temperature: float = 1.0, weight: Any = None, detached: bool = False
) -> list[mp.mpf]:
    """Compute log Psi of one row of logits in 60 digits; masked classes get -inf.

    The formula is Eqs. 11-13 of Charoenphakdee et al. (2021). q = 1 - p is summed over the other classes, and
    log p = log1p(-q) if q is small, so 60 digits suffice for logits of any distance.
    """
    with mp.workdps(60):
        largest = max(logits)
        scores = [mp.exp((mp.mpf(float(z)) - mp.mpf(float(largest))) / mp.mpf(temperature)) for z in logits]
        total = mp.fsum(scores)
        prefix, suffix = [mp.mpf(0)], [mp.mpf(0)]
        for score in scores:
            prefix.append(prefix[-1] + score)
        for score in reversed(scores):
            suffix.append(suffix[-1] + score)
        gammas = np.broadcast_to(np.asarray(gamma, dtype=float), len(scores))
        logs = []
        for i, score in enumerate(scores):
            p = score / total
            q = (prefix[i] + suffix[len(scores) - 1 - i]) / total
            if p == 0:
                logs.append(-mp.inf)
                continue
            if q == 0:
                logs.append(mp.inf)
                continue
            g = mp.mpf(float(gammas[i]))
            log_p = mp.log1p(-q) if q < mp.mpf("1e-10") else mp.log(p)
            log_h = log_p - g * mp.log(q)
            if not detached:
                log_h -= mp.log(1 - g * p * log_p / q)
            if weight is not None:
                log_h -= mp.log(mp.mpf(float(weight[i])))
            logs.append(log_h)
        if mp.inf in logs:
            return [mp.mpf(0) if value == mp.inf else -mp.inf for value in logs]
        top = max(logs)
        normalizer = top + mp.log(mp.fsum(mp.exp(value - top) for value in logs if value != -mp.inf))
        return [value - normalizer for value in logs]


class TwoFloats(NamedTuple):
    """Numbers of about 32 digits as sums of two floats; NumPy can compare them with nearby floats without loss."""

    high: np.ndarray
    low: np.ndarray

    @classmethod
    def of(cls, values: list[mp.mpf]) -> TwoFloats:
        """Split exact values; infinite values and those too small for a float have no second part."""
        high = [float(value) for value in values]
        low = [float(value - first) if mp.isfinite(value) else 0.0 for value, first in zip(values, high, strict=True)]
        return cls(np.array(high), np.array(low))

    def difference(self, floats: Any) -> np.ndarray:
        """Subtract these numbers from `floats`; the first subtraction is exact within a factor of two."""
        return (np.asarray(floats, dtype=np.float64) - self.high) - self.low


def relative_errors(log_probs: Any, reference: TwoFloats) -> np.ndarray:
    """Compute |Psi / reference - 1| of each class from log-probabilities; 0 if the reference is below 1e-290."""
    counts = reference.high >= np.log(1e-290)
    kept = TwoFloats(reference.high[counts], reference.low[counts])
    errors = np.zeros(len(counts))
    errors[counts] = np.abs(np.expm1(kept.difference(np.asarray(log_probs)[counts])))
    return errors


def loop_ece(confidence: Any, correct: Any, *, bins: int = 15, norm: str = "l1", weights: Any = None) -> float:
    """Compute the calibration error over (a, b] bins of equal width, sample by sample; 0 is in the first bin."""
    totals = [[0.0, 0.0, 0.0] for _ in range(bins)]
    for i, (c, hit) in enumerate(zip(confidence, correct, strict=True)):
        w = 1.0 if weights is None else float(weights[i])
        index = next(b for b in range(bins) if c <= (b + 1) / bins)
        totals[index][0] += w
        totals[index][1] += w * float(c)
        totals[index][2] += w * float(hit)
    count = sum(n for n, _, _ in totals)
    gaps = [(n / count, abs(c - h) / n) for n, c, h in totals if n > 0]
    if norm == "max":
        return max(gap for _, gap in gaps)
    power = 1 if norm == "l1" else 2
    return sum(share * gap**power for share, gap in gaps) ** (1 / power)


def loop_top(probs: Any, labels: Any) -> tuple[list[float], list[bool]]:
    """Return confidence and correctness of the most probable class, the first one of a tie."""
    tops = [max(range(len(row)), key=lambda k, row=row: row[k]) for row in probs]
    return [float(row[top]) for row, top in zip(probs, tops, strict=True)], [
        top == label for top, label in zip(tops, labels, strict=True)
    ]


def loop_kernel_error(places: Any, residuals: Any, *, width: float, unbiased: bool, weights: Any = None) -> float:
    """Compute MMCE, or the unbiased estimate of its square, over all pairs; places and residuals are vectors."""
    count = len(places)
    w = np.ones(count) if weights is None else np.asarray(weights, dtype=float)
    total = mass = 0.0
    for i in range(count):
        for j in range(count):
            if unbiased and i == j:
                continue
            near = np.exp(-np.linalg.norm(np.subtract(places[i], places[j])) / width)
            total += w[i] * w[j] * float(np.dot(residuals[i], residuals[j])) * near
            mass += w[i] * w[j]
    return total / mass if unbiased else float(np.sqrt(max(0.0, total / mass)))


def loop_aurc(confidence: Any, correct: Any) -> float:
    """Compute the mean over k of the error rate of the k most confident predictions, for distinct confidences."""
    order = sorted(range(len(confidence)), key=lambda i: -confidence[i])
    wrong, risks = 0, []
    for k, i in enumerate(order, start=1):
        wrong += not correct[i]
        risks.append(wrong / k)
    return sum(risks) / len(risks)


def refit_venn_abers(scores: Any, labels: Any, new: float, weights: Any = None) -> tuple[float, float]:
    """Fit isotonic regression twice, with the new score labeled 0 and 1, and return the fits at the new score."""
    from sklearn.isotonic import IsotonicRegression

    ends = []
    for label in (0.0, 1.0):
        regression = IsotonicRegression()
        regression.fit(
            np.append(np.asarray(scores, dtype=float), new),
            np.append(np.asarray(labels, dtype=float), label),
            None if weights is None else np.append(np.asarray(weights, dtype=float), 1.0),
        )
        ends.append(float(regression.predict([new])[0]))
    return ends[0], ends[1]


def loop_prediction_sets(
    probs: Any,
    labels: Any,
    new: Any,
    *,
    method: str,
    coverage: float,
    penalty: float = 0.0,
    penalty_after: int = 0,
    uniform: Any = None,
    new_uniform: Any = None,
    by_class: bool = False,
) -> np.ndarray:
    """Compute split conformal prediction sets as the papers write them, class by class; empty sets stay empty."""

    def score(row: Any, k: int, u: float) -> float:
        if method == "lac":
            return 1 - row[k]
        above = sum(p for p in row if p > row[k])
        rank = 1 + sum(p > row[k] for p in row)
        return above + u * row[k] + penalty * max(0, rank - penalty_after)

    def quantile(scores: list[float]) -> float:
        place = int(np.ceil(round((len(scores) + 1) * coverage, 9)))
        return sorted(scores)[place - 1] if place <= len(scores) else np.inf

    u = np.zeros(len(probs)) if uniform is None else uniform
    v = np.zeros(len(new)) if new_uniform is None else new_uniform
    scores = [score(row, label, each) for row, label, each in zip(probs, labels, u, strict=True)]
    classes = len(probs[0])
    limits = [
        quantile([s for s, label in zip(scores, labels, strict=True) if label == k or not by_class])
        for k in range(classes)
    ]
    return np.array(
        [[score(row, k, each) <= limits[k] + 1e-12 for k in range(classes)] for row, each in zip(new, v, strict=True)]
    )


def loop_calibration_statistics(rows: Any, labels: Any, weights: Any, *, binary: bool, bins: int = 15) -> list[float]:
    """The five statistics of `calibration_test` for rows (N, K) with probabilities above 0."""
    classes, total = len(rows[0]), sum(weights)
    claims, hits, tops = [], [], []
    for row, label in zip(rows, labels, strict=True):
        tops.append(max(range(classes), key=lambda k, row=row: row[k]))
        claimed = 1 if binary else tops[-1]
        claims.append(row[claimed])
        hits.append(label == claimed)

    def standardize(addends: list[tuple[float, Any, Any]], few: float) -> float:
        """|sum| / sqrt(variance + few * fourth / variance); an addend has a value, all its values and their chances."""
        pairs = [pair for _, all_values, chance in addends for pair in zip(all_values, chance, strict=True)]
        second, fourth = (sum(p * value**power for value, p in pairs) for power in (2, 4))
        return abs(sum(value for value, _, _ in addends)) / (second + few * fourth / second) ** 0.5 if addends else 0.0

    def score(i: int) -> tuple[float, Any, Any]:
        logs = [np.log(p) for p in rows[i]]
        mean = sum(p * log for p, log in zip(rows[i], logs, strict=True))
        return weights[i] * (logs[labels[i]] - mean), [weights[i] * (log - mean) for log in logs], rows[i]

    def event(i: int, chance: float, came_true: bool) -> tuple[float, Any, Any]:
        values = [-weights[i] * chance, weights[i] * (1 - chance)]
        return values[int(came_true)], values, [1 - chance, chance]

    count = range(len(rows))
    edges = []  # upper ends of bins of equal mass
    for j in range(1, bins):
        below = 0.0
        for i in sorted(count, key=lambda i: claims[i]):
            below += weights[i]
            if below >= j * total / bins * (1 - 1e-12):
                edges.append(claims[i])
                break
    mass_bin = [sum(edge < claim for edge in edges) for claim in claims]
    width_bin = [max(0, int(np.ceil(claim * bins)) - 1) for claim in claims]
    level = [int((np.log(claim / (1 - claim)) + 16) * 4) for claim in claims]
    cell = list(zip(level, mass_bin, width_bin, strict=True))
    own = [event(i, claims[i], hits[i]) for i in count]
    by_bin = [[own[i] for i in count if index[i] == b] for index in (width_bin, mass_bin) for b in range(bins)]
    limits = sorted(set(cell))
    ranges = [[own[i] for i in count if cell[i] <= limit] for limit in limits]
    ranges += [[own[i] for i in count if cell[i] >= limit] for limit in limits]
    return [
        standardize([score(i) for i in count], 0.0),
        sum(standardize([event(i, rows[i][k], labels[i] == k) for i in count], 1.0) ** 4 for k in range(classes)),
        sum(standardize([score(i) for i in count if tops[i] == k], 1.0) ** 2 for k in range(classes)),
        sum(standardize(part, 0.25) ** 2 for part in by_bin),
        max(standardize(part, 0.25) for part in ranges),
    ]
