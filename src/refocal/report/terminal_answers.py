"""Slices, costs and prediction sets of a report in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from refocal.report import words
from refocal.report.answers import CostDecisions, Subgroup
from refocal.report.record import Report
from refocal.report.set_tables import describe_sets
from refocal.report.subgroup_tables import explain_slices, group_slices
from refocal.report.terminal import Sentence, write_text
from refocal.report.verdict import call_class


def answer_questions(report: Report) -> list[RenderableType]:
    """Build what the report says about its slices, costs and prediction sets; nothing if it was not asked."""
    parts: list[RenderableType] = [_tabulate_slices(*each) for each in group_slices(report).items()]
    if report.slices:
        event = call_class(report.class_names[1]) if report.task == "binary" else None
        parts.append(Sentence(explain_slices(event)))
    if report.costs is not None:
        parts += [_tabulate_costs(report.costs), Sentence(_explain_costs(report.costs))]
    if report.sets is not None:
        parts += map(Sentence, describe_sets(report, report.sets))
    return parts


def _tabulate_slices(column: str, slices: Sequence[Subgroup]) -> Table:
    """One row per slice; two if there is a before and an after."""
    compared = slices[0].chosen is not None
    table = Table(title=write_text(f"Slices by {column}"))
    table.add_column(write_text(column))
    table.add_column("Samples", justify="right")
    if compared:
        table.add_column("")
    for heading in ("Predicted", "Observed", "ECE", "p-value"):
        table.add_column(heading, justify="right")
    for subgroup in slices:
        value, samples = subgroup.value, words.format_count(subgroup.samples)
        for when, each in (("before", subgroup.given), ("after", subgroup.chosen)):
            if each is None:
                continue
            table.add_row(
                write_text(value),
                samples,
                *([when] if compared else []),
                words.format_percent(each.predicted),
                words.format_percent(each.observed),
                write_text(words.format_measure("ece", each.ece.value), words.format_interval("ece", each.ece)),
                words.format_p_value(each.p_value),
            )
            value = samples = ""
    return table


def _tabulate_costs(decisions: CostDecisions) -> Table:
    sides = [("Before", decisions.given), ("After", decisions.chosen)]
    sides = [(words.GIVEN_TITLE, decisions.given)] if decisions.chosen is None else sides
    table = Table(title="Mean cost per sample")
    table.add_column("")
    for heading in ("Promised", "Actual"):
        table.add_column(heading, justify="right")
    for label, outcome in sides:
        if outcome is not None:
            actual = words.format_number(outcome.actual.value)
            limits = words.format_interval("cost", outcome.actual)
            table.add_row(label, words.format_number(outcome.promised), write_text(actual, limits))
    return table


def _explain_costs(decisions: CostDecisions) -> str:
    text = (
        "Each decision is the one with the least expected cost. If the probabilities are right, decisions cost what "
        "they promise."
    )
    return text if decisions.chosen is None else f"{text} {words.format_percent(decisions.changed, 2)} of them change."
