"""Intervals and tests for calibration errors, which noise biases upward, by inverting bootstrap tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from refocal import _check
from refocal.metrics.inputs import ArrayLike, Sample
from refocal.metrics.kernel_error import row_residuals, weight_shares
from refocal.metrics.measure_record import Interval, PairedTest, Request
from refocal.metrics.residuals import kernel_residuals
from refocal.stats.inverted_tests import Direction, limits, norm_directions, paired_null, two_sided_p_value
from refocal.stats.kernel_sums import laplacian_vector_products
from refocal.stats.resampling import Gaps, draw_counts, noise, observed_sums


class Evidence(NamedTuple):
    """The observed measure with its bias, where the truth may lie, and the largest possible measure."""

    value: float
    directions: list[Direction]
    most: float


EvidenceFunction = Callable[..., list[Evidence]]  # (request, *scores) -> the evidence of each, resampled together


@dataclass(frozen=True)
class NormMethod:
    """Inverted bootstrap tests.

    Attributes:
        evidence: From a request and the scores of one or two models to their evidence.
    """

    evidence: EvidenceFunction

    def interval(self, request: Request, scores: ArrayLike, *, level: float) -> Interval:
        """The measure with the truths that are not too unlikely, given the observed value."""
        (evidence,) = self.evidence(request, scores)
        low, high = limits(evidence.value, evidence.directions, level=level, most=evidence.most)
        return Interval(request.value(scores), low, high)

    def paired_test(self, request: Request, first: ArrayLike, second: ArrayLike) -> PairedTest:
        """Compare the difference with that of two equally miscalibrated models with the same noise."""
        one, two = self.evidence(request, first, second)
        null = paired_null((one.value, two.value), (one.directions[0], two.directions[0]))
        p_value = two_sided_p_value(one.value - two.value, null)
        return PairedTest(request.value(first), request.value(second), p_value)


def residual_evidence(residuals: Callable[..., Gaps]) -> EvidenceFunction:
    """The evidence of a measure that is a norm of summed residuals; see `refocal.metrics.residuals`."""

    def evidence(request: Request, *predictions: ArrayLike) -> list[Evidence]:
        compress = len(predictions) == 1  # two models are resampled sample by sample
        several = [residuals(request.read(scores), compress=compress, **request.settings) for scores in predictions]
        result = []
        for gaps, deviations in zip(several, noise(several, resamples=request.resamples, rng=request.rng), strict=True):
            center = observed_sums(gaps)
            directions = norm_directions(center, deviations, norm=gaps.norm, power=gaps.power)
            result.append(Evidence(float(gaps.norm(center)) ** gaps.power, directions, gaps.most))
        return result

    return evidence


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
    for counts in draw_counts(np.ones(len(share)), share, resamples=request.resamples, rng=request.rng):
        deviation = counts * share / (counts @ share)[:, None] - share
        for part, (places, residuals) in zip(forms, every, strict=True):
            product = laplacian_vector_products(places, residuals, deviation, width=width)
            part.append(np.stack([product @ share, np.einsum("ij,ij->i", product, deviation)]))
    result = []
    for part, (places, residuals) in zip(forms, every, strict=True):
        own = float((laplacian_vector_products(places, residuals, share[None], width=width) @ share)[0])
        cross, squares = np.concatenate(part, axis=1)
        direction = _quadratic_direction(max(0.0, own), cross, squares, power=power)
        result.append(Evidence(direction.size, [direction], np.sqrt(2.0) ** power))
    return result


def _quadratic_direction(own: float, cross: np.ndarray, squares: np.ndarray, *, power: int) -> Direction:
    """The direction of w, from the forms w M w, v M w and v M v."""

    def simulate(t: float) -> np.ndarray:
        return np.sqrt(np.maximum(t * t * own + 2 * t * cross + squares, 0.0)) ** power

    return Direction(np.sqrt(own) ** power, simulate, power)
