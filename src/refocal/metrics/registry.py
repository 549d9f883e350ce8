"""All measures that `interval` and `paired_test` know: one record per measure."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, get_args

from refocal.metrics import means, residuals
from refocal.metrics.binned import adaptive_ece, ece, mce, top_k_ece
from refocal.metrics.brier_intervals import BRIER_PARTS, BrierPartMethod, brier_evidence
from refocal.metrics.classwise import CLASS_TASKS, classwise_ece, thresholded_ece
from refocal.metrics.decomposition import brier_decomposition
from refocal.metrics.kernel_error import kernel_calibration_error
from refocal.metrics.mean_intervals import MeanMethod, kl_sample_scores, sample_scores
from refocal.metrics.measure_record import Measure
from refocal.metrics.norm_intervals import NormMethod, kernel_evidence, residual_evidence
from refocal.metrics.ranking import aurc, auroc, risk_coverage_area, roc_area
from refocal.metrics.ranking_intervals import RankingMethod
from refocal.metrics.smooth_error import smooth_ece

_BRIER_MEAN = MeanMethod(sample_scores(means.brier_sample_scores))
_BINNED = NormMethod(residual_evidence(residuals.binned_residuals))
_LARGEST = NormMethod(residual_evidence(functools.partial(residuals.binned_residuals, norm="max")))

MEASURES = (
    Measure(means.nll, {None: MeanMethod(sample_scores(means.nll_scores))}),
    Measure(means.brier, {None: _BRIER_MEAN}),
    Measure(means.focal_score, {None: MeanMethod(sample_scores(means.focal_scores))}),
    Measure(means.kl_to_posterior, {None: MeanMethod(kl_sample_scores)}, tasks=("multiclass",)),
    Measure(means.error, {None: MeanMethod(sample_scores(means.error_scores), is_rate=True)}),
    Measure(
        means.confidence_share,
        {
            part: MeanMethod(sample_scores(means.confident_scores, part=part), is_rate=True)
            for part in get_args(means.SharePart)
        },
    ),
    Measure(ece, {None: _BINNED}),
    Measure(adaptive_ece, {None: _BINNED}),
    Measure(mce, {None: _LARGEST}),
    Measure(top_k_ece, {None: NormMethod(residual_evidence(residuals.top_k_residuals))}, tasks=("multiclass",)),
    Measure(classwise_ece, {None: NormMethod(residual_evidence(residuals.classwise_residuals))}, tasks=CLASS_TASKS),
    Measure(thresholded_ece, {None: NormMethod(residual_evidence(residuals.thresholded_residuals))}, tasks=CLASS_TASKS),
    Measure(smooth_ece, {None: NormMethod(residual_evidence(residuals.smooth_residuals))}),
    Measure(kernel_calibration_error, {None: NormMethod(kernel_evidence)}),
    Measure(
        brier_decomposition,
        {
            "brier": _BRIER_MEAN,
            "calibration": NormMethod(brier_evidence),
            **{part: BrierPartMethod(part) for part in BRIER_PARTS},
        },
    ),
    Measure(auroc, {None: RankingMethod(roc_area)}),
    Measure(aurc, {None: RankingMethod(risk_coverage_area)}),
)


def find_measure(function: Callable[..., Any]) -> Measure:
    """The record of a public function; a ValueError lists the functions that have one."""
    measure = next((measure for measure in MEASURES if measure.function is function), None)
    if measure is None:
        names = ", ".join(measure.name for measure in MEASURES)
        msg = f"measure must be one of refocal.metrics' functions {names}, got {function!r}"
        raise ValueError(msg)
    return measure
