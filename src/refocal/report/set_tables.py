"""Prediction sets before and after: a section of the page, and sentences for the terminal."""

from __future__ import annotations

from collections.abc import Callable

from refocal.conformal.thresholds import count_needed
from refocal.report import markup, words
from refocal.report.answers import SetOutcome, SetPredictions
from refocal.report.record import Estimate, Report

_SHOWN = 5  # sizes with a row of their own; larger ones share a row


def build_sets(report: Report, sets: SetPredictions) -> str:
    """The coverage and the sizes of the sets."""
    sides = _list_sides(sets)
    head = "".join(f"<th scope='col'><b class='{series}'>{label}</b></th>" for label, series, _ in sides)
    rows = "".join(
        f"<tr><th scope='row'>{title}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        for title, cells in _list_rows([outcome for _, _, outcome in sides])
    )
    # Names of classes can be long, so they stand below the table.
    least = "; ".join(
        f"<b class='{series}'>{words.lower_title(label)}</b> "
        f"{markup.isolate(report.class_names[outcome.worst_class])}, "
        f"{words.format_percent(outcome.worst_coverage.value)}"
        for label, series, outcome in sides
    )
    return (
        f"<p>For each sample, a set of classes is predicted that contains the true class with a probability of "
        f"{words.format_percent(sets.target)}: those whose probability reaches a threshold. "
        f"{_explain(report, sets)}</p>"
        "<div class='scroll decisions' tabindex='0' role='region' aria-label='Prediction sets'><table>"
        f"<caption>Prediction sets for a coverage of {words.format_percent(sets.target)}</caption>"
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"<p>The class that is covered least: {least}.</p>"
    )


def describe_sets(report: Report, sets: SetPredictions) -> list[str]:
    """The coverage and the sizes of the sets in sentences."""
    lines = []
    for label, _, outcome in _list_sides(sets):
        worst = f"class {report.class_names[outcome.worst_class]}"
        share, size = (
            "{} ({})".format(*each) for each in (_format_share(outcome.coverage), _format_size(outcome.size))
        )
        lines.append(
            f"Prediction sets for a coverage of {words.format_percent(sets.target)}, {words.lower_title(label)}: "
            f"{share} contain the true class; {size} classes on average; {worst} is covered least, "
            f"{words.format_percent(outcome.worst_coverage.value)}."
        )
    return [*lines, _explain(report, sets)]


def _list_sides(sets: SetPredictions) -> list[tuple[str, str, SetOutcome]]:
    if sets.chosen is None:
        return [(words.GIVEN_TITLE, "after", sets.given)]
    return [("Before", "before", sets.given), ("After", "after", sets.chosen)]


def _list_rows(outcomes: list[SetOutcome]) -> list[tuple[str, list[str]]]:
    rows = [
        ("Sets with the true class", [_build_cell(*_format_share(each.coverage)) for each in outcomes]),
        ("Classes per set", [_build_cell(*_format_size(each.size)) for each in outcomes]),
    ]
    largest = max(len(each.sizes) for each in outcomes)
    for size in range(1, min(largest, _SHOWN) + 1):
        counts = [words.format_count(sum(each.sizes[size - 1 : size])) for each in outcomes]
        rows.append((f"Sets of {size} class{'' if size == 1 else 'es'}", counts))
    if largest > _SHOWN:
        rows.append(("Sets of more classes", [words.format_count(sum(each.sizes[_SHOWN:])) for each in outcomes]))
    return rows


def _build_cell(value: str, limits: str) -> str:
    return f"{value}<small>{limits}</small>"


def _explain(report: Report, sets: SetPredictions) -> str:
    """Say where the threshold comes from, and whether there are too few rows."""
    text = f"The threshold for each of {sets.folds} parts of the rows comes from the other parts."
    if report.total_weight * (1 - 1 / sets.folds) < count_needed(sets.target):
        text += " There are too few rows for this coverage, so every set has all classes."
    return text


def _format_share(estimate: Estimate) -> tuple[str, str]:
    return _format(estimate, words.format_percent)


def _format_size(estimate: Estimate) -> tuple[str, str]:
    return _format(estimate, "{:.2f}".format)


def _format(estimate: Estimate, write: Callable[[float], str]) -> tuple[str, str]:
    """The value, and its limits."""
    if estimate.low is None or estimate.high is None:
        return write(estimate.value), ""
    return write(estimate.value), f"{write(estimate.low)} to {write(estimate.high)}"
