"""The worst classes and the slices of the page, as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from refocal.report import markup, words
from refocal.report.answers import Subgroup, SubgroupCalibration
from refocal.report.record import Estimate, Report

_P_VALUE = "how often a calibrated slice would look at least this far off by chance, corrected for the number of slices"


def build_worst_classes(report: Report) -> str:
    """The classes with the largest ECE, with the gap between mean probability and frequency."""
    head = [("Class", "words", ""), ("Samples", "number", "")]
    compared = report.worst_classes[0].chosen is not None
    for when in (" before", " after") if compared else ("",):
        head.append((f"Gap{when}", "number", "mean probability minus frequency, in percentage points"))
        head.append((f"ECE{when}", "number", "mean distance between probability and frequency over bins"))
    rows: list[markup.Row] = []
    for subgroup in report.worst_classes:
        cells = [
            f"<th scope='row'>{markup.isolate(subgroup.value)}</th>",
            markup.build_cell(words.format_count(subgroup.samples), subgroup.samples),
        ]
        for series, each in _sides(subgroup):
            cells += [_gap(each.gap, series), _ece(each.ece, series)]
        rows.append(("", cells))
    part = "All" if len(report.worst_classes) == report.classes else f"The worst {len(rows)} of {report.classes:,}"
    chance = "" if part == "All" else " They were chosen for a large ECE, so part of it is chance."
    caption = (
        f"{part} classes by the ECE of their probability. Gap: mean probability minus frequency, in points. Each 95% "
        f"interval is for its class alone.{chance} {markup.SORTS}"
    )
    return markup.build_sortable(caption, head, rows, name="Worst classes")


def build_slices(report: Report) -> str:
    """One table per column."""
    return "".join(_build_slices(name, slices, report) for name, slices in group_slices(report).items())


def group_slices(report: Report) -> dict[str, list[Subgroup]]:
    """The slices by their columns, in the order of the report."""
    columns = dict.fromkeys(subgroup.column for subgroup in report.slices)
    return {name: [each for each in report.slices if each.column == name] for name in columns}


def explain_slices(event: str | None) -> str:
    """Say what the columns of a table of slices mean; `event` names the second of two classes."""
    predicted = "mean confidence" if event is None else f"mean probability of {event}"
    observed = "accuracy" if event is None else f"frequency of {event}"
    return f"Predicted: {predicted}. Observed: {observed}. p-value: {_P_VALUE}."


def _build_slices(column: str, slices: Sequence[Subgroup], report: Report) -> str:
    event = markup.name_event(report)
    plain = "mean confidence" if event is None else "mean probability"  # of a heading, where no markup may stand
    compared = slices[0].chosen is not None
    head = [(column, "words", ""), ("Samples", "number", "")]
    for when in (" before", " after") if compared else ("",):
        head += [(f"Predicted{when}", "number", plain), (f"ECE{when}", "number", "")]
        head.append((f"p-value{when}", "number", _P_VALUE))
    rows: list[markup.Row] = []
    for subgroup in slices:
        cells = [
            f"<th scope='row'>{markup.isolate(subgroup.value)}</th>",
            markup.build_cell(words.format_count(subgroup.samples), subgroup.samples),
        ]
        for series, each in _sides(subgroup):
            p_value = math.nan if each.p_value is None else each.p_value
            cells += [
                markup.build_cell(
                    f"{words.format_percent(each.predicted)}"
                    f"<small>observed {words.format_percent(each.observed)}</small>",
                    each.predicted,
                    series,
                ),
                _ece(each.ece, series),
                markup.build_cell(markup.escape_text(words.format_p_value(each.p_value)), p_value, series),
            ]
        rows.append(("", cells))
    caption = f"The rows by {markup.isolate(column)}. {explain_slices(event)} {markup.SORTS}"
    return markup.build_sortable(caption, head, rows, name="Slices")


def _sides(subgroup: Subgroup) -> list[tuple[str, SubgroupCalibration]]:
    if subgroup.chosen is None:
        return [("", subgroup.given)]
    return [("before", subgroup.given), ("after", subgroup.chosen)]


def _ece(ece: Estimate, series: str) -> str:
    limits = words.format_interval("ece", ece)
    small = f"<small>{limits}</small>" if limits else ""
    return markup.build_cell(words.format_measure("ece", ece.value) + small, ece.value, series)


def _gap(gap: Estimate, series: str) -> str:
    small = "" if gap.low is None or gap.high is None else f"<small>{_points(gap.low)} to {_points(gap.high)}</small>"
    return markup.build_cell(_points(gap.value) + small, abs(gap.value), series)


def _points(value: float) -> str:
    text = f"{100 * value:+.2f}"
    return text[1:] if not float(text) else text.replace("-", "−")
