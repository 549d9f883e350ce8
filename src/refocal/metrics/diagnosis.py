"""Tests of calibration that together answer whether probabilities can be trusted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from refocal import _check
from refocal._check import Input
from refocal.metrics.defaults import RESAMPLES
from refocal.metrics.inputs import ArrayLike, Events, Sample, Task, concatenate_events, read
from refocal.metrics.reliability import find_ece_p_value
from refocal.stats import calibrated_sums
from refocal.stats.calibrated_sums import LEVELS, LevelSums

FALSE_ALARM = 0.05
POWER = 0.95
_DESCRIBED = 5  # classes whose worst range is looked for
_SIMULATIONS = 3  # per smallest p-value that matters
_MOST_SIMULATIONS = 100_000
_ALL = np.ones((1, LEVELS), dtype=bool)
_MOST_ROUNDED = 0.005  # the largest probability that two decimals round to 0
_EDGES = (0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0)


@dataclass(frozen=True)
class RangeGap:
    """The claims within a range of probabilities, and what came true.

    Attributes:
        low: Lower end of the range.
        high: Upper end of the range.
        predicted: Mean probability of the claims in the range.
        observed: The fraction of them that came true.
        p_value: Of the hypothesis that these claims are calibrated.
    """

    low: float
    high: float
    predicted: float
    observed: float
    p_value: float


@dataclass(frozen=True)
class ClassGap:
    """A class that fails a test on its own, after a correction for the number of classes.

    Attributes:
        index: The class.
        predicted: Mean probability of the class.
        observed: Its frequency.
        p_value: Corrected for the number of classes.
        range: The range of probabilities in which it fails most clearly; None for all but the worst classes.
    """

    index: int
    predicted: float
    observed: float
    p_value: float
    range: RangeGap | None


@dataclass(frozen=True)
class CalibrationCheck:
    """One of the tests behind a diagnosis.

    Attributes:
        name: "confidence" (of the top label), "frequencies" (of the classes, or of y = 1), "classes" (the probabilities
            of each class), "probabilities" (of y = 1), or "bins" (the ECE of the confidence, or of P(y = 1)).
        p_value: Corrected for the number of tests.
        classes: The classes that fail on their own, the smallest p-value first.
    """

    name: str
    p_value: float
    classes: tuple[ClassGap, ...] = ()


@dataclass(frozen=True)
class CertainClaims:
    """Probabilities of exactly 0 and 1. A single exception shows that one is wrong, and rounding makes such claims.

    Attributes:
        refuted: The number of samples whose label has a probability of exactly 0.
        p_value: The smallest p-value of the tests if these probabilities are left out; None if nothing is left.
        rounding: Whether so few exceptions are as expected from rounding to two decimals or more.
    """

    refuted: int
    p_value: float | None
    rounding: bool


@dataclass(frozen=True)
class Diagnosis:
    """What the tests found, and what they could have found.

    Attributes:
        checks: The tests.
        p_value: The smallest of their p-values. If the probabilities are calibrated, it is at most 0.05 with a
            probability of at most 0.05.
        predicted: Mean confidence; mean P(y = 1) for the task "binary".
        observed: Accuracy; the frequency of y = 1.
        slope: How the gaps grow with the claim, in standard errors: negative if high claims come true too rarely and
            low ones too often (overconfident), positive if it is the other way around.
        range: The range of confidence, or of P(y = 1), in which the claims fail most clearly.
        detectable: The calibration error that would have been seen with a probability of 0.95, if it keeps its sign
            over an eighth of the information.
        detectable_frequency: The error in the frequency of any one class that would have been seen likewise.
        certain: The probabilities of exactly 0 and 1; None unless an exception to one of them was seen.
    """

    checks: tuple[CalibrationCheck, ...]
    p_value: float
    predicted: float
    observed: float
    slope: float
    range: RangeGap
    detectable: float
    detectable_frequency: float
    certain: CertainClaims | None = None

    def failed(self, name: str) -> CalibrationCheck | None:
        """Return a test if it fails."""
        return next((check for check in self.checks if check.name == name and check.p_value <= FALSE_ALARM), None)


def diagnose(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
    among: int = 1,
) -> Diagnosis:
    """Test whether probabilities can be trusted: confidence, class frequencies, and each class.

    A test of the top label's confidence alone does not notice errors that cancel. For the task "multiclass" these tests
    run: of the top label's confidence, of the frequencies of the classes, of each class's probability, and of ECE. For
    "binary": of the frequency of y = 1, of P(y = 1), and of ECE. Holm's method corrects for their number: if the
    probabilities are calibrated, the probability that any test fails is at most 5%.

    The test of ECE draws labels with the confidences as probabilities. The others compare sums of outcome minus
    probability with their distribution for calibrated probabilities: over all samples, over 2, 4 and 8 groups of
    samples with similar probabilities, and over nearly certain claims. Tails come from a saddlepoint approximation, and
    the p-values of the groups are combined by the Cauchy combination test.

    Args:
        scores: As for `ece`.
        labels: As for `ece`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: As for `ece`.
        task: "multiclass" or "binary".
        ignore_index: As for `ece`.
        among: Number of diagnoses that are judged together, of which this is one: what it could have found is stated
            for tests at a level that is divided by this number. `correct_together` corrects their p-values.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> p = rng.random(5000)
        >>> diagnose(p, rng.random(5000) < p, task="binary").p_value > 0.05
        True
        >>> found = diagnose(np.sqrt(p), rng.random(5000) < p, task="binary")
        >>> found.failed("frequencies") is not None
        True

    Reference: Lugannani, Rice: Saddle point approximation for the distribution of the sum of independent random
    variables. Adv. Appl. Prob. 12, 1980. Liu, Xie: Cauchy combination test. J. Am. Stat. Assoc. 115, 2020.
    """
    if task == "multilabel":
        msg = "task must be 'multiclass' or 'binary': diagnose the labels of a multi-label task one by one"
        raise ValueError(msg)
    together = _check.count(among, "among")
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    events = sample.all_events()
    own = calibrated_sums.sum_levels(events.confidence.astype(np.float64), events.correct, events.weights)
    by_class = own if sample.classes == 1 else _sum_classes(sample)
    checks = _run_checks(sample, events, own, by_class, together)
    total = own.weight.sum()
    level = FALSE_ALARM / (len(checks) * together)
    # claims of certainty have no variance, but an error rate below this can show no error in so many samples
    unseen = 1 - (1 - POWER) ** float(own.squared_weight.sum() / total**2)
    return Diagnosis(
        checks=checks,
        p_value=min(check.p_value for check in checks),
        predicted=float(own.claimed.sum() / total),
        observed=float(own.observed.sum() / total),
        slope=_measure_slope(own),
        range=_find_worst_range(events),
        detectable=max(unseen, calibrated_sums.find_detectable(own, level=level, power=POWER)),
        detectable_frequency=max(unseen, _find_detectable_frequency(by_class, level=level)),
        certain=_find_certain(sample, events, together),
    )


def correct_together(diagnoses: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Correct the p-values of several diagnoses for their number, by Holm's method.

    If all of them are about calibrated probabilities, the smallest corrected p-value is at most 0.05 with a probability
    of at most 0.05.
    """
    adjusted = calibrated_sums.adjust_holm(np.array([each.p_value for each in diagnoses]))
    return [
        _scale_p_values(each, float(p / each.p_value) if each.p_value > 0 else 1.0)
        for each, p in zip(diagnoses, adjusted, strict=True)
    ]


