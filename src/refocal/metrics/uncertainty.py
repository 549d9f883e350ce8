"""How sure a measure is: confidence intervals, and a test between two models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy

from refocal import _check
from refocal.metrics import means
from refocal.metrics.binned import top_k_ece
from refocal.metrics.brier_intervals import brier_resamples
from refocal.metrics.decomposition import BrierDecomposition, brier_decomposition
from refocal.metrics.inputs import Events, Input, read
from refocal.metrics.norm_intervals import Request, evidence
from refocal.metrics.ranking import all_decisions, aurc, aurc_of, auroc, auroc_of, by_falling_confidence
from refocal.metrics.residuals import GAPS
from refocal.stats.inverted_tests import limits, paired_null
from refocal.stats.resampling import resampled_weights

Array = Any
Measure = Callable[..., Any]
Scores = tuple[np.ndarray, np.ndarray | None]

_RANKINGS: dict[Measure, Callable[[Events], float]] = {auroc: auroc_of, aurc: aurc_of}
# measure -> its values for each sample
_MEANS: dict[Measure, Callable[..., Scores]] = {
    means.nll: means.nll_scores,
    means.brier: means.brier_score_rows,
    means.focal_score: means.focal_scores,
    means.error: means.error_scores,
    means.confidence_share: means.confident_scores,
}
_RATES = (means.error, means.confidence_share)
# measures of several numbers
_PARTS: dict[Measure, tuple[str, ...]] = {
    means.confidence_share: means.ConfidenceShare._fields,
    brier_decomposition: BrierDecomposition._fields,
}
_DIVERGENCES: set[Measure] = {means.kl_to_posterior}


class Interval(NamedTuple):
    """A measure and its confidence limits."""

    value: float
    low: float
    high: float


class PairedTest(NamedTuple):
    """The measure of two models on the same samples, and how rarely equal ones would differ as much (two-sided)."""

    first: float
    second: float
    p_value: float


def interval(
    measure: Measure,
    scores: Array,
    labels: Array,
    *,
    part: str | None = None,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int | np.random.Generator = 0,
    input: Input = "probs",
    sample_weight: Array = None,
    task: str = "multiclass",
    ignore_index: int | None = None,
    **settings: Any,
) -> Interval:
    """A measure with its confidence interval.

    - `nll`, `brier`, `focal_score`, `kl_to_posterior`: the central limit theorem; `error` and both numbers of
      `confidence_share`: Wilson's interval. Where a mean is infinite, so are its limits.
    - `ece`, `adaptive_ece`, `mce`, `top_k_ece`, `classwise_ece`, `thresholded_ece`, `smooth_ece`,
      `kernel_calibration_error`: these are norms, which noise enlarges, and the percentiles of their bootstrap are
      enlarged twice. The limits here invert a bootstrap test instead: those true errors for which an estimate as large,
      or as small, as the observed one is not too rare. The bins (the bandwidth) stay those of the sample; with
      debias=True only the value changes. The limits of the unbiased kernel error are squares, none negative.
    - `brier_decomposition`: the same for "calibration"; "refinement", "uncertainty" and "resolution" by a bootstrap of
      recalibrated predictions, which shows how far an estimate is from the truth, overfitting included.
    - `auroc`, `aurc`: percentiles of a bootstrap.

    Args:
        measure: One of these functions.
        scores: As for the measure.
        labels: As for the measure; the posterior for `kl_to_posterior`.
        part: Which number of a measure that has several, `confidence_share` or `brier_decomposition`, by its name.
        level: Confidence level.
        resamples: Number of bootstrap resamples.
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

    Reference: Carpenter: Test inversion bootstrap confidence intervals. J. R. Statist. Soc. B 61, 1999.
    """
    level = _check.share(level, "level")
    common = {"input": input, "sample_weight": sample_weight, "task": task, "ignore_index": ignore_index}
    request = _request(measure, part, labels, common, settings, resamples=resamples, seed=seed)
    measure, part = request.measure, request.part
    if measure in _MEANS or measure in _DIVERGENCES:
        values, scale = _scores_of(request, scores)
        center = means.mean(values, scale)
        return Interval(center, *_limits_of_mean(center, values, scale, level=level, is_rate=measure in _RATES))
    if measure in GAPS or part == "calibration":
        shown = evidence(request, scores)[0]
        return Interval(_value(request, scores), *limits(shown.found, shown.rays, level=level, most=shown.most))
    if measure is brier_decomposition:
        (resampled,) = brier_resamples(request, scores)
        value = _value(request, scores)
        errors = resampled.errors()[BrierDecomposition._fields.index(str(part))]
        above, below = np.quantile(errors, [(1 + level) / 2, (1 - level) / 2])
        return Interval(value, max(0.0, float(value - above)), max(0.0, float(value - below)))
    if measure in _RANKINGS:
        compute = _RANKINGS[measure]
        _no_settings(settings)
        events, _ = by_falling_confidence(all_decisions(read(scores, labels, **common)))
        value = compute(events)
        if np.isnan(value):  # nothing wrong, or nothing right, to rank
            return Interval(value, 0.0, 1.0)
        drawn = resampled_weights(_weight(events), resamples=resamples, rng=request.rng)
        found = [compute(_reweighted(events, times)) for times in drawn]
        low, high = np.nanquantile(found, [(1 - level) / 2, (1 + level) / 2])
        return Interval(value, float(low), float(high))
    raise _unknown(measure)


def paired_test(
    measure: Measure,
    first: Array,
    second: Array,
    labels: Array,
    *,
    part: str | None = None,
    resamples: int = 1000,
    seed: int | np.random.Generator = 0,
    input: Input = "probs",
    sample_weight: Array = None,
    task: str = "multiclass",
    ignore_index: int | None = None,
    **settings: Any,
) -> PairedTest:
    """Test whether two models differ in a measure, on the same samples.

    Means of scores are compared by the central limit theorem on their differences, `auroc` and `aurc` by the bootstrap
    of theirs. Calibration errors are compared with what two equally miscalibrated models, with the noise of these two,
    would show: the one that uses more bins has the larger bias, and that alone is no difference.

    Args:
        measure: As for `interval`.
        first: Predictions of one model.
        second: Predictions of the other.
        labels: As for the measure.
        part: As for `interval`.
        resamples: Number of bootstrap resamples.
        seed: Seed or generator of the resamples.
        input: Whether `scores` are "logits" or "probs".
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
    common = {"input": input, "sample_weight": sample_weight, "task": task, "ignore_index": ignore_index}
    request = _request(measure, part, labels, common, settings, resamples=resamples, seed=seed)
    measure, part = request.measure, request.part
    if measure in _MEANS or measure in _DIVERGENCES:
        return _paired_means(_scores_of(request, first), _scores_of(request, second))
    if measure in GAPS or part == "calibration":
        one, two = evidence(request, first, second)
        null = paired_null((one.found, two.found), (one.rays[0], two.rays[0]))
        a, b = (_value(request, scores) for scores in (first, second))
        return PairedTest(a, b, _two_sided(one.found - two.found, null))
    if measure is brier_decomposition:
        which = BrierDecomposition._fields.index(str(part))
        errors = [each.errors()[which] for each in brier_resamples(request, first, second)]
        a, b = (_value(request, scores) for scores in (first, second))
        return PairedTest(a, b, _two_sided(a - b, errors[0] - errors[1]))
    if measure in _RANKINGS:
        _no_settings(settings)
        decided = [all_decisions(read(scores, labels, **common)) for scores in (first, second)]
        both_ranked = [by_falling_confidence(events) for events in decided]
        compute = _RANKINGS[measure]
        a, b = (compute(events) for events, _ in both_ranked)
        if np.isnan(a - b):
            return PairedTest(a, b, float("nan"))
        differences = []
        for times in resampled_weights(_weight(decided[0]), resamples=resamples, rng=request.rng):
            resampled = [compute(_reweighted(events, times[order])) for events, order in both_ranked]
            differences.append(resampled[0] - resampled[1])
        null = np.array(differences) - (a - b)
        return PairedTest(a, b, _two_sided(a - b, null[np.isfinite(null)]))
    raise _unknown(measure)


