"""Multi-label reports in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from refocal.report import words
from refocal.report.multilabel_record import MultilabelReport
from refocal.report.multilabel_verdict import describe_way
from refocal.report.record import Method
from refocal.report.terminal import Sentence, write_text

_SHOWN = 20  # classes; the page has all of them


def build_multilabel_table(report: MultilabelReport) -> RenderableType:
    """Build the verdict and a table of the worst classes, for `rich.print`.

    Args:
        report: The report to show.

    Returns:
        A renderable. Names that come from users are shown as text, never read as markup.
    """
    head, *lines = _rows(report)
    table = Table(title=write_text(_heading(report)))
    for label in head:
        table.add_column(label, justify="left" if label in _WORDS else "right")
    for line in lines:
        table.add_row(*map(write_text, line))
    answer, *reasons = report.verdict.sentences
    notes = filter(None, [*_notes(report), report.protocol])
    return Group(Sentence(answer, "bold"), *map(Sentence, reasons), table, *map(Sentence, notes))


def format_multilabel_table(report: MultilabelReport) -> str:
    """Write the answer and a line for each of the worst classes as plain text."""
    lines = [[words.printable(cell) for cell in line] for line in _rows(report)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = [label in _WORDS for label in lines[0]]
    table = [
        "  ".join(
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(line, widths, left, strict=True)
        ).rstrip()
        for line in lines
    ]
    answer = words.printable(report.verdict.sentences[0])
    return "\n".join([answer, words.printable(_heading(report)), "", *table, *_notes(report)])


_WORDS = ("class", "verdict", "method")


def _rows(report: MultilabelReport) -> list[list[str]]:
    """The heading and a line for each of the worst classes."""
    after = report.is_changed
    rows = [["class", "mean", "frequency", "ECE, debiased", "p-value", "verdict"]]
    rows[0] += ["method", "ECE after"] if after else []
    for index in report.ranking[:_SHOWN]:
        own = report.reports[index]
        given, chosen = own.given, own.chosen
        predicted, observed = words.mean_confidence_and_accuracy(given)
        row = [report.class_names[index], words.format_percent(predicted), words.format_percent(observed)]
        row += [_ece(given), words.format_p_value(given.p_value), describe_way(own)]
        row += [chosen.title, words.MISSING if chosen.given else _ece(chosen)] if after else []
        rows.append(row)
    return rows


def _ece(method: Method) -> str:
    return words.format_measure("debiased_ece", method.measures["debiased_ece"].value)


def _notes(report: MultilabelReport) -> list[str]:
    hidden = report.classes - _SHOWN
    cut = [f"The {_SHOWN} worst classes; {hidden:,} more are on the page."] if hidden > 0 else []
    return [*cut, "mean: of P(y = 1). The p-values are corrected for the number of classes."]


def _heading(report: MultilabelReport) -> str:
    return f"{report.source}: {report.samples:,} samples, {report.classes:,} classes (multi-label)"
