"""Reports in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from refocal.report import words
from refocal.report.record import Method, Report
from refocal.report.terminal import Sentence, write_text
from refocal.report.terminal_answers import answer_questions

_SHOWN = ("nll", "brier", "debiased_ece", "error")  # a terminal has room for these; the page shows all measures


def build_table(report: Report) -> RenderableType:
    """Build the verdict and a table of the methods, for `rich.print`; then slices, costs and sets, if asked for.

    A report that was measured from sums has no verdict. Its table has a row for each measure.

    Args:
        report: The report to show.

    Returns:
        A renderable. Names that come from users are shown as text, never read as markup.
    """
    if report.verdict is None:
        columns = [(method.title, report, method) for method in report.methods]
        fitted = [
            f"{method.title}: {words.format_parameters(method.parameters)}"
            for method in report.methods
            if method.parameters
        ]
        return Group(
            write_text(_heading(report)), compare_measures(columns), *map(Sentence, fitted), Sentence(_note(columns))
        )
    names = [name for name in words.list_measures(report) if name in _SHOWN]
    methods = Table(title=write_text(_heading(report)))
    methods.add_column("method")
    for name in names:
        methods.add_column(write_text(words.describe_measure(name).label), justify="right")
    methods.add_column("p-value", justify="right")
    for method in report.methods:
        cells = [
            write_text(
                method.title + ("\u00a0←" if method.chosen and len(report.methods) > 1 else ""),
                words.format_parameters(method.parameters),
            )
        ]
        cells += [write_text(*_cell(method, name)) for name in names]
        cells.append(write_text(words.format_p_value(method.p_value)))
        methods.add_row(*cells, style="bold" if method.chosen else None)
    answer, *reasons = report.verdict.sentences
    notes = [words.explain_refinement(report), words.explain_limits(report.methods), report.protocol]
    notes += [f"← recommended: {report.chosen.title}"] if len(report.methods) > 1 else []
    notes += [report.rule or ""]
    said = map(Sentence, filter(None, notes))
    return Group(Sentence(answer, "bold"), *map(Sentence, reasons), methods, *said, *answer_questions(report))


def format_table(report: Report) -> str:
    """Write the answer and a line for each method as plain text."""
    names = [name for name in words.list_measures(report) if name in _SHOWN]
    lines = [["method", *(words.describe_measure(name).label for name in names), "p-value"]]
    for method in report.methods:
        mark = " *" if method.chosen and len(report.methods) > 1 else ""
        values = [_cell(method, name)[0] for name in names]
        lines.append([words.printable(method.title) + mark, *values, words.format_p_value(method.p_value)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]).rstrip() for first, *rest in lines]
    answer = words.FROM_SUMS if report.verdict is None else report.verdict.sentences
    note = ["* recommended"] if len(report.methods) > 1 else []
    return "\n".join([words.printable(answer[0]), words.printable(_heading(report)), "", *table, *note])


def compare_reports(reports: Sequence[Report], *more: tuple[str, ...]) -> RenderableType:
    """Build a table with a column for each report and a row for each measure of the scores as given.

    Below are the slices, costs and sets of each report, if asked for.

    Args:
        reports: The reports to compare.
        more: Further rows: a heading, and a cell for each report.
    """
    columns = [(report.source, report, report.given) for report in reports]
    table = compare_measures(columns)
    for row in more:
        table.add_row(*row)
    protocols = [Sentence(f"{report.source}: {report.protocol}") for report in reports if report.protocol]
    answers: list[RenderableType] = []
    for report in reports:
        if found := answer_questions(report):
            answers += [Sentence(report.source, "bold"), *found]
    return Group(table, Sentence(_note(columns)), *protocols, *answers)


def compare_measures(columns: Sequence[tuple[str, Report, Method]]) -> Table:
    """Build a table with a column for each method, given with its title and its report, and a row for each measure."""
    table = Table()
    table.add_column("measure")
    for title, _, _ in columns:
        table.add_column(write_text(title), justify="right")
    table.add_row("Samples", *(words.format_count(report.samples) for _, report, _ in columns))
    methods = [method for _, _, method in columns]
    for name in words.list_measures(columns[0][1]):
        cells = ("\n".join(filter(None, _cell(method, name))) for method in methods)
        table.add_row(words.describe_measure(name).label, *cells)
    if any(method.p_value is not None for method in methods):
        table.add_row("calibrated? p-value", *(words.format_p_value(method.p_value) for method in methods))
    return table


def _cell(method: Method, name: str) -> tuple[str, str]:
    """The value of a measure, and its confidence limits."""
    estimate = method.measures.get(name)
    if estimate is None:
        return words.MISSING, ""
    return words.format_measure(name, estimate.value), words.format_interval(name, estimate)


def _heading(report: Report) -> str:
    return f"{report.source}: {report.samples:,} samples, {report.classes:,} classes"


def _note(columns: Sequence[tuple[str, Report, Method]]) -> str:
    from_sums = any(report.verdict is None for _, report, _ in columns)
    return " ".join(words.FROM_SUMS) if from_sums else words.explain_limits([method for _, _, method in columns])
