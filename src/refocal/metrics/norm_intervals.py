"""Intervals and tests for calibration errors, which noise biases upward, by inverting simulated tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from refocal import _check
from refocal.metrics.inputs import ArrayLike, Sample
from refocal.metrics.kernel_error import row_residuals, weight_shares
from refocal.metrics.measure_record import Interval, PairedTest, Request
from refocal.metrics.residuals import kernel_residuals
from refocal.stats.inverted_tests import Direction, Evidence, limits, paired_p_value
from refocal.stats.kernel_sums import laplacian_vector_products
from refocal.stats.resampling import Gaps, bootstrap_sums, draw_counts
from refocal.stats.simulated_sums import ColumnSums, SumSimulator

EvidenceFunction = Callable[..., list[Evidence]]  # (request, *scores) -> the evidence of each, resampled together
_CLEAR = (2, 3)  # standard errors; of 15 gaps without errors, one exceeds 2 in every other sample, and 3 in one of 25


@dataclass(frozen=True)
class NormMethod:
    """Inverted tests.

    Attributes:
        evidence: From a request and the scores of one or two models to their evidence.
    """

    evidence: EvidenceFunction

    def interval(self, request: Request, scores: ArrayLike, *, level: float) -> Interval:
        """The measure with the truths that are not too unlikely, given the observed value."""
        (evidence,) = self.evidence(request, scores)
        return Interval(request.value(scores), *limits(evidence, level=level))

    def paired_test(self, request: Request, first: ArrayLike, second: ArrayLike) -> PairedTest:
        """Compare the difference with that of two equally miscalibrated models with the same noise."""
        p_value = paired_p_value(*self.evidence(request, first, second))
        return PairedTest(request.value(first), request.value(second), p_value)


def residual_evidence(residuals: Callable[..., Gaps]) -> EvidenceFunction:
    """The evidence of a measure that is a norm of summed residuals; see `refocal.metrics.residuals`."""

    def evidence(request: Request, *predictions: ArrayLike) -> list[Evidence]:
        several = len(predictions) > 1
        every = [residuals(request.read(scores), by_row=several, **request.settings) for scores in predictions]
        alike: Sequence[np.ndarray | None] = [None]
        if several or every[0].depends:
            alike = bootstrap_sums(
                [gaps.residuals for gaps in every], every[0].weight, resamples=request.resamples, rng=request.rng
            )
        seed = request.rng.integers(1 << 63)  # equal models get equal noise
        return [
            _gap_evidence(gaps, like, request.resamples, np.random.default_rng(seed), paired=several)
            for gaps, like in zip(every, alike, strict=True)
        ]

    return evidence


def _gap_evidence(
    gaps: Gaps, like: np.ndarray | None, resamples: int, rng: np.random.Generator, *, paired: bool
) -> Evidence:
    """The evidence of drawn labels. If no gap needs to be real, all claims may be off by the same gap.

    The directions of a pair belong together, so none of them is left out.
    """
    columns, possible = gaps.columns, gaps.columns.possible_gaps()
    hits = gaps.draw_hits(resamples, rng)
    simulator = SumSimulator(columns, hits, rng=rng, like=like, groups=gaps.groups, mass_share=gaps.mass_share)
    tried = find_possible_gaps(columns, blocks=gaps.blocks, pools=gaps.pools)
    tried = tried if paired else drop_repeated(tried)

    def error(sums: np.ndarray) -> np.ndarray:
        return gaps.norm(sums) ** gaps.power

    def draw_rows(gap: np.ndarray) -> np.ndarray:
        if gaps.row_losses is None:
            return error(simulator.draw_truth(gap))
        return simulator.draw_means(gaps.row_losses(possible.bound(gap)))

    def direction(gap: np.ndarray) -> Direction:
        def truth(t: float) -> float:
            return float(error(columns.weight * possible.bound(t * gap)))

        def simulate(t: float) -> np.ndarray:
            # The noise of the labels causes the bias; the noise of the rows moves the truth.
            rows = draw_rows(t * gap) - truth(t) if t > 0 else 0.0
            return np.maximum(0.0, error(simulator.draw(t * gap)) + rows)

        return Direction(truth, simulate)

    everywhere = np.ones(len(columns.weight))
    return Evidence(
        float(error(columns.residual)),
        [direction(gap) for gap in tried],
        [direction(everywhere), direction(-everywhere)],
        gaps.most,
    )


def find_possible_gaps(
    columns: ColumnSums, *, blocks: np.ndarray | None = None, pools: np.ndarray | None = None
) -> list[np.ndarray]:
    """The gaps (M,) that may be the true ones, up to a factor. The bias of an error depends on where they are.

    They are: all observed gaps; only those beyond two and beyond three standard errors, since the rest may be noise;
    and the observed gaps moved toward their common mean by the share of noise in their differences, since the same gap
    everywhere looks uneven, too. With many classes, little is left of the differences that noise adds, and so the mean
    gap of the classes is another direction.

    Args:
        columns: The columns, with the variance of their residuals.
        blocks: (M,) groups of neighboring columns whose gaps are taken to be equal; None if each is its own.
        pools: (M,) columns whose gaps are likely to be alike; None for all columns.
    """
    gap, mean, between, errors = _block_gaps(
        columns,
        np.arange(len(columns.weight)) if blocks is None else blocks,
        np.zeros(len(columns.weight), dtype=np.intp) if pools is None else pools,
    )
    clear = [np.where(errors > min(least, errors.max() * (1 - 1e-9)), gap, 0.0) for least in _CLEAR]
    return [gap, *clear, between] if pools is None else [gap, *clear, between, mean]


def drop_repeated(gaps: list[np.ndarray]) -> list[np.ndarray]:
    """Keep one of equal gaps, such as those beyond two and beyond three standard errors if all are."""
    return list({gap.tobytes(): gap for gap in gaps}.values())


def _block_gaps(
    columns: ColumnSums, blocks: np.ndarray, pools: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The gap of each column's block, the mean, a gap between both, and the number of standard errors of the first.

    All have shape (M,).
    """

    def add(part: np.ndarray, index: np.ndarray) -> np.ndarray:
        return np.bincount(index, weights=part)[index]

    residual, weight, variance = (add(part, blocks) for part in (columns.residual, columns.weight, columns.variance))
    gap = _divide(residual, weight)
    mean = _divide(add(columns.residual, pools), add(columns.weight, pools))
    differences = float(np.sum(columns.weight * (gap - mean) ** 2))
    expected = float(np.sum(columns.weight * _divide(variance, weight**2)))
    share = max(0.0, 1 - expected / differences) if differences > 0 else 0.0
    unlikely = np.where(np.abs(residual) > 1e-12 * weight, np.inf, 0.0)  # if no noise is possible
    errors = np.divide(np.abs(residual), np.sqrt(variance), out=unlikely, where=variance > 0)
    return gap, mean, mean + share * (gap - mean), errors


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.zeros_like(denominator), where=denominator > 0)


