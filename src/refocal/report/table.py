"""The report in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from refocal.report import words
from refocal.report.record import Report

_SHOWN = ("nll", "brier", "ece", "error")  # what a terminal has room for; the page has the others


def build_table(report: Report) -> RenderableType:
    """The verdict and the methods with their intervals, for `rich.print`.

    Args:
        report: What was measured.

    Returns:
        A renderable; names of users are shown as they are, never read as markup.
    """
    names = [name for name in words.list_measures(report) if name in _SHOWN]
    methods = Table(title=_text(f"{report.source}: {report.samples:,} samples, {report.classes:,} classes"))
    methods.add_column("method")
    for name in names:
        methods.add_column(_text(words.describe_measure(name).label), justify="right")
    methods.add_column("p-value", justify="right")
    for method in report.methods:
        cells = [
            _text(
                method.title + ("\u00a0←" if method.chosen and len(report.methods) > 1 else ""),
                words.format_parameters(method.parameters),
            )
        ]
        for name in names:
            value = method.measures.get(name)
            if value is None:
                cells.append(_text(words.MISSING))
            else:
                cells.append(_text(words.format_measure(name, value.value), words.format_interval(name, value)))
        cells.append(_text(words.format_p_value(method.p_value)))
        methods.add_row(*cells, style="bold" if method.chosen else None)
    answer, *reasons = (_text(sentence) for sentence in report.verdict.sentences)
    answer.stylize("bold")
    recommended = [_text(f"← recommended: {report.chosen.title}")] if len(report.methods) > 1 else []
    return Group(answer, *reasons, methods, _text(words.LIMITS), *recommended)


def _text(first: str, small: str = "") -> Text:
    """Words, and small print below them."""
    text = Text(words.printable(first))
    return text.append("\n" + words.printable(small), style="not bold dim") if small else text
