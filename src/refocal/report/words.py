"""How the terminal and the page write the numbers and names of a report."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from refocal.report.record import Diagram, Estimate, Method, Report


class Wording(NamedTuple):
    """The label of a measure, its meaning, and whether it is shown as a percentage."""

    label: str
    meaning: str
    percent: bool


_MEASURES = {
    "ece": Wording("ECE", "mean distance between confidence and accuracy over bins", True),
    "debiased_ece": Wording("ECE, debiased", "ECE minus its bias from sampling noise", True),
    "adaptive_ece": Wording("Adaptive ECE", "ECE over bins that hold equally many samples", True),
    "smooth_ece": Wording("Smooth ECE", "ECE with smoothing instead of bins", True),
    "classwise_ece": Wording("Classwise ECE", "mean ECE of the probabilities of each class", True),
    "rms": Wording("RMS calibration error", "root mean square of the gaps that ECE averages", True),
    "d_ece": Wording("D-ECE", "mean distance between score and precision of boxes over bins", True),
    "la_ece": Wording("LaECE", "mean distance between score and precision times IoU over bins and categories", True),
    "la_ece_0": Wording("LaECE₀", "LaECE with every box right that overlaps its object: score against IoU", True),
    "mce": Wording("MCE", "largest gap between confidence and accuracy in any bin", True),
    "nll": Wording("NLL", "mean of −log p of the true class; lower is better", False),
    "brier": Wording("Brier", "mean squared error of the probabilities; lower is better", False),
    "error": Wording("Error", "fraction of samples whose most probable class is wrong", True),
    "confidence": Wording("Confidence", "mean probability of the most probable class", True),
    "confidence_share": Wording("Share 99% sure", "fraction of predictions with a confidence of 99% or more", True),
    "share_accuracy": Wording("Accuracy of these", "fraction of those predictions that are right", True),
    "auroc": Wording("AUROC", "how well confidence separates right from wrong predictions; higher is better", False),
    "aurc": Wording("AURC", "mean error when the least confident predictions are rejected; lower is better", False),
}
_BINARY_MEANINGS = {
    "ece": "mean distance between P(y = 1) and the observed frequency over bins",
    "mce": "largest gap between P(y = 1) and the observed frequency in any bin",
    "brier": "mean of (P(y = 1) − y)²; lower is better",
}
_SYMBOLS = {"gamma": "γ", "temperature": "T"}
_PEOPLE = ("Platt", "Dirichlet")
GIVEN, GIVEN_TITLE = "given", "As given"
MISSING = "–"
_LIMITS = (
    "Small print: 95% confidence limits of the true value. "
    "Sampling noise biases ECE upward; the interval corrects for this, so the raw value can lie above it."
)
FROM_SUMS = (
    "Measured block by block, from sums over rows.",
    "Confidence intervals, p-values and a verdict need all rows in memory.",
)
# Characters that neither a page nor a terminal should get: control characters (an escape would command the terminal),
# and halves of surrogate pairs, which come from undecodable file names.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def describe_measure(measure: str, *, binary: bool = False) -> Wording:
    """Return label and meaning of a measure; two classes are about P(y = 1). An unknown one is called by its name."""
    found = _MEASURES.get(measure) or Wording(measure.replace("_", " "), measure.replace("_", " "), False)
    return found._replace(meaning=_BINARY_MEANINGS.get(measure, found.meaning)) if binary else found


def describe_p_value(*, binary: bool) -> str:
    """Say what the p-value of a method means."""
    tests = (
        "tests of the mean of P(y = 1), of its ranges and of its bins"
        if binary
        else "tests of confidence, of its bins, of class frequencies and of each class"
    )
    return (
        f"how often calibrated probabilities would look at least this far off by chance, in {tests}; a value below 5% "
        "is evidence against calibration, a larger one does not prove calibration"
    )


def list_measures(report: Report) -> tuple[str, ...]:
    """List the measures of all methods, each once, in the order of the first method that has it."""
    return tuple(dict.fromkeys(name for method in report.methods for name in method.measures))


def lower_title(title: str) -> str:
    """Write the title of a method inside a sentence. Names of people keep their capital."""
    return title if title.startswith(_PEOPLE) else f"{title[:1].lower()}{title[1:]}"


def printable(value: str) -> str:
    """Replace each character that cannot be shown by �."""
    return _UNPRINTABLE.sub("\ufffd", value)


def format_percent(value: float, digits: int = 1) -> str:
    """Format a fraction as a percentage."""
    return f"{100 * value:.{digits}f}%" if math.isfinite(value) else MISSING


def format_number(value: float) -> str:
    """Format a number with four decimals, or in scientific notation if that would show 0."""
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    text = f"{value:.1e}" if 0 < abs(value) < 5e-5 else f"{value:.4f}"
    return text.replace("-", "−")


def format_measure(measure: str, value: float) -> str:
    """Format the value of a measure."""
    return format_percent(value, 2) if describe_measure(measure).percent else format_number(value)


def explain_limits(methods: Sequence[Method]) -> str:
    """Say what the confidence limits of methods are, and why a value can lie outside of its own."""
    debiased = [method.measures["debiased_ece"].value for method in methods if "debiased_ece" in method.measures]
    negative = " Noise can make the debiased value negative; its limits are never below 0."
    return _LIMITS + (negative if any(value < 0 for value in debiased) else "")


def explain_refinement(report: Report) -> str:
    """Say how much of the log loss and the Brier score is miscalibration; empty if that was not measured."""
    removed: list[str] = []
    kept: list[str] = []
    for name, parts in (("log loss", report.refinement), ("Brier score", report.brier_refinement)):
        if parts is None:
            continue
        loss = f"the {name} of {format_number(parts.total)}"
        if parts.calibration < 2 * parts.calibration_error or parts.calibration == 0:
            kept.append(loss)
            continue
        amount = f"{format_number(parts.calibration)} (standard error {format_number(parts.calibration_error)})"
        first = f"Of {loss} as given, {amount} is miscalibration that post-hoc calibration removes"
        removed.append(f"of {loss}, {amount}" if removed else first)
    sentences = ["; ".join(removed) + "."] if removed else []
    if kept:
        losses = " or ".join(kept)
        sentences.append(f"Calibrators cross-fitted to these samples alone do not clearly lower {losses} as given.")
    return " ".join(sentences)


def format_interval(measure: str, value: Estimate) -> str:
    """Format the confidence limits of a measure; empty if there are none."""
    if value.low is None or value.high is None or math.isnan(value.low) or math.isnan(value.high):
        return ""
    return f"{format_measure(measure, value.low)} to {format_measure(measure, value.high)}"


def format_p_value(value: float | None) -> str:
    """Format a p-value."""
    return MISSING if value is None or math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"


def format_seconds(value: float | None) -> str:
    """Format a duration; None if nothing was fitted."""
    return MISSING if value is None else "< 0.01 s" if value < 0.01 else f"{value:.2f} s"


def format_count(value: float) -> str:
    """Format a number of samples, which can be fractional if they have weights."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def keep_together(text: str) -> str:
    """Put spaces that do not break around the signs of "p = 0.04", "p < 0.001" and "γ = 3"."""
    return re.sub(r"\b([pγT]) ([=<]) (?=\d)", "\\1\u00a0\\2\u00a0", text)


