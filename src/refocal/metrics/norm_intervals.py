"""Measures that noise makes larger, as values with what resamples would show for each possible truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from refocal import _check
from refocal.metrics import decomposition
from refocal.metrics import kernel_error as kernel
from refocal.metrics.brier_intervals import brier_resamples
from refocal.metrics.inputs import Sample, read
from refocal.metrics.means import kept_weights
from refocal.metrics.residuals import gaps_of
from refocal.stats.inverted_tests import Ray, rays_of_norm
from refocal.stats.kernel_sums import laplacian_vector_products
from refocal.stats.resampling import draws, noise, observed

Array = Any


class Evidence(NamedTuple):
    """What a sample shows, bias included, where the truth may lie, and how large it can be."""

    found: float
    rays: list[Ray]
    most: float


class Request(NamedTuple):
    """What is asked of a measure: its arguments beside the predictions, and the resamples."""

    measure: Callable[..., Any]
    labels: Array
    common: dict[str, Any]  # input, sample_weight, task, ignore_index
    settings: dict[str, Any]
    part: str | None
    resamples: int
    rng: np.random.Generator


def evidence(request: Request, *predictions: Array) -> list[Evidence]:
    """The evidence of each prediction; several are resampled together."""
    measure, labels, common, settings = request[:4]
    if measure is kernel.kernel_calibration_error and settings.get("classes") == "all":
        samples = [read(probs, labels, **common) for probs in predictions]
        if samples[0].classes > 1:
            return _vector_kernel(request, samples, **settings)
    if measure is decomposition.brier_decomposition:
        resampled = brier_resamples(request, *predictions)
        return [Evidence(each.found, each.rays(), most=min(2.0, each.classes)) for each in resampled]
    compress = len(predictions) == 1
    several = [gaps_of(measure, probs, labels, common, settings, compress=compress) for probs in predictions]
    found = []
    for gaps, deviations in zip(several, noise(several, resamples=request.resamples, rng=request.rng), strict=True):
        center = observed(gaps)
        rays = rays_of_norm(center, deviations, norm=gaps.norm, power=gaps.power)
        found.append(Evidence(float(gaps.norm(center)) ** gaps.power, rays, gaps.most))
    return found


def _vector_kernel(
    request: Request,
    samples: list[Sample],
    *,
    kernel_width: float = 0.4,
    unbiased: bool = False,
    classes: str,  # noqa: ARG001 "all"
) -> list[Evidence]:
    """The kernel error of whole rows: a quadratic form w M w of the weights w, of resampled ones likewise.

    A truth at t and the noise v of a resample show (t w + v) M (t w + v).
    """
    width = _check.positive(kernel_width, "kernel_width")
    power = 2 if unbiased else 1
    every = [kernel.vectors(sample) for sample in samples]
    share = kernel.shares_of(kept_weights(samples[0]), len(every[0][0]))
    forms: list[list[np.ndarray]] = [[] for _ in samples]
    for drawn in draws(np.ones(len(share)), share, resamples=request.resamples, rng=request.rng):
        deviation = drawn * share / (drawn @ share)[:, None] - share
        for part, (places, residuals) in zip(forms, every, strict=True):
            product = laplacian_vector_products(places, residuals, deviation, width=width)
            part.append(np.stack([product @ share, np.einsum("ij,ij->i", product, deviation)]))
    found = []
    for part, (places, residuals) in zip(forms, every, strict=True):
        own = float((laplacian_vector_products(places, residuals, share[None], width=width) @ share)[0])
        cross, squares = np.concatenate(part, axis=1)
        ray = _quadratic_ray(max(0.0, own), cross, squares, power=power)
        found.append(Evidence(ray.size, [ray], np.sqrt(2.0) ** power))
    return found


def _quadratic_ray(own: float, cross: np.ndarray, squares: np.ndarray, *, power: int) -> Ray:
    def shown(t: float) -> np.ndarray:
        return np.sqrt(np.maximum(t * t * own + 2 * t * cross + squares, 0.0)) ** power

    return Ray(np.sqrt(own) ** power, shown, power)