def _scale_p_values(found: Diagnosis, factor: float) -> Diagnosis:
    """Multiply every p-value, up to 1."""
    return replace(
        found,
        p_value=min(1.0, found.p_value * factor),
        checks=tuple(replace(check, p_value=min(1.0, check.p_value * factor)) for check in found.checks),
        range=replace(found.range, p_value=min(1.0, found.range.p_value * factor)),
    )


def _run_checks(
    sample: Sample, events: Events, own: LevelSums, by_class: LevelSums, together: int
) -> tuple[CalibrationCheck, ...]:
    """Run all tests, and correct their p-values for their number."""
    checks = _check_binary(own) if sample.classes == 1 else _check_classes(sample, own, by_class)
    level = FALSE_ALARM / ((len(checks) + 1) * together)
    others_fail = min(check.p_value for check in checks) <= level
    checks.append(CalibrationCheck("bins", _test_bins(events, level=0.0 if others_fail else level)))
    adjusted = calibrated_sums.adjust_holm(np.array([check.p_value for check in checks]))
    return tuple(replace(check, p_value=float(p)) for check, p in zip(checks, adjusted, strict=True))


def _find_certain(sample: Sample, events: Events, together: int) -> CertainClaims | None:
    """Count the exceptions to probabilities of exactly 0 and 1, and test the other probabilities."""
    claims = refuted = 0
    for block in sample.prob_blocks():
        counts = block.labels >= 0 if block.weights is None else block.weights > 0
        probs, labels = block.scores[counts], block.labels[counts]
        if probs.ndim == 1:
            claims += int(((probs <= 0) | (probs >= 1)).sum())
            refuted += int(np.where(labels == 1, probs <= 0, probs >= 1).sum())
        else:
            # Rows sum to 1: what others lose to 0 is at most what the remaining ones gain, each by the same bound.
            zeros = (probs <= 0).sum(axis=1)
            claims += int(np.minimum(zeros, probs.shape[1] - zeros).sum())
            refuted += int((probs[np.arange(len(labels)), labels] <= 0).sum())
    if not refuted:
        return None
    left = (events.confidence > 0) & (events.confidence < 1) & (events.scale > 0)
    p_value = None
    if left.any():
        weights = None if events.weights is None else events.weights[left]
        others = Events(events.confidence[left], events.correct[left], weights)
        own = calibrated_sums.sum_levels(others.confidence.astype(np.float64), others.correct, weights)
        by_class = own if sample.classes == 1 else _sum_classes(sample, certain=False)
        p_value = min(check.p_value for check in _run_checks(sample, others, own, by_class, together))
    # rounded to 0, probabilities of two decimals are at most 0.005
    rounding = float(scipy.stats.binom.sf(refuted - 1, claims, _MOST_ROUNDED)) > FALSE_ALARM
    return CertainClaims(refuted, p_value, rounding)


