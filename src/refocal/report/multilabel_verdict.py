"""The verdict about all classes of a multi-label task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from refocal.metrics.diagnosis import FALSE_ALARM, POWER, Diagnosis, correct_together
from refocal.report.multilabel_record import fails, rank_classes
from refocal.report.record import Method, Report, Verdict
from refocal.report.verdict import (
    call_class,
    fails_by_rounding,
    format_apart,
    format_points,
    is_rare,
    say_p_value,
    stays_open,
    write_verdict,
)
from refocal.report.words import format_count, format_interval, format_number, format_percent, lower_title

_NAMED = 3  # classes that a sentence names
_WAYS = {
    "calibrated": "trusted",
    "unclear": "cannot tell",
    "too high": "too high",
    "too low": "too low",
    "overconfident": "too extreme",
    "underconfident": "not extreme enough",
    "miscalibrated": "too high in some ranges and too low in others",
}


def judge_together(reports: Sequence[Report], changed: Sequence[float], *, tried: Sequence[bool]) -> tuple[Report, ...]:
    """Correct the p-values of the classes for their number, and write the verdict of each class anew.

    Args:
        reports: One per class, with p-values of its own.
        changed: The fraction of samples of each class whose decision differs between the two methods.
        tried: Whether other methods were tried for a class.
    """
    before = correct_together([_diagnosis(report.given) for report in reports])
    after = correct_together([_diagnosis(report.chosen) for report in reports])
    return tuple(_judge(*each) for each in zip(reports, before, after, changed, tried, strict=True))


def _judge(report: Report, before: Diagnosis, after: Diagnosis, changed: float, tried: bool) -> Report:
    given = replace(report.given, diagnosis=before, p_value=before.p_value)
    chosen = given if report.chosen.given else replace(report.chosen, diagnosis=after, p_value=after.p_value)
    verdict = write_verdict(
        given,
        chosen,
        class_names=report.class_names,
        samples=report.samples,
        changed=changed,
        gamma=None,
        below=None,
        alone=not tried,
    )
    return replace(report, methods=(given,) if chosen is given else (given, chosen), verdict=verdict)


def count_events(report: Report) -> str:
    """Count the positives of a class, or its negatives if these are fewer."""
    assert report.thresholds is not None  # a binary report has them
    positives = report.thresholds.positives
    negatives = report.total_weight - positives
    number, what = (negatives, "negative") if negatives < positives else (positives, "positive")
    return f"{format_count(round(number, 6))} {what}{'' if number == 1 else 's'}"


def describe_way(report: Report) -> str:
    """Say in a few words in which way the probabilities of a class are wrong, if they are."""
    if fails(report.given) and fails_by_rounding(_diagnosis(report.given)):
        return "wrong where they are 0 or 1"
    return _WAYS[_regime(report)]


def write_multilabel_verdict(
    reports: Sequence[Report], names: Sequence[str], *, tried: bool, unfitted: Sequence[int]
) -> Verdict:
    """Put the reports of all classes into words.

    Args:
        reports: One per class, judged together.
        names: One name per class.
        tried: Whether other methods than the scores as given were tried.
        unfitted: The classes that had too few samples to fit to.
    """
    ranking = rank_classes(reports)
    failing = [index for index in ranking if fails(reports[index].given)]
    unclear = [index for index in ranking if _regime(reports[index]) == "unclear"]
    regime, answer = _answer(reports, names, failing, unclear)
    sentences = [answer + _say_remedy(reports, failing, tried=tried)]
    sentences += _say_worst(reports[failing[0]], names[failing[0]]) if failing else []
    sentences += _say_rest(reports, names, failing, unclear)
    if len(reports) > 1:
        sentences.append(
            f"The tests are corrected for {len(reports):,} classes (Holm): if all classes are calibrated, the "
            f"probability that any of them fails is at most {FALSE_ALARM:.0%}."
        )
    sentences += _say_change(reports, names, unfitted)
    return Verdict(regime, tuple(sentences))


def _answer(
    reports: Sequence[Report], names: Sequence[str], failing: Sequence[int], unclear: Sequence[int]
) -> tuple[str, str]:
    """Name the regime of all classes, and begin the sentence that answers the question."""
    classes = _count_classes(len(reports))
    if failing:
        regimes = {_regime(reports[index]) for index in failing}
        regime = regimes.pop() if len(regimes) == 1 else "miscalibrated"
        of = f"{len(failing):,} of {classes}" if len(failing) < len(reports) else f"all {classes}"
        of = classes if len(reports) == 1 else of
        return regime, f"The probabilities of {of} cannot be trusted: {_list(failing, names)}"
    if not unclear:
        trusted = "These probabilities can be trusted: no sign of miscalibration in"
        return "calibrated", f"{trusted} {classes} and {reports[0].samples:,} samples"
    if len(unclear) == len(reports):
        return "unclear", f"No sign of miscalibration, but the data are too few to rule it out in {classes}"
    trusted = f"the probabilities of {len(reports) - len(unclear):,} of {classes} can be trusted"
    return "unclear", f"No sign of miscalibration: {trusted}, and for {len(unclear):,} the data cannot tell"


def _say_remedy(reports: Sequence[Report], failing: Sequence[int], *, tried: bool) -> str:
    """End the first sentence: what calibration does."""
    if all(report.chosen.given for report in reports):
        return "; none of the methods does better." if tried and failing else "."
    if not failing:
        return "; calibration fits a little better."
    left = [index for index in range(len(reports)) if fails(reports[index].chosen)]
    if not left and any(stays_open(_diagnosis(reports[index].chosen), binary=True) for index in failing):
        return f"; calibration corrects them as far as {reports[0].samples:,} samples can show."
    if not left:
        return "; calibration turns them into probabilities that you can use."
    if _mean(reports, "nll", chosen=True) < _mean(reports, "nll", chosen=False):
        return "; calibration makes them better, but not all of them right."
    return "; calibration does not make them better."


def _say_worst(report: Report, name: str) -> list[str]:
    """Say what is wrong with the worst class, and how large it is."""
    found = _diagnosis(report.given)
    ece = report.given.measures["debiased_ece"]
    limits = format_interval("debiased_ece", ece)
    interval = f" ({limits})" if limits else ""
    predicted, observed = format_apart(found.predicted, found.observed)
    return [
        f"The worst is {call_class(name)}: its probabilities are {describe_way(report)}, with a debiased ECE of "
        f"{format_percent(ece.value)}{interval}; {predicted} predicted on average, {observed} observed "
        f"({say_p_value(found.p_value)})."
    ]


def _say_rest(
    reports: Sequence[Report], names: Sequence[str], failing: Sequence[int], unclear: Sequence[int]
) -> list[str]:
    """Say which errors would have been seen in the classes without a sign of miscalibration, and where none would."""
    sentences = []
    trusted = [index for index in range(len(reports)) if index not in {*failing, *unclear}]
    if trusted:
        seen = max(_diagnosis(reports[index].given).detectable for index in trusted)
        some = "class" if len(trusted) == 1 else f"{len(trusted):,} classes"
        subject = f"In the {some} that can be trusted" if failing or unclear else "In each class"
        sentences.append(
            f"{subject}, an error above {format_points(seen)} (ECE, in an eighth of the samples or more) would have "
            f"been seen with {POWER:.0%} probability."
        )
    rare = [index for index in unclear if is_rare(_diagnosis(reports[index].given))]
    if rare:
        counts = [f"{call_class(names[index])} ({count_events(reports[index])})" for index in rare]
        sentences.append(f"Too rare to tell: {_join(counts)}.")
    few = [index for index in unclear if index not in rare]
    if few:
        unseen = min(1.0, max(_diagnosis(reports[index].given).detectable for index in few))
        sentences.append(
            f"The data cannot tell for {_list(few, names)}: an error of up to {format_points(unseen)} could go unseen."
        )
    return sentences


def _say_change(reports: Sequence[Report], names: Sequence[str], unfitted: Sequence[int]) -> list[str]:
    """Say what calibration changes, and what it leaves."""
    titles = Counter(report.chosen.title for report in reports if not report.chosen.given)
    sentences = []
    if titles:
        listed = ", ".join(f"{lower_title(title)} ({count:,})" for title, count in titles.most_common())
        kept = len(reports) - titles.total()
        stay = f"; {kept:,} {'stays' if kept == 1 else 'stay'} as given" if kept else ""
        ece = [format_percent(_mean(reports, "debiased_ece", chosen=chosen)) for chosen in (False, True)]
        nll = [format_number(_mean(reports, "nll", chosen=chosen)) for chosen in (False, True)]
        sentences.append(
            f"Calibrators were chosen for {_count_classes(titles.total())}: {listed}{stay}. Averaged over all classes, "
            f"debiased ECE goes from {ece[0]} to {ece[1]}, and NLL from {nll[0]} to {nll[1]}."
        )
        left = [index for index, report in enumerate(reports) if fails(report.chosen)]
        least = say_p_value(min(_diagnosis(report.chosen).p_value for report in reports))
        if left:
            sentences.append(f"After it, some miscalibration is left in {_list(left, names)} ({least}).")
        else:
            sentences.append(f"After it, no sign of miscalibration is left in any class ({least}).")
    if unfitted:
        verb = "has" if len(unfitted) == 1 else "have"
        few = f"which {verb} too few positives or negatives"
        sentences.append(f"Nothing was fitted to {_list(unfitted, names)}, {few}.")
    return sentences


def _list(indices: Sequence[int], names: Sequence[str]) -> str:
    return _join([call_class(names[index]) for index in indices])


def _join(phrases: Sequence[str]) -> str:
    """Join phrases for a sentence: a few of them, and the number of the others."""
    if len(phrases) > _NAMED + 1:
        return f"{', '.join(phrases[:_NAMED])} and {len(phrases) - _NAMED:,} more"
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"


def _count_classes(number: int) -> str:
    return "1 class" if number == 1 else f"{number:,} classes"


def _mean(reports: Sequence[Report], measure: str, *, chosen: bool) -> float:
    methods = [report.chosen if chosen else report.given for report in reports]
    return float(np.mean([method.measures[measure].value for method in methods]))


def _regime(report: Report) -> str:
    assert report.verdict is not None  # a report on rows in memory has one
    return report.verdict.regime


def _diagnosis(method: Method) -> Diagnosis:
    assert method.diagnosis is not None
    return method.diagnosis
