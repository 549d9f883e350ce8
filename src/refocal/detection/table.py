"""Reports on detections in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from refocal.detection.record import DetectionReport
from refocal.report import Method, words
from refocal.report.terminal import Sentence, write_text

_SHOWN = ("d_ece", "la_ece", "la_ece_0", "nll")  # a terminal has room for these; the page shows all measures
_CATEGORIES = 5


def build_detection_table(found: DetectionReport) -> RenderableType:
    """Build the verdict and a table of the methods, for `rich.print`.

    Args:
        found: The report to show.

    Returns:
        A renderable. Names that come from users are shown as text, never read as markup.
    """
    report = found.report
    table = Table(title=write_text(found.describe()))
    table.add_column("method")
    for label in ("mean score", *_labels()):
        table.add_column(label, justify="right")
    for method in report.methods:
        mark = "\u00a0←" if method.chosen and len(report.methods) > 1 else ""
        cells = [write_text(method.title + mark, words.format_parameters(method.parameters))]
        cells += [write_text(_mean(method)), *(write_text(*_cell(method, name)) for name in _SHOWN)]
        table.add_row(*cells, style="bold" if method.chosen else None)
    sentences = [] if report.verdict is None else list(report.verdict.sentences)
    notes = [words.explain_limits(report.methods), _say_categories(found), report.protocol]
    notes += [f"← recommended: {report.chosen.title}"] if len(report.methods) > 1 else []
    notes += [report.rule or ""]
    return Group(
        *(Sentence(each, "" if number else "bold") for number, each in enumerate(sentences)),
        table,
        *map(Sentence, filter(None, notes)),
    )


def format_detection_table(found: DetectionReport) -> str:
    """Write the answer and a line for each method as plain text."""
    report = found.report
    lines = [["method", "mean score", *_labels()]]
    for method in report.methods:
        mark = " *" if method.chosen and len(report.methods) > 1 else ""
        lines.append([method.title + mark, _mean(method), *(_cell(method, name)[0] for name in _SHOWN)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]).rstrip() for first, *rest in lines]
    answer = "" if report.verdict is None else report.verdict.sentences[0]
    note = ["* recommended"] if len(report.methods) > 1 else []
    return "\n".join([words.printable(answer), words.printable(found.describe()), "", *table, *note])


def _labels() -> list[str]:
    return [words.describe_measure(name).label for name in _SHOWN]


def _mean(method: Method) -> str:
    return words.format_percent(words.mean_confidence_and_accuracy(method)[0])


def _cell(method: Method, name: str) -> tuple[str, str]:
    estimate = method.measures.get(name)
    if estimate is None:
        return words.MISSING, ""
    return words.format_measure(name, estimate.value), words.format_interval(name, estimate)


def _say_categories(found: DetectionReport) -> str:
    """Name the categories whose scores are farthest off, as given."""
    parts = sorted(found.report.slices, key=lambda part: -abs(part.given.gap.value))[:_CATEGORIES]
    if len(found.report.slices) < 2:
        return ""
    listed = "; ".join(
        f"{part.value}, {words.format_percent(part.given.predicted)} claimed, "
        f"{words.format_percent(part.given.observed)} right ({part.samples:,} boxes)"
        for part in parts
    )
    return f"Categories that are farthest off as given: {listed}."