def _check_binary(sums: LevelSums) -> list[CalibrationCheck]:
    """Test the frequency of y = 1, and P(y = 1)."""
    frequency = calibrated_sums.sum_p_values(sums, _ALL)
    return [
        CalibrationCheck("frequencies", float(np.nan_to_num(frequency[0], nan=1.0))),
        CalibrationCheck("probabilities", float(_test_groups(sums))),
    ]


def _test_bins(events: Events, *, level: float) -> float:
    """Test ECE. Among many tests, a small level needs more simulations: they run if nothing else settles the question.

    The p-value stays valid: if it is below the smallest one of the first simulation, it is that of a second one.
    """
    p_value = find_ece_p_value(events)
    smallest = 1 / (RESAMPLES + 1)
    if p_value > smallest or not 0 < level < smallest:
        return p_value
    more = min(int(_SIMULATIONS / level), _MOST_SIMULATIONS)
    return find_ece_p_value(events, resamples=more, seed=1)


def _check_classes(sample: Sample, confidence: LevelSums, by_class: LevelSums) -> list[CalibrationCheck]:
    """Test the top label's confidence, the frequencies of the classes, and each class's probability."""
    equal = np.ones(sample.classes)
    frequencies = np.nan_to_num(calibrated_sums.sum_p_values(by_class, _ALL)[:, 0], nan=1.0)
    classes = _test_groups(by_class)
    checks = [CalibrationCheck("confidence", float(_test_groups(confidence)))]
    for name, p_values in (("frequencies", frequencies), ("classes", classes)):
        combined = float(calibrated_sums.combine(p_values, equal))
        checks.append(CalibrationCheck(name, combined, _find_failing(sample, by_class, p_values)))
    return checks


def _test_groups(sums: LevelSums) -> np.ndarray:
    """Test sums (..., LEVELS) over all samples and over groups of them: one p-value for each set of sums."""
    p_values = calibrated_sums.sum_p_values(sums, calibrated_sums.group_levels(sums))
    return calibrated_sums.combine(p_values, calibrated_sums.scale_shares())