def format_parameters(values: Mapping[str, float]) -> str:
    """Format fitted parameters, such as "γ = 3, T = 1.21"."""
    return ", ".join(f"{_SYMBOLS.get(name, name)} = {value:.4g}".replace("-", "−") for name, value in values.items())


def mean_confidence_and_accuracy(method: Method) -> tuple[float, float]:
    """Return mean confidence and accuracy of a method over all samples; NaN if sums do not tell them."""
    if method.diagram is None:
        if "confidence" not in method.measures:
            return math.nan, math.nan
        return method.measures["confidence"].value, 1 - method.measures["error"].value
    return diagram_means(method.diagram)


def diagram_means(diagram: Diagram) -> tuple[float, float]:
    """Return mean confidence and accuracy over all samples of a diagram."""
    total = sum(diagram.count)
    if not total:
        return math.nan, math.nan
    sure = sum(n * c for n, c in zip(diagram.count, diagram.confidence, strict=True))
    right = sum(n * a for n, a in zip(diagram.count, diagram.accuracy, strict=True))
    return sure / total, right / total


def count_outside(diagram: Diagram) -> int:
    """Count the bins that lie outside the consistency band."""
    bins = zip(diagram.accuracy, diagram.low, diagram.high, strict=True)
    return sum(not low <= accuracy <= high for accuracy, low, high in bins)


def describe_diagram(diagram: Diagram) -> str:
    """Describe a diagram in words, for readers who do not see it."""
    sure, right = diagram_means(diagram)
    bins = f"{len(diagram.count)} {'bin' if len(diagram.count) == 1 else 'bins'}"
    return (
        f"{format_count(sum(diagram.count))} samples in {bins}, {count_outside(diagram)} outside the consistency band. "
        f"Mean predicted probability {format_percent(sure)}, observed frequency {format_percent(right)}."
    )