def _request(
    measure: Measure,
    part: str | None,
    labels: Array,
    common: dict[str, Any],
    settings: dict[str, Any],
    *,
    resamples: int,
    seed: int | np.random.Generator,
) -> Request:
    resamples = _check.count(resamples, "resamples", least=100)
    if measure in _PARTS:
        _check.one_of(part, "part", _PARTS[measure])
    elif part is not None:
        msg = f"part must be None for a measure that is one number, got {part!r}"
        raise ValueError(msg)
    if measure is brier_decomposition:
        _no_settings(settings)
        if part == "brier":
            measure, part = means.brier, None
    return Request(measure, labels, common, settings, part, resamples, np.random.default_rng(seed))


def _scores_of(request: Request, first: Array) -> Scores:
    measure, second, common, settings, part = request[:5]
    if measure in _DIVERGENCES:
        _no_settings(settings)
        if common["ignore_index"] is not None or common["task"] != "multiclass":
            msg = f"{measure.__name__} compares distributions (N, K): it takes no task and no ignore_index"
            raise ValueError(msg)
        return means.kl_scores(first, second, common["sample_weight"], input=common["input"])
    sample = read(first, second, **common)
    if "gamma" in settings:
        settings = {**settings, "gamma": _check.scalar_gamma(settings["gamma"])}
    if part is not None:
        settings = {**settings, "part": part}
    return _MEANS[measure](sample, **settings)