def _find_failing(sample: Sample, by_class: LevelSums, p_values: np.ndarray) -> tuple[ClassGap, ...]:
    """Find the classes that fail on their own."""
    adjusted = calibrated_sums.adjust_holm(p_values)
    failing = [int(index) for index in np.argsort(p_values, kind="stable") if adjusted[index] <= FALSE_ALARM]
    total = by_class.weight[0].sum()
    predicted, observed = by_class.claimed.sum(axis=1) / total, by_class.observed.sum(axis=1) / total
    return tuple(
        ClassGap(
            index,
            float(predicted[index]),
            float(observed[index]),
            float(adjusted[index]),
            _find_worst_range(_class_events(sample, index)) if place < _DESCRIBED else None,
        )
        for place, index in enumerate(failing)
    )


def _sum_classes(sample: Sample, *, certain: bool = True) -> LevelSums:
    """Sum the probabilities and outcomes of each class in each level, (K, LEVELS), or only those between 0 and 1."""
    classes, cells = sample.classes, sample.classes * LEVELS
    sums = np.zeros((4, cells))
    for block in sample.prob_blocks():
        probs = np.clip(block.scores.astype(np.float64), 0.0, 1.0)
        weight = np.ones(len(probs)) if block.weights is None else block.weights
        index = calibrated_sums.find_levels(probs) + LEVELS * np.arange(classes)
        each = np.broadcast_to(weight[:, None], probs.shape)
        each = each if certain else each * ((probs > 0) & (probs < 1))
        sums[:3] += [
            np.bincount(index.ravel(), part.ravel(), minlength=cells) for part in (each, each**2, each * probs)
        ]
        true = index[np.arange(len(probs)), block.labels]
        sums[3] += np.bincount(true, each[np.arange(len(probs)), block.labels], minlength=cells)
    return LevelSums(*sums.reshape(4, classes, LEVELS))


def _class_events(sample: Sample, index: int) -> Events:
    """The probability of one class, and whether it was the label."""
    return concatenate_events(
        [Events(block.scores[:, index], block.labels == index, block.weights) for block in sample.prob_blocks()]
    )


def _measure_slope(sums: LevelSums) -> float:
    """The residuals' slope over the claims, in standard errors."""
    variance = np.maximum(sums.variance, 1e-9 * sums.squared_weight)  # certain claims have none
    claim = np.divide(sums.claimed, sums.weight, out=np.zeros(LEVELS), where=sums.weight > 0)
    away = claim - np.average(claim, weights=variance)
    spread = float(np.sqrt((away**2 * variance).sum()))
    return float((away * sums.residual).sum()) / spread if spread > 0 else 0.0


def _find_worst_range(events: Events) -> RangeGap:
    """Find the range of probabilities whose sum of residuals has the smallest p-value."""
    claims = np.clip(events.confidence.astype(np.float64), 0.0, 1.0)
    found = []
    for low, high in itertools.pairwise(_EDGES):
        inside = (claims > low if low else claims >= low) & (claims <= high)
        weight = events.scale[inside]
        if not weight.any():
            continue
        sums = calibrated_sums.sum_levels(claims[inside], events.correct[inside], weight)
        p_value = float(np.nan_to_num(calibrated_sums.sum_p_values(sums, _ALL)[0], nan=1.0))
        total = weight.sum()
        found.append(
            RangeGap(low, high, float(sums.claimed.sum() / total), float(sums.observed.sum() / total), p_value)
        )
    return min(found, key=lambda gap: (gap.p_value, -abs(gap.predicted - gap.observed)))


def _find_detectable_frequency(by_class: LevelSums, *, level: float) -> float:
    """The error in the frequency of the class with the largest variance that would have been seen."""
    variance = np.atleast_2d(by_class.variance).sum(axis=1)
    deviation = np.sqrt(variance.max()) / np.atleast_2d(by_class.weight)[0].sum()
    return float((scipy.special.ndtri(1 - level / (2 * len(variance))) + scipy.special.ndtri(POWER)) * deviation)
