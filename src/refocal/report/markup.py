"""Tables and paragraphs of the page as HTML. Text from users is escaped here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from refocal.report import words
from refocal.report.live import Live
from refocal.report.multilabel_record import MultilabelReport
from refocal.report.record import Diagram, Method, Report
from refocal.report.verdict import call_class
from refocal.stats.binning import BINS

Row = tuple[str, list[str]]  # the attributes of a line of a table, and its cells
SORTS = "<span class='on-screen'>Click a heading to sort.</span>"


def escape_text(value: str) -> str:
    """Escape text from users for HTML."""
    return escape(words.printable(value))


def isolate(value: str) -> str:
    """Escape text from users that stands inside a sentence, whatever direction it is written in."""
    return f"<bdi>{escape_text(value)}</bdi>"


def name_event(report: Report) -> str | None:
    """The second of two classes, whose probability a binary report is about, for a sentence; None for more classes."""
    return isolate(call_class(report.class_names[1])) if report.task == "binary" else None


def describe_data(report: Report | MultilabelReport) -> str:
    """Where the predictions came from, and how many there are."""
    return f"{isolate(report.source)} · {report.samples:,} test samples · {report.classes:,} classes"


def build_methods_table(report: Report) -> str:
    """The methods with their measures and confidence limits."""
    names, binary, alone = words.list_measures(report), report.task == "binary", len(report.methods) == 1
    recommends = report.verdict is not None and len(report.methods) > 1
    head = [("Method", "words", "")]
    described = [words.describe_measure(name, binary=binary) for name in names]
    head += [(measure.label, "number", measure.meaning) for measure in described]
    tested = any(method.p_value is not None for method in report.methods)
    head += [("p-value", "number", words.describe_p_value(binary=binary))] if tested else []
    head += [] if alone else [("Fit", "number", "duration of the fit")]
    rows: list[Row] = []
    for method in report.methods:
        tags = "".join(
            f" <span class='tag'>{tag}</span>"
            for tag, holds in (
                ("recommended", method.chosen and recommends),
                ("as given", method.given and method.title != words.GIVEN_TITLE),
            )
            if holds
        )
        settings = (
            f"<small>{escape_text(words.format_parameters(method.parameters))}</small>" if method.parameters else ""
        )
        cells = [f"<th scope='row'>{isolate(method.title)}{tags}{settings}</th>"]
        for name in names:
            value = method.measures.get(name)
            if value is None:
                cells.append(build_cell(words.MISSING, math.nan))
                continue
            limits = words.format_interval(name, value)
            small = f"<small>{limits}</small>" if limits else ""
            cells.append(build_cell(words.format_measure(name, value.value) + small, value.value))
        if tested:
            p_value = math.nan if method.p_value is None else method.p_value
            cells.append(build_cell(escape(words.format_p_value(method.p_value)), p_value))
        if not alone:
            fit = math.nan if method.fit_seconds is None else method.fit_seconds
            cells.append(build_cell(escape(words.format_seconds(method.fit_seconds)), fit))
        row_class = " class='chosen'" if method.chosen and not alone else ""
        rows.append((row_class, cells))
    caption = "The scores as given." if alone else f"{len(report.methods)} ways to get probabilities. {SORTS}"
    return build_sortable(caption, head, rows, name="Methods")


def build_glossary(report: Report) -> str:
    """A list of the measures with their meanings."""
    binary = report.task == "binary"
    entries = [words.describe_measure(name, binary=binary) for name in words.list_measures(report)]
    terms = "".join(f"<dt>{escape_text(entry.label)}</dt><dd>{escape_text(entry.meaning)}</dd>" for entry in entries)
    if any(method.p_value is not None for method in report.methods):
        terms += f"<dt>p-value</dt><dd>{words.describe_p_value(binary=binary)}</dd>"
    return f"<details class='glossary'><summary>What the columns mean</summary><dl>{terms}</dl></details>"


def build_changes_table(report: Report) -> str:
    """The samples whose confidence changed most."""
    head = [("Row", "number", ""), ("Predicted", "words", ""), ("True class", "words", ""), ("Right", "words", "")]
    head += [("Before", "number", ""), ("After", "number", ""), ("Change", "number", "")]
    rows: list[Row] = []
    for change in report.changes:
        shift = change.after - change.before
        cells = [
            f"<th scope='row' data-value='{change.row}'>{change.row}</th>",
            *(
                f"<td class='words'>{isolate(report.class_names[label])}</td>"
                for label in (change.predicted, change.label)
            ),
            f"<td class='words'>{'yes' if change.predicted == change.label else 'no'}</td>",
            build_cell(words.format_percent(change.before), change.before, "before"),
            build_cell(words.format_percent(change.after), change.after, "after"),
            build_cell(f"{100 * shift:+.1f}".replace("-", "−"), shift),
        ]
        rows.append(("", cells))
    caption = "Confidence in the predicted class before and after, and its change in percentage points. " + SORTS
    return build_sortable(caption, head, rows, name="Changed most")


def build_bins_table(diagram: Diagram, *, name: str, predicted: str = "Confidence") -> str:
    """The numbers of a diagram as a table; `predicted` heads the mean of each bin."""
    columns = (diagram.count, diagram.confidence, diagram.accuracy, diagram.low, diagram.high)
    rows = "".join(
        f"<tr><td>{words.format_percent(confidence)}</td><td>{words.format_percent(accuracy)}</td>"
        f"<td>{words.format_percent(low)} to {words.format_percent(high)}</td><td>{words.format_count(n)}</td></tr>"
        for n, confidence, accuracy, low, high in zip(*columns, strict=True)
    )
    return (
        f"<div class='scroll bins' tabindex='0' role='region' aria-label='Bins, {name}'><table>"
        f"<caption>Bins, {name}</caption><thead><tr><th scope='col'>{predicted}</th>"
        "<th scope='col'>Observed</th><th scope='col'>If calibrated</th><th scope='col'>Samples</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def build_live_table(rows: Iterable[tuple[str, str, Live]], *, mean: str) -> str:
    """ECE, NLL, error and the mean (which `mean` names) of the live section. The script changes the last line."""
    lines = []
    settings = list(rows)
    for index, (title, where, live) in enumerate(settings):
        now = index == len(settings) - 1
        values = (("ece", live.ece), ("nll", live.nll), ("error", live.error), ("confidence", live.confidence))
        cells = "".join(
            f"<td{_name(f'now-{key}' if now else '')} data-value='{value!r}'>"
            f"{words.format_number(value) if key == 'nll' else words.format_percent(value, 2)}</td>"
            for key, value in values
        )
        small = f"<small{_name('now-where' if now else '')}>{words.keep_together(where)}</small>"
        row = " id='now-row' class='now'" if now else ""
        lines.append(f"<tr{row}><th scope='row'>{title}{small}</th>{cells}</tr>")
    headings = "".join(
        f"<th scope='col'>{label}</th>" for label in ("Setting", f"ECE, {BINS} bins", "NLL", "Error", mean)
    )
    return (
        "<div class='scroll live-table' tabindex='0' role='region' aria-label='Measured on these rows'><table>"
        f"<caption>Measured on these rows.</caption><thead><tr>{headings}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def build_tiles(given: Method, chosen: Method, *, event: str | None) -> str:
    """The headline numbers before and after; only once if nothing changes. `event` is that of `name_event`."""
    methods = (chosen,) if given.chosen else (given, chosen)
    # The verdict names the debiased ECE. Sums over rows do not give it.
    error = "debiased_ece" if all("debiased_ece" in method.measures for method in methods) else "ece"
    parts = [
        build_tile(
            words.describe_measure(name).label,
            *(words.format_measure(name, method.measures[name].value) for method in methods),
        )
        for name in (error, "nll")
        if all(name in method.measures for method in methods)
    ]
    pairs = [words.mean_confidence_and_accuracy(method) for method in methods]
    sure, right = zip(*pairs, strict=True)
    labels = "Mean confidence", "Accuracy"
    if event is not None:
        labels, right = (f"Mean probability of {event}", f"Frequency of {event}"), right[-1:]  # which is fixed
    for label, values in zip(labels, (sure, right), strict=True):
        parts.append(build_tile(label, *(words.format_percent(value) for value in values)))
    return "".join(parts)


def build_legend(report: Report) -> str:
    """The names of the methods before and after."""
    given, chosen = report.given, report.chosen
    if len(report.methods) == 1:
        return f"Nothing was fitted. Shown: <b class='after'>{isolate(given.title)}</b>"
    if given.chosen:
        return f"Recommended as given: <b class='after'>{isolate(given.title)}</b>"
    return f"<b class='before'>{isolate(given.title)}</b> → <b class='after'>{isolate(chosen.title)}</b>"


def describe_confidence(drawn: Sequence[tuple[str, str, Method]], *, event: str | None) -> str:
    """Mean confidence and accuracy, or P(y = 1) and frequency, in words, of each method with its label and color.

    `event` is that of `name_event`.
    """
    lines = []
    for label, series, method in drawn:
        sure, right = words.mean_confidence_and_accuracy(method)
        if math.isnan(sure):
            continue
        gap = f"{abs(100 * (sure - right)):.1f}"
        off = f", {gap} points {'lower' if sure > right else 'higher'}" if gap != "0.0" else ""
        means = f"<b>{words.format_percent(sure)}</b>", f"<b>{words.format_percent(right)}</b>"
        mean, truth = (
            ("mean confidence", "the accuracy") if event is None else (f"mean probability of {event}", "its frequency")
        )
        text = f"the {mean} is {means[0]}, and {truth} is {means[1]}{off}"
        lines.append(f"<p class='lead'><b class='{series}'>{label}</b>, {text}.</p>")
    what = "the confidence in their predicted class" if event is None else f"their probability of {event}"
    scale = " Both halves have the same scale." if len(drawn) > 1 else ""
    return "".join(lines) + f"<p class='note'>Number of samples by {what}, in 20 equal parts.{scale}</p>"


def build_tile(label: str, *values: str) -> str:
    """A headline number, or two of them: before and after."""
    after = f"<span class='after'>{values[-1]}</span>"
    if len(values) > 1:
        after = (
            f"<span class='unseen'>before </span><span class='before'>{values[0]}</span>"
            f"<span class='arrow' aria-hidden='true'>→</span><wbr><span class='unseen'>, after </span>{after}"
        )
    return f"<div><dt>{label}</dt><dd>{after}</dd></div>"


def _name(identity: str) -> str:
    return f" id='{identity}'" if identity else ""


def build_cell(content: str, value: float, series: str = "") -> str:
    """A cell with the number that it is sorted by."""
    cell_class = f" class='{series}'" if series else ""
    key = repr(float(value)).replace("inf", "Infinity")  # as a script reads it
    return f"<td{cell_class} data-value='{key}'>{content}</td>"


def build_sortable(caption: str, head: list[tuple[str, str, str]], rows: list[Row], *, name: str) -> str:
    """A table that sorts. Its cells carry their headings, which a narrow screen shows beside them."""
    headings = "".join(
        f"<th scope='col' class='{kind}{'' if ' ' in label else ' whole'}' data-kind='{kind}'>"
        f"<button type='button' title='{escape_text(meaning)}'>"
        f"{escape_text(label)}</button></th>"
        for label, kind, meaning in head
    )
    single = " single" if len(rows) < 2 else ""  # nothing to sort
    labels = [f"<td data-label='{escape_text(label)}'" for label, _, _ in head]
    body = "".join(
        f"<tr{kind}>{''.join(cell.replace('<td', label, 1) for cell, label in zip(cells, labels, strict=True))}</tr>"
        for kind, cells in rows
    )
    return (
        f"<div class='scroll' tabindex='0' role='region' aria-label='{name}'><table class='sortable{single}'>"
        f"<caption><span>{caption}</span></caption><thead><tr>{headings}</tr></thead><tbody>{body}</tbody></table></div>"
    )
