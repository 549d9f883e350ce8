"""The verdict in words: are the probabilities to be trusted, why or why not, and what helps."""

from __future__ import annotations

from refocal.report.record import Method, Verdict
from refocal.report.words import format_number, format_p_value, format_percent, mean_confidence_and_accuracy

_LEVEL = 0.05
_SLIGHT = 0.01  # an ECE below it matters to few
_TOO_MUCH = 0.05  # an ECE that, if it cannot be ruled out, leaves the question open


def verdict(
    given: Method,
    chosen: Method,
    *,
    samples: int,
    changed: float,
    gamma: float | None,
    below: float | None,
    alone: bool,
) -> Verdict:
    """Put into words what was measured.

    Args:
        given: The probabilities as they came.
        chosen: The recommended ones.
        samples: Number of test samples.
        changed: The share of decisions that differ between the two.
        gamma: What the network was trained with, where it is known.
        below: The share of scores that lie below the closed-form posterior of that loss.
        alone: Whether nothing else was tried.
    """
    regime, first = _regime(given, samples)
    title = f"{chosen.title[0].lower()}{chosen.title[1:]}"
    better = chosen.measures["nll"].value < given.measures["nll"].value
    if chosen.given:
        first += "." if alone or regime == "calibrated" else "; no method that was tried does better."
    elif not better:
        first += f"; {title} does not make them better."
    elif regime == "calibrated":
        first += f", though {title} fits a little better."
    else:
        first += f"; {title} makes them probabilities that you can use."
    sure, right = mean_confidence_and_accuracy(given.diagram)
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
        decisions = "All decisions stay" if changed == 0 else f"{format_percent(changed, 2)} of the decisions change"
        sentences.append(
            f"{chosen.title} takes ECE from {ece[0]} to {ece[1]} and NLL from {nll[0]} to {nll[1]}. {decisions}."
        )
        left = "no sign of miscalibration is left" if chosen.p_value > _LEVEL else "some miscalibration is left"
        sentences.append(f"After it, {left} ({_p(chosen)}).")
    return Verdict(regime, tuple(sentences))


def _regime(given: Method, samples: int) -> tuple[str, str]:
    """What the scores are, in a word and at the head of a sentence."""
    ece = given.measures["ece"]
    if given.p_value > _LEVEL:
        unseen = 1 - _LEVEL ** (1 / samples)  # a rate of mistakes that so many samples may show none of
        if max(ece.high, ece.value, unseen) > _TOO_MUCH:
            return "calibrated", f"No sign of miscalibration, but {samples:,} samples are too few to rule it out"
        return "calibrated", f"These probabilities can be trusted: no sign of miscalibration in {samples:,} samples"
    sure, right = mean_confidence_and_accuracy(given.diagram)
    if abs(sure - right) < ece.value / 2:
        return "miscalibrated", "These scores are too sure in some places and not sure enough in others"
    regime = "overconfident" if sure > right else "underconfident"
    return regime, f"These scores are {'slightly ' if ece.value < _SLIGHT else ''}{regime}"


def _p(method: Method) -> str:
    value = format_p_value(method.p_value)
    return f"p {value}" if value.startswith("<") else f"p = {value}"
