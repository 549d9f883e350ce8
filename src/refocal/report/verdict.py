"""The verdict in words: whether the probabilities can be trusted, why, and what helps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from refocal.metrics.diagnosis import FALSE_ALARM, POWER, ClassGap, Diagnosis, RangeGap
from refocal.report.record import Method, Verdict
from refocal.report.words import format_number, format_p_value, format_percent, lower_title

_SLIGHT = 0.01  # a smaller ECE rarely matters
_TOO_MUCH = 0.05  # if so large an error cannot be ruled out, the question stays open
_STEEP = 2.0  # standard errors of a slope that is there
_LEAST_FOR_FACTOR = 1e-4  # of a smaller probability, a factor tells nothing
_LEAST_FACTOR = 1.15  # points tell a smaller one better: rounded, it would be 1.0 or 1.1
_SLIGHT_FACTOR = 1.5  # a probability that is off by a larger one is not slightly off
_RARE = 0.1  # a class that is predicted more often is not called rare
_NOISE = 0.435  # of a stated error: the part that grows with the noise of more cases, by the root of their number
_LARGEST_FACTOR = 10  # that is stated
_LITTLE = 0.01  # gain of NLL
_NAMED = 3  # classes that a sentence names
_MOST_DIGITS = 4


def write_verdict(
    given: Method,
    chosen: Method,
    *,
    class_names: Sequence[str],
    samples: int,
    changed: float,
    gamma: float | None,
    below: float | None,
    alone: bool,
) -> Verdict:
    """Put the measurements into words.

    Args:
        given: The probabilities as given.
        chosen: The recommended method.
        class_names: One name per class; two for a binary task.
        samples: Number of test samples.
        changed: The fraction of samples whose predicted class differs between the two.
        gamma: Focusing parameter that the network was trained with; None if unknown.
        below: The fraction of scores that lie below the closed-form posterior of that loss.
        alone: Whether no other method was tried.
    """
    before = _require_diagnosis(given)
    regime, answer = _find_regime(given, before, class_names, samples)
    sentences = [
        answer + _say_remedy(given, chosen, regime, binary=len(class_names) == 2, samples=samples, alone=alone),
        *_say_why(given, before, class_names, samples),
    ]
    if gamma and below is not None:
        sentences.append(
            f"The network was trained with focal loss, γ = {gamma:g}: at the minimum of that loss, "
            f"{format_percent(below)} of these confidences would be below the true probability."
        )
        if regime == "overconfident":
            sentences.append(
                "The data show the opposite: the network is far from that minimum, as happens after overfitting."
            )
    if not chosen.given:
        sentences += _say_change(given, chosen, class_names, changed=changed)
    return Verdict(regime, tuple(sentences))


def _find_regime(given: Method, found: Diagnosis, class_names: Sequence[str], samples: int) -> tuple[str, str]:
    """Name the regime of the scores, and begin the sentence that answers the question."""
    if found.p_value > FALSE_ALARM:
        return _find_trust(found, class_names, samples)
    if fails_by_rounding(found):
        what = "Probabilities of exactly 0 or 1 are wrong, perhaps from rounding"
        return "miscalibrated", f"{what}, but the others show no sign of miscalibration"
    ece = given.measures["ece"].value
    binary = len(class_names) == 2
    slightly = "slightly " if ece < _SLIGHT and not (binary and _is_far_for_rarer(found)) else ""
    if binary:
        return _find_binary_regime(found, call_class(class_names[1]), ece, slightly)
    if found.failed("confidence") is None and found.failed("bins") is None:
        what = "class frequencies" if found.failed("frequencies") else "probabilities of some classes"
        return "miscalibrated", f"The {what} are wrong, although the confidence in the predicted class shows no error"
    gap = found.predicted - found.observed
    if abs(gap) < ece / 2:
        return "miscalibrated", "These scores are too sure in some places and not sure enough in others"
    regime = "overconfident" if gap > 0 else "underconfident"
    return regime, f"These scores are {slightly}{regime}"


def _find_trust(found: Diagnosis, class_names: Sequence[str], samples: int) -> tuple[str, str]:
    """Say whether the data are enough to trust scores that no test rejects."""
    if found.detectable > _TOO_MUCH:
        return "unclear", f"No sign of miscalibration, but {samples:,} samples are too few to rule it out"
    if stays_open(found, binary=len(class_names) == 2):
        rarer, _ = _find_rarer(found, class_names)
        return "unclear", f"No sign of miscalibration, but {rarer} is too rare for {samples:,} samples to rule it out"
    return "calibrated", f"These probabilities can be trusted: no sign of miscalibration in {samples:,} samples"


def _find_binary_regime(found: Diagnosis, positive: str, ece: float, slightly: str) -> tuple[str, str]:
    gap = found.predicted - found.observed
    if found.failed("frequencies") and abs(gap) >= ece / 2:
        side = "high" if gap > 0 else "low"
        return f"too {side}", f"The probabilities of {positive} are {slightly}too {side}"
    if abs(found.slope) < _STEEP:
        return "miscalibrated", f"The probabilities of {positive} are too high in some ranges and too low in others"
    if found.slope < 0:
        return "overconfident", f"The probabilities of {positive} are {slightly}too extreme"
    return "underconfident", f"The probabilities of {positive} are {slightly}not extreme enough"


def fails_by_rounding(found: Diagnosis) -> bool:
    """Whether only probabilities of exactly 0 and 1 fail, and as rarely as rounding explains."""
    certain = found.certain
    return certain is not None and certain.rounding and certain.p_value is not None and certain.p_value > FALSE_ALARM


def is_rare(found: Diagnosis) -> bool:
    """Whether y = 1, or y = 0, is rare and could be twice as frequent as predicted and go unseen."""
    rarer = min(found.predicted, 1 - found.predicted)
    return rarer <= _RARE and _find_unseen_factor(found, rarer) > 2


def _find_unseen_factor(found: Diagnosis, predicted: float) -> float:
    """Find how many times as frequent as predicted a rare class could be and go unseen.

    It is the largest x for which the error (x - 1) predicted is at most the detectable one, whose noise is that of x
    times as many cases.
    """
    if not predicted:
        return math.inf
    error = found.detectable_frequency / predicted
    half = _NOISE * error / 2
    root = half + math.sqrt(half * half + 1 + (1 - _NOISE) * error)
    return root * root


def _is_far_for_rarer(found: Diagnosis) -> bool:
    """Whether the frequency of y = 1, or of y = 0 if that is rarer, is off by a large factor."""
    shares = found.predicted, found.observed
    small, large = sorted(shares if sum(shares) <= 1 else (1 - share for share in shares))
    return large > _SLIGHT_FACTOR * max(small, _LEAST_FOR_FACTOR)


def _find_rarer(found: Diagnosis, class_names: Sequence[str]) -> tuple[str, float]:
    """Name the class that is predicted less often, and how often."""
    index = int(found.predicted <= 0.5)
    return call_class(class_names[index]), found.predicted if index else 1 - found.predicted


def stays_open(found: Diagnosis, *, binary: bool) -> bool:
    """Whether large errors could go unseen."""
    return found.detectable > _TOO_MUCH or (binary and is_rare(found))


def _say_remedy(given: Method, chosen: Method, regime: str, *, binary: bool, samples: int, alone: bool) -> str:
    """End the first sentence: what the recommended method does."""
    trusted = regime in ("calibrated", "unclear")
    if chosen.given:
        return "." if alone or trusted else "; none of the methods does better."
    title = lower_title(chosen.title)
    gain = given.measures["nll"].value - chosen.measures["nll"].value
    if not gain > 0:
        return f"; {title} does not make them better."
    if trusted:
        return f"; {title} fits {'a little ' if gain < _LITTLE else ''}better."
    after = _require_diagnosis(chosen)
    if after.p_value > FALSE_ALARM and stays_open(after, binary=binary):
        return f"; {title} corrects them as far as {samples:,} samples can show."
    if after.p_value > FALSE_ALARM:
        return f"; {title} turns them into probabilities that you can use."
    return f"; {title} makes them better, but not right."


def _say_why(given: Method, found: Diagnosis, class_names: Sequence[str], samples: int) -> list[str]:
    """Say what failed and how large it is, or what would have been seen."""
    binary = len(class_names) == 2
    sentences, certain = [_say_means(found, binary=binary)], _say_certain(found, samples)
    if found.p_value > FALSE_ALARM or fails_by_rounding(found):
        return [*sentences, *certain, *_say_detectable(found, class_names)]
    if binary and found.range.p_value <= FALSE_ALARM:
        sentences.append(_say_range(call_class(class_names[1]), found.range))
    sentences += _say_failing_classes(found, class_names)
    low = given.measures["ece"].low
    if low is not None and low <= 0 and found.p_value < 0.001:
        sentences.append(
            "The interval of ECE reaches 0 although the tests are clear: they also look at the direction of the gaps"
            f"{'' if binary else ' and at each class'}, which ECE averages away."
        )
    return [*sentences, *certain]


def _say_means(found: Diagnosis, *, binary: bool) -> str:
    """Say what was predicted and observed on average."""
    tested = f"(tests of calibration: {say_p_value(found.p_value)})"
    predicted, observed = format_apart(found.predicted, found.observed)
    if not binary:
        return f"On average they are {predicted} sure and {observed} right {tested}."
    means = f"{predicted} predicted, {observed} observed"
    if found.failed("frequencies"):
        gap = found.predicted - found.observed
        side = "high" if gap > 0 else "low"
        means = f"they are {format_points(abs(gap))}{_say_factor(found)} too {side}: {means}"
    return f"On average, {means} {tested}."


def _say_certain(found: Diagnosis, samples: int) -> list[str]:
    """Say how often a probability of 0 came true."""
    if found.certain is None:
        return []
    refuted = f"In {found.certain.refuted:,} of {samples:,} samples, the class that came true has a probability of"
    hint = " If the numbers were rounded, save more decimals." if found.certain.rounding else ""
    return [f"{refuted} exactly 0, so the log loss is infinite.{hint}"]


def _say_failing_classes(found: Diagnosis, class_names: Sequence[str]) -> list[str]:
    """Name the classes whose frequencies or probabilities are off."""
    if (failed := found.failed("frequencies")) and failed.classes:
        listed = "; ".join(_say_frequency(each, class_names) for each in failed.classes[:_NAMED])
        return [f"Class frequencies are off: {listed}{_say_more(failed.classes)}."]
    failed = found.failed("classes")
    if failed is None or not _are_few(failed.classes, found, len(class_names)):
        return []
    worst, *others = failed.classes
    assert worst.range is not None  # the first ones have it
    sentences = [_say_range(call_class(class_names[worst.index]), worst.range)]
    if others:
        names = ", ".join(call_class(class_names[each.index]) for each in others[:_NAMED])
        more = len(others) - _NAMED
        sentences.append(f"The same test fails for {names}{f' and {more:,} more' if more > 0 else ''}.")
    return sentences


def _say_frequency(gap: ClassGap, class_names: Sequence[str]) -> str:
    predicted, observed = format_apart(gap.predicted, gap.observed)
    return f"{call_class(class_names[gap.index])}, {predicted} predicted on average, {observed} observed"


def _say_factor(found: Diagnosis) -> str:
    """Say by which factor the mean is off, if it is small."""
    small, large = sorted((found.predicted, found.observed))
    tells = small >= _LEAST_FOR_FACTOR and large < 0.1 and large / small >= _LEAST_FACTOR
    return f" ({large / small:.1f} times)" if tells else ""


def _are_few(classes: Sequence[ClassGap], found: Diagnosis, among: int) -> bool:
    """Whether the failing classes are worth naming: not if the confidence fails, which makes most classes fail."""
    return bool(classes) and (found.failed("confidence") is None or len(classes) <= among / 4)


def _say_range(class_name: str, gap: RangeGap) -> str:
    """Say how far off the claims of a range are: by a factor where they are small, in points elsewhere."""
    if gap.low == 0:
        where = f"below {_short(gap.high)}"
    elif gap.high == 1:
        where = f"above {_short(gap.low)}"
    else:
        where = f"between {_short(gap.low)} and {_short(gap.high)}"
    digits = 2 if gap.high <= 0.01 or gap.low >= 0.99 else 1
    predicted, observed = format_apart(gap.predicted, gap.observed, digits)
    numbers = f"{predicted} on average, but {observed} came true"
    side = "high" if gap.predicted > gap.observed else "low"
    small, large = sorted((gap.predicted, gap.observed))
    if gap.high <= 0.1 and small >= _LEAST_FOR_FACTOR and large / small >= _LEAST_FACTOR:
        size = f"{large / small:.1f} times too {side}"
    else:
        size = f"{format_points(large - small)} too {side}"
    return f"Where the probability of {class_name} is {where}, it is {size}: {numbers}."


def _say_detectable(found: Diagnosis, class_names: Sequence[str]) -> list[str]:
    """Say which errors would have been seen, and how far off a rare class could be."""
    if found.detectable >= 1:
        return ["No error would have been seen reliably in so few samples."]
    error = (
        f"An error above {format_points(found.detectable)} (ECE, in an eighth of the samples or more) would have been "
        f"seen with {POWER:.0%} probability"
    )
    binary = len(class_names) == 2
    what = "an average error" if binary else "an error in the frequency of a class"
    sentences = [f"{error}; so would {what} above {format_points(min(found.detectable_frequency, 1.0))}."]
    if binary and is_rare(found):
        sentences.append(f"{_capitalize(_say_unseen(found, class_names))}.")
    return sentences


def _say_unseen(found: Diagnosis, class_names: Sequence[str]) -> str:
    """Say how frequent a rare class could be and go unseen."""
    rarer, predicted = _find_rarer(found, class_names)
    more = "far more frequent than"
    if predicted >= _LEAST_FOR_FACTOR:
        factor = _find_unseen_factor(found, predicted)
        times = f"{factor:.1f}" if factor < _LARGEST_FACTOR else f"more than {_LARGEST_FACTOR}"
        more = f"{times} times as frequent as"
    return f"{rarer} could be {more} predicted and go unnoticed"


def _say_change(given: Method, chosen: Method, class_names: Sequence[str], *, changed: float) -> list[str]:
    """Say what the recommended method changes, and what it leaves."""
    ece = [format_percent(method.measures["debiased_ece"].value) for method in (given, chosen)]
    nll = [format_number(method.measures["nll"].value) for method in (given, chosen)]
    classes = "Predicted classes do not change."
    if changed:
        error = [format_percent(method.measures["error"].value) for method in (given, chosen)]
        classes = (
            f"The predicted class changes for {format_percent(changed, 2)} of the samples, and the error goes from "
            f"{error[0]} to {error[1]}."
        )
    after = _require_diagnosis(chosen)
    sentences = [
        f"{chosen.title} takes debiased ECE from {ece[0]} to {ece[1]} and NLL from {nll[0]} to {nll[1]}. {classes}"
    ]
    if after.p_value <= FALSE_ALARM:
        sentences.append(
            f"After it, some miscalibration is left ({say_p_value(after.p_value)}): {_say_left(after, class_names)}."
        )
    else:
        but = ""
        if after.detectable > _TOO_MUCH:
            seen = format_points(min(after.detectable, 1.0))
            but = f", but only an error above {seen} would have been seen reliably"
        elif stays_open(after, binary=len(class_names) == 2):
            but = f", but {_say_unseen(after, class_names)}"
        sentences.append(f"After it, no sign of miscalibration is left ({say_p_value(after.p_value)}){but}.")
    return sentences


def _say_left(after: Diagnosis, class_names: Sequence[str]) -> str:
    """Name the tests that still fail."""
    binary = len(class_names) == 2
    words = {
        "confidence": "the confidence is off",
        "frequencies": f"the mean probability of {call_class(class_names[1])} is off"
        if binary
        else "class frequencies are off",
        "classes": "the probabilities of some classes are off",
        "probabilities": "the probabilities of some ranges are off",
        "bins": "the probabilities of some bins are off",
    }
    return ", ".join(words[check.name] for check in after.checks if check.p_value <= FALSE_ALARM)


def _say_more(classes: Sequence[ClassGap]) -> str:
    more = len(classes) - _NAMED
    return f"; {more:,} more {'classes are' if more > 1 else 'class is'} off" if more > 0 else ""


def _require_diagnosis(method: Method) -> Diagnosis:
    if method.diagnosis is None:
        msg = f"a verdict needs the diagnosis of {method.name!r}, which sums over rows do not give"
        raise ValueError(msg)
    return method.diagnosis


def call_class(class_name: str) -> str:
    """Name a class in a sentence: a number alone would not read as a name."""
    return f"class {class_name}" if class_name.isdecimal() else class_name


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def format_apart(first: float, second: float, digits: int = 1) -> tuple[str, str]:
    """Format two percentages with as many digits as it takes to tell them apart, if a few more do."""
    for more in range(digits, _MOST_DIGITS + 1):
        texts = format_percent(first, more), format_percent(second, more)
        if texts[0] != texts[1]:
            return texts
    return format_percent(first, digits), format_percent(second, digits)


def format_points(value: float) -> str:
    """Format an error in percentage points."""
    return f"{100 * value:.{1 if value >= 0.001 else 2}f} points"


def _short(value: float) -> str:
    return f"{100 * value:g}%"


def say_p_value(value: float) -> str:
    """Write a p-value in a sentence."""
    text = format_p_value(value)
    return f"p {text}" if text.startswith("<") else f"p = {text}"