def _limits_of_mean(
    center: float, values: np.ndarray, weights: np.ndarray | None, *, level: float, is_rate: bool
) -> tuple[float, float]:
    z = float(scipy.special.ndtri((1 + level) / 2))
    if not is_rate:
        half = z * _standard_error(_contributions(values, center, weights)) if np.isfinite(center) else 0.0
        return center - half, center + half
    if np.isnan(center):  # the accuracy of none
        return 0.0, 1.0
    # Wilson's interval, with the effective number of samples: it is not empty where there is no error at all
    count = len(values) if weights is None else float(weights.sum() ** 2 / np.sum(weights**2))
    middle = (center + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(center * (1 - center) / count + z**2 / (4 * count**2))
    return float(max(0.0, middle - half)), float(min(1.0, middle + half))


def _paired_means(first: Scores, second: Scores) -> PairedTest:
    """Compare weighted means by the central limit theorem on the difference of what each sample adds to them."""
    (one, of_one), (two, of_two) = first, second
    a, b = means.mean(one, of_one), means.mean(two, of_two)
    # two infinite scores of one sample tell nothing between the models
    tied = np.isinf(one) & (one == two)
    one, two = np.where(tied, 0.0, one), np.where(tied, 0.0, two)
    centers = means.mean(one, of_one), means.mean(two, of_two)
    if not all(map(np.isfinite, centers)):  # what one model holds for impossible and the other does not: it differs
        return PairedTest(a, b, float("nan") if np.isnan(centers).any() else float(centers[0] == centers[1]))
    difference = _contributions(one, centers[0], of_one) - _contributions(two, centers[1], of_two)
    center, spread = centers[0] - centers[1], _standard_error(difference)
    return PairedTest(a, b, 2 * float(scipy.special.ndtr(-abs(center) / spread)) if spread > 0 else float(center == 0))


def _contributions(values: np.ndarray, center: float, weights: np.ndarray | None) -> np.ndarray:
    """Values whose plain mean is the weighted mean of `values`, each as far from it as the sample moves it."""
    if weights is None:
        return values
    used = weights > 0
    moved = np.full(len(values), center)
    moved[used] += weights[used] / weights.mean() * (values[used] - center)
    return moved


def _standard_error(values: np.ndarray) -> float:
    if len(values) < 2:
        msg = "an interval or test needs two samples or more, got 1"
        raise ValueError(msg)
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _two_sided(found: float, null: np.ndarray) -> float:
    center = float(null.mean())
    # a difference that rounding made is none
    above = int(np.count_nonzero(np.abs(null - center) >= abs(found - center) - 1e-12))
    return (1 + above) / (len(null) + 1)


def _value(request: Request, scores: Array) -> float:
    measure, labels, common, settings, part = request[:5]
    taken = {key: value for key, value in common.items() if measure is not top_k_ece or key != "task"}
    found = measure(scores, labels, **taken, **settings)
    return float(found if part is None else getattr(found, part))


def _weight(events: Events) -> np.ndarray:
    return np.ones(len(events.correct)) if events.weights is None else events.weights


def _reweighted(events: Events, times: np.ndarray) -> Events:
    return events._replace(weights=_weight(events) * times)


def _no_settings(settings: dict[str, Any]) -> None:
    if settings:
        msg = f"this measure has no setting {next(iter(settings))!r}"
        raise TypeError(msg)


def _unknown(measure: Any) -> ValueError:
    allowed: list[Measure] = [*_MEANS, *_DIVERGENCES, *GAPS, brier_decomposition, *_RANKINGS]
    names = ", ".join(function.__name__ for function in allowed)
    return ValueError(f"measure must be one of refocal.metrics' functions {names}, got {measure!r}")
