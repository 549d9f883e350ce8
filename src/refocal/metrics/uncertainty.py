"""The uncertainty of a measure: confidence intervals, and a test between two models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refocal import _check
from refocal._check import Input
from refocal._containers import to_array
from refocal.metrics.defaults import LEVEL, RESAMPLES
from refocal.metrics.inputs import ArrayLike, Task
from refocal.metrics.measure_record import CommonArguments, Interval, IntervalMethod, PairedTest, Part, Request
from refocal.metrics.registry import find_measure


def interval(
    measure: Callable[..., Any],
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    part: Part | None = None,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int | np.random.Generator = 0,
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
    **settings: Any,
) -> Interval:
    """A measure with its confidence interval.

    - `nll`, `brier`, `focal_score`, `kl_to_posterior`: the central limit theorem. `error` and both parts of
      `confidence_share`: Wilson's interval. If a mean is infinite, so are its limits.
    - `ece`, `adaptive_ece`, `mce`, `top_k_ece`, `classwise_ece`, `thresholded_ece`, `smooth_ece`,
      `kernel_calibration_error`: sampling noise biases these norms upward, and it biases the percentiles of their
      bootstrap twice. So the limits invert a test instead: they are the true errors for which an estimate as large, or
      as small, as the observed one is not too rare. Labels are drawn from the predictions, moved by possible gaps, so
      errors that did not occur count, too. The raw value can lie above the limits. If an estimate is smaller than noise
      alone usually makes it, its upper limit is that of a typical one. The bins stay those of the sample; debias=True
      changes only the value. The limits of the unbiased kernel error are squares and are not negative.
    - `brier_decomposition`: the same for "calibration". "refinement", "uncertainty" and "resolution": a bootstrap of
      recalibrated predictions, which shows how far an estimate is from the truth, overfitting included. For the
      refinement, these errors are relative. It needs about 100 rows or more.
    - `auroc`, `aurc`: percentiles of a bootstrap.

    Args:
        measure: One of these functions.
        scores: As for the measure.
        labels: As for the measure; the posterior for `kl_to_posterior`.
        part: The name of the part, for a measure with several: `confidence_share` or `brier_decomposition`.
        level: Confidence level.
        resamples: Number of bootstrap resamples, or of simulated sets of labels.
        seed: Seed or generator of the resamples.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: As for the measure.
        task: As for the measure.
        ignore_index: As for the measure.
        **settings: Further arguments of the measure.

    Example:
        >>> import numpy as np
        >>> from refocal.metrics import error
        >>> value, low, high = interval(error, np.array([[0.6, 0.4], [0.2, 0.8]] * 50), np.array([1, 1] * 50))
        >>> value, round(low, 3), round(high, 3)
        (0.5, 0.404, 0.596)

    Reference: Carpenter: Test inversion bootstrap confidence intervals. J. R. Statist. Soc. B 61, 1999. Cowan, Cranmer,
    Gross and Vitells: Power-constrained limits. arXiv:1105.3166, 2011.
    """
    level = _check.share(level, "level")
    common = CommonArguments(input=input, sample_weight=sample_weight, task=task, ignore_index=ignore_index)
    method, request = _prepare(measure, part, labels, common, settings, resamples=resamples, seed=seed)
    return method.interval(request, scores, level=level)


def paired_test(
    measure: Callable[..., Any],
    first: ArrayLike,
    second: ArrayLike,
    labels: ArrayLike,
    *,
    part: Part | None = None,
    resamples: int = RESAMPLES,
    seed: int | np.random.Generator = 0,
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
    **settings: Any,
) -> PairedTest:
    """Test whether two models differ in a measure, on the same samples.

    Means of scores: the central limit theorem for the differences. `auroc` and `aurc`: a bootstrap of the differences.
    Calibration errors: the difference is compared with that of two equally miscalibrated models with the same noise. A
    model that uses more bins has a larger bias, and that alone is no difference. The part "uncertainty" of
    `brier_decomposition` is rejected: it is equal for all models.

    Args:
        measure: As for `interval`.
        first: Scores of one model.
        second: Scores of the other model.
        labels: As for the measure.
        part: As for `interval`.
        resamples: Number of bootstrap resamples, or of simulated sets of labels.
        seed: Seed or generator of the resamples.
        input: Whether the scores of both models are "logits" or "probs".
        sample_weight: As for the measure.
        task: As for the measure.
        ignore_index: As for the measure.
        **settings: Further arguments of the measure.

    Example:
        >>> import numpy as np
        >>> from refocal.metrics import ece
        >>> rng = np.random.default_rng(0)
        >>> p = rng.random(2000)
        >>> labels = (rng.random(2000) < p).astype(int)
        >>> test = paired_test(ece, p, p**2, labels, task="binary")
        >>> test.first < test.second, test.p_value < 0.01
        (True, True)
    """
    common = CommonArguments(input=input, sample_weight=sample_weight, task=task, ignore_index=ignore_index)
    method, request = _prepare(measure, part, labels, common, settings, resamples=resamples, seed=seed)
    _check_rows(first, second)
    return method.paired_test(request, first, second)


def _check_rows(first: ArrayLike, second: ArrayLike) -> None:
    """Check that two models have equally many rows; otherwise an error about labels would hide that."""
    shapes = [to_array(scores, name).shape for scores, name in ((first, "first"), (second, "second"))]
    if all(shapes) and shapes[0][0] != shapes[1][0]:
        msg = f"first and second must have equally many rows, got {shapes[0][0]:,} and {shapes[1][0]:,} rows"
        raise ValueError(msg)


def _prepare(
    function: Callable[..., Any],
    part: Part | None,
    labels: ArrayLike,
    common: CommonArguments,
    settings: dict[str, Any],
    *,
    resamples: int,
    seed: int | np.random.Generator,
) -> tuple[IntervalMethod, Request]:
    resamples = _check.count(resamples, "resamples", least=100)
    measure = find_measure(function)
    method = measure.choose_method(part)
    measure.check_common(common)
    complete = measure.complete_settings(settings)
    return method, Request(measure, labels, common, complete, part, resamples, np.random.default_rng(seed))
