"""How sure a measure is: confidence intervals, and a test between two models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from refocal import _check
from refocal.core.resampling import interval_of_norm, noise, observed, paired_null, resampled_weights
from refocal.metrics import scores
from refocal.metrics.calibration import top_k_ece
from refocal.metrics.gaps import GAPS, gaps_of
from refocal.metrics.inputs import Events, read
from refocal.metrics.ranking import all_decisions, aurc, aurc_of, auroc, auroc_of, by_falling_confidence

Array = Any
Measure = Callable[..., float]
Scores = tuple[np.ndarray, np.ndarray | None]

_RANKINGS: dict[Measure, Callable[[Events], float]] = {auroc: auroc_of, aurc: aurc_of}
# measure -> its values for each sample
_MEANS: dict[Measure, Callable[..., Scores]] = {
    scores.nll: scores.nll_scores,
    scores.nll_from_logits: scores.nll_scores,
    scores.brier: scores.brier_score_rows,
    scores.brier_from_logits: scores.brier_score_rows,
    scores.focal_score: scores.focal_scores,
    scores.focal_score_from_logits: scores.focal_scores,
    scores.error: scores.error_scores,
}
_DIVERGENCES: dict[Measure, bool] = {scores.kl_to_posterior: False, scores.kl_to_posterior_from_logits: True}
_LOGITS = {scores.nll_from_logits, scores.brier_from_logits, scores.focal_score_from_logits}


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
    probs: Array,
    labels: Array,
    *,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int | np.random.Generator = 0,
    weights: Array = None,
    task: str = "multiclass",
    ignore_index: int | None = None,
    **settings: Any,
) -> Interval:
    """A measure with its confidence interval.

    - `nll`, `brier`, `focal_score`, `kl_to_posterior`, `error`: the central limit theorem (for `error`, Wilson's).
    - `ece`, `adaptive_ece`, `mce`, `top_k_ece`, `classwise_ece`, `thresholded_ece`, `smooth_ece`,
      `kernel_calibration_error`: these are norms, which noise enlarges, and the percentiles of their bootstrap are
      enlarged twice. The limits here invert a bootstrap test instead: those true errors for which an estimate as large,
      or as small, as the observed one is not too rare. The bins (the bandwidth) stay those of the sample; with
      debias=True only the value changes.
    - `auroc`, `aurc`: percentiles of a bootstrap.

    Args:
        measure: One of these functions.
        probs: As for the measure.
        labels: As for the measure; the posterior for `kl_to_posterior`.
        level: Confidence level.
        resamples: Number of bootstrap resamples.
        seed: Seed or generator of the resamples.
        weights: As for the measure.
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
    resamples = _check.count(resamples, "resamples", least=100)
    rng = np.random.default_rng(seed)
    common = {"weights": weights, "task": task, "ignore_index": ignore_index}
    if measure in _MEANS or measure in _DIVERGENCES:
        values, scale = _scores_of(measure, probs, labels, common, settings)
        centre = scores.mean(values, scale)
        return Interval(centre, *_limits_of_mean(centre, values, scale, level=level, is_rate=measure is scores.error))
    if measure in GAPS:
        gaps = gaps_of(measure, probs, labels, common, settings)
        deviations = noise([gaps], resamples=resamples, rng=rng)[0]
        low, high = interval_of_norm(observed(gaps), deviations, norm=gaps.norm, level=level)
        return Interval(_value(measure, probs, labels, common, settings), min(low, gaps.most), min(high, gaps.most))
    if measure in _RANKINGS:
        compute = _RANKINGS[measure]
        _no_settings(settings)
        events, _ = by_falling_confidence(all_decisions(read(probs, labels, **common)))
        drawn = resampled_weights(_weight(events), resamples=resamples, rng=rng)
        found = [compute(_reweighted(events, times)) for times in drawn]
        low, high = np.nanquantile(found, [(1 - level) / 2, (1 + level) / 2])
        return Interval(compute(events), float(low), float(high))
    raise _unknown(measure)


def paired_test(
    measure: Measure,
    first: Array,
    second: Array,
    labels: Array,
    *,
    resamples: int = 1000,
    seed: int | np.random.Generator = 0,
    weights: Array = None,
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
        resamples: Number of bootstrap resamples.
        seed: Seed or generator of the resamples.
        weights: As for the measure.
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
    resamples = _check.count(resamples, "resamples", least=100)
    rng = np.random.default_rng(seed)
    common = {"weights": weights, "task": task, "ignore_index": ignore_index}
    if measure in _MEANS or measure in _DIVERGENCES:
        one, scale = _scores_of(measure, first, labels, common, settings)
        two, _ = _scores_of(measure, second, labels, common, settings)
        # two infinite scores of one sample tell nothing between the models
        difference = np.where(one == two, 0.0, one) - np.where(one == two, 0.0, two)
        centre = scores.mean(difference, scale)
        spread = _standard_error(difference, centre, scale)
        p_value = 2 * float(ndtr(-abs(centre) / spread)) if spread > 0 else float(centre == 0)
        return PairedTest(scores.mean(one, scale), scores.mean(two, scale), p_value)
    if measure in GAPS:
        both = [gaps_of(measure, part, labels, common, settings, compress=False) for part in (first, second)]
        deviations = noise(both, resamples=resamples, rng=rng)
        found, null = paired_null([observed(gaps) for gaps in both], deviations, norms=[gaps.norm for gaps in both])
        a, b = (_value(measure, part, labels, common, settings) for part in (first, second))
        return PairedTest(a, b, _two_sided(found, null))
    if measure in _RANKINGS:
        _no_settings(settings)
        decided = [all_decisions(read(part, labels, **common)) for part in (first, second)]
        both_ranked = [by_falling_confidence(events) for events in decided]
        compute = _RANKINGS[measure]
        a, b = (compute(events) for events, _ in both_ranked)
        differences = []
        for times in resampled_weights(_weight(decided[0]), resamples=resamples, rng=rng):
            resampled = [compute(_reweighted(events, times[order])) for events, order in both_ranked]
            differences.append(resampled[0] - resampled[1])
        null = np.array(differences) - (a - b)
        return PairedTest(a, b, _two_sided(a - b, null[np.isfinite(null)]))
    raise _unknown(measure)


def _scores_of(measure: Measure, first: Array, second: Array, common: Any, settings: Any) -> Scores:
    if measure in _DIVERGENCES:
        _no_settings(settings)
        return scores.kl_scores(first, second, common["weights"], logits=_DIVERGENCES[measure])
    sample = read(first, second, **common, logits=measure in _LOGITS)
    if "gamma" in settings:
        settings = {**settings, "gamma": _check.scalar_gamma(settings["gamma"])}
    return _MEANS[measure](sample, **settings)


def _limits_of_mean(
    centre: float, values: np.ndarray, weights: np.ndarray | None, *, level: float, is_rate: bool
) -> tuple[float, float]:
    z = float(ndtri((1 + level) / 2))
    if not is_rate:
        half = z * _standard_error(values, centre, weights)
        return centre - half, centre + half
    # Wilson's interval, with the effective number of samples: it is not empty where there is no error at all
    count = len(values) if weights is None else float(weights.sum() ** 2 / np.sum(weights**2))
    middle = (centre + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(centre * (1 - centre) / count + z**2 / (4 * count**2))
    return float(max(0.0, middle - half)), float(min(1.0, middle + half))


def _standard_error(values: np.ndarray, centre: float, weights: np.ndarray | None) -> float:
    if len(values) < 2:
        msg = "an interval or test needs two samples or more, got 1"
        raise ValueError(msg)
    if not np.isfinite(centre):
        return float("inf")
    if weights is None:
        return float(np.std(values, ddof=1) / np.sqrt(len(values)))
    used = weights > 0
    shares = weights[used] / weights.sum()
    return float(np.sqrt(np.sum((shares * (values[used] - centre)) ** 2)))


def _two_sided(found: float, null: np.ndarray) -> float:
    centre = float(null.mean())
    # a difference that rounding made is none
    above = int(np.count_nonzero(np.abs(null - centre) >= abs(found - centre) - 1e-12))
    return (1 + above) / (len(null) + 1)


def _value(measure: Measure, probs: Array, labels: Array, common: dict[str, Any], settings: dict[str, Any]) -> float:
    taken = {key: value for key, value in common.items() if measure is not top_k_ece or key != "task"}
    return measure(probs, labels, **taken, **settings)


def _weight(events: Events) -> np.ndarray:
    return np.ones(len(events.correct)) if events.weights is None else events.weights


def _reweighted(events: Events, times: np.ndarray) -> Events:
    return events._replace(weights=_weight(events) * times)


def _no_settings(settings: dict[str, Any]) -> None:
    if settings:
        msg = f"this measure has no setting {next(iter(settings))!r}"
        raise TypeError(msg)


def _unknown(measure: Any) -> ValueError:
    allowed = [*_MEANS, *_DIVERGENCES, *GAPS, *_RANKINGS]
    names = ", ".join(function.__name__ for function in allowed)
    return ValueError(f"measure must be one of refocal.metrics' functions {names}, got {measure!r}")