def kernel_evidence(request: Request, *predictions: ArrayLike) -> list[Evidence]:
    """The evidence of the kernel calibration error, of the top label or of all classes."""
    if request.settings["classes"] == "all":
        samples = [request.read(scores) for scores in predictions]
        if samples[0].classes > 1:
            return _row_kernel_evidence(request, samples)
    return residual_evidence(kernel_residuals)(request, *predictions)


def _row_kernel_evidence(request: Request, samples: list[Sample]) -> list[Evidence]:
    """The kernel error of whole rows: a quadratic form w M w of the weights w.

    If the truth is at t and v is the noise of a resample, the resample shows (t w + v) M (t w + v).
    """
    width = _check.positive(request.settings["kernel_width"], "kernel_width")
    power = 2 if request.settings["unbiased"] else 1
    every = [row_residuals(sample) for sample in samples]
    share = weight_shares(samples[0].used_weights(), len(every[0][0]))
    forms: list[list[np.ndarray]] = [[] for _ in samples]
    for counts in draw_counts(share, resamples=request.resamples, rng=request.rng):
        deviation = counts * share / (counts @ share)[:, None] - share
        for part, (places, residuals) in zip(forms, every, strict=True):
            product = laplacian_vector_products(places, residuals, deviation, width=width)
            part.append(np.stack([product @ share, np.einsum("ij,ij->i", product, deviation)]))
    result = []
    for part, (places, residuals) in zip(forms, every, strict=True):
        own = float((laplacian_vector_products(places, residuals, share[None], width=width) @ share)[0])
        cross, squares = np.concatenate(part, axis=1)
        direction = _quadratic_direction(max(0.0, own), cross, squares, power=power)
        result.append(Evidence(max(0.0, own) ** (power / 2), [direction], [], 2.0 ** (power / 2)))
    return result


def _quadratic_direction(own: float, cross: np.ndarray, squares: np.ndarray, *, power: int) -> Direction:
    """The direction of w, from the forms w M w, v M w and v M v."""

    def simulate(t: float) -> np.ndarray:
        return np.sqrt(np.maximum(t * t * own + 2 * t * cross + squares, 0.0)) ** power

    return Direction(lambda t: (t * np.sqrt(own)) ** power, simulate)
