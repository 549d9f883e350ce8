"""The verdict in words: whether the probabilities can be trusted, why, and what helps."""

from __future__ import annotations

from refocal.report.record import Method, Verdict
from refocal.report.words import format_number, format_p_value, format_percent, mean_confidence_and_accuracy

_LEVEL = 0.05
_SLIGHT = 0.01  # a smaller ECE rarely matters
_TOO_MUCH = 0.05  # if so large an ECE cannot be ruled out, the question stays open


def write_verdict(
    given: Method,
    chosen: Method,
    *,
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
        samples: Number of test samples.
        changed: The fraction of samples whose predicted class differs between the two.
        gamma: Focusing parameter that the network was trained with; None if unknown.
        below: The fraction of scores that lie below the closed-form posterior of that loss.
        alone: Whether no other method was tried.
    """
    regime, first = _regime(given, samples)
    title = f"{chosen.title[0].lower()}{chosen.title[1:]}"
    better = chosen.measures["nll"].value < given.measures["nll"].value
    if chosen.given:
        first += "." if alone or regime == "calibrated" else "; none of the methods does better."
    elif not better:
        first += f"; {title} does not make them better."
    elif regime == "calibrated":
        first += f", though {title} fits a little better."
    else:
        first += f"; {title} turns them into probabilities that you can use."
    sure, right = mean_confidence_and_accuracy(given)
    sentences = [
        first,
        f"On average they are {format_percent(sure)} sure and {format_percent(right)} right (test of calibration: "
        f"{_p(given)}).",
    ]
    if gamma and below is not None:
        sentences.append(
            f"The network was trained with focal loss, γ = {gamma:g}: in theory {format_percent(below)} of its scores "
            "lie below the true probability."
        )
        if regime == "overconfident":
            sentences.append("The data say otherwise: a network that has overfitted is far from that minimum.")
    if not chosen.given:
        ece = [format_percent(method.measures["ece"].value) for method in (given, chosen)]
        nll = [format_number(method.measures["nll"].value) for method in (given, chosen)]
        classes = "Predicted classes do not change"
        if changed:
            classes = f"{format_percent(changed, 2)} of the predicted classes change"
        sentences.append(
            f"{chosen.title} takes ECE from {ece[0]} to {ece[1]} and NLL from {nll[0]} to {nll[1]}. {classes}."
        )
        left = "no sign of miscalibration is left" if _p_value(chosen) > _LEVEL else "some miscalibration is left"
        sentences.append(f"After it, {left} ({_p(chosen)}).")
    return Verdict(regime, tuple(sentences))


def _regime(given: Method, samples: int) -> tuple[str, str]:
    """Name the regime of the scores, and begin a sentence that says it."""
    ece = given.measures["ece"]
    if _p_value(given) > _LEVEL:
        unseen = 1 - _LEVEL ** (1 / samples)  # an error rate at which so many samples may show no error
        if max(ece.value if ece.high is None else ece.high, ece.value, unseen) > _TOO_MUCH:
            return "calibrated", f"No sign of miscalibration, but {samples:,} samples are too few to rule it out"
        return "calibrated", f"These probabilities can be trusted: no sign of miscalibration in {samples:,} samples"
    sure, right = mean_confidence_and_accuracy(given)
    if abs(sure - right) < ece.value / 2:
        return "miscalibrated", "These scores are too sure in some places and not sure enough in others"
    regime = "overconfident" if sure > right else "underconfident"
    return regime, f"These scores are {'slightly ' if ece.value < _SLIGHT else ''}{regime}"


def _p_value(method: Method) -> float:
    if method.p_value is None:
        msg = f"a verdict needs the p-value of {method.name!r}, which sums over rows do not give"
        raise ValueError(msg)
    return method.p_value


def _p(method: Method) -> str:
    value = format_p_value(method.p_value)
    return f"p {value}" if value.startswith("<") else f"p = {value}"
