"""How a report's numbers and names are written for people: the same in the terminal and on the page."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from refocal.report.record import Diagram, Estimate, Method, Report


class Wording(NamedTuple):
    """What a measure is called, what it says, and whether it is read as a percentage."""

    label: str
    meaning: str
    percent: bool


_MEASURES = {
    "ece": Wording("ECE", "how far confidence is from accuracy, on average over bins", True),
    "adaptive_ece": Wording("Adaptive ECE", "ECE over bins of equally many samples", True),
    "smooth_ece": Wording("Smooth ECE", "ECE without bins, by smoothing", True),
    "classwise_ece": Wording("Classwise ECE", "ECE of each class's probability, averaged", True),
    "rms": Wording("RMS calibration error", "as ECE, with the gaps squared", True),
    "mce": Wording("MCE", "the largest gap between confidence and accuracy of a bin", True),
    "nll": Wording("NLL", "mean of −log p of the true class; lower is better", False),
    "brier": Wording("Brier", "mean squared error of the probabilities; lower is better", False),
    "error": Wording("Error", "how often the most probable class is wrong", True),
    "confidence": Wording("Confidence", "mean probability of the most probable class", True),
    "confidence_share": Wording("Share 99% sure", "how many predictions have a confidence of 99% or more", True),
    "share_accuracy": Wording("Accuracy of these", "how often those are right", True),
    "auroc": Wording("AUROC", "how well confidence tells right from wrong; higher is better", False),
    "aurc": Wording("AURC", "mean error when the least confident are left out; lower is better", False),
}
_SYMBOLS = {"gamma": "γ", "temperature": "T"}
MISSING = "–"
LIMITS = (
    "Small print: 95% confidence limits of the true value. "
    "Sampling noise biases ECE upward; the interval corrects for this, so the raw value can lie above it."
)
FROM_SUMS = (
    "Measured block by block, from sums over rows.",
    "Confidence intervals, p-values and a verdict need all rows in memory.",
)
# What neither a page nor a terminal should get: controls (an escape would command the terminal), and the halves of
# surrogate pairs that undecodable file names bring.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def describe_measure(measure: str) -> Wording:
    """The words for a measure; one that is not known is called by its name."""
    return _MEASURES.get(measure) or Wording(measure.replace("_", " "), measure.replace("_", " "), False)


def list_measures(report: Report) -> tuple[str, ...]:
    """The measures of any method, each once, in the order of the first method that has it."""
    return tuple(dict.fromkeys(name for method in report.methods for name in method.measures))


def printable(value: str) -> str:
    """A user's words, with a sign in place of each character that cannot be shown."""
    return _UNPRINTABLE.sub("\ufffd", value)


def format_percent(value: float, digits: int = 1) -> str:
    """A share, as a percentage."""
    return f"{100 * value:.{digits}f}%" if math.isfinite(value) else MISSING


def format_number(value: float) -> str:
    """A number to four decimals; a very small one, which would show as 0, by its power of ten."""
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:.1e}" if 0 < abs(value) < 5e-5 else f"{value:.4f}"
    return text.replace("-", "−")


def format_measure(measure: str, value: float) -> str:
    """A measure's value."""
    return format_percent(value, 2) if describe_measure(measure).percent else format_number(value)


def format_interval(measure: str, value: Estimate) -> str:
    """Format the confidence limits of a measure; empty if there are none."""
    if value.low is None or value.high is None or math.isnan(value.low) or math.isnan(value.high):
        return ""
    return f"{format_measure(measure, value.low)} to {format_measure(measure, value.high)}"


def format_p_value(value: float | None) -> str:
    """Format a p-value."""
    return MISSING if value is None or math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"


def format_seconds(value: float | None) -> str:
    """A duration; nothing was fitted where there is none."""
    return MISSING if value is None else "< 0.01 s" if value < 0.01 else f"{value:.2f} s"


def format_count(value: float) -> str:
    """A number of samples, which weights may make fractional."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def format_parameters(values: Mapping[str, float]) -> str:
    """Fitted parameters, such as "γ = 3, T = 1.21"."""
    return ", ".join(f"{_SYMBOLS.get(name, name)} = {value:.4g}".replace("-", "−") for name, value in values.items())


def mean_confidence_and_accuracy(method: Method) -> tuple[float, float]:
    """Mean confidence and accuracy of a method, over all samples."""
    if method.diagram is None:
        return method.measures["confidence"].value, 1 - method.measures["error"].value
    return diagram_means(method.diagram)


def diagram_means(diagram: Diagram) -> tuple[float, float]:
    """Mean confidence and accuracy over all samples of a diagram."""
    total = sum(diagram.count)
    if not total:
        return math.nan, math.nan
    sure = sum(n * c for n, c in zip(diagram.count, diagram.confidence, strict=True))
    right = sum(n * a for n, a in zip(diagram.count, diagram.accuracy, strict=True))
    return sure / total, right / total


def count_outside(diagram: Diagram) -> int:
    """How many bins lie outside the consistency band."""
    bins = zip(diagram.accuracy, diagram.low, diagram.high, strict=True)
    return sum(not low <= accuracy <= high for accuracy, low, high in bins)


def describe_diagram(diagram: Diagram) -> str:
    """A diagram in a sentence, for those who do not see it."""
    sure, right = diagram_means(diagram)
    bins = f"{len(diagram.count)} {'bin' if len(diagram.count) == 1 else 'bins'}"
    return (
        f"{format_count(sum(diagram.count))} samples in {bins}, {count_outside(diagram)} outside "
        f"the consistency band. Mean predicted probability {format_percent(sure)}, came true {format_percent(right)}."
    )
