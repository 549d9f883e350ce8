"""A multi-label report as one self-contained HTML page, and as a notebook shows it."""

from __future__ import annotations

import math

import numpy as np

from refocal.report import markup, words
from refocal.report.apply_box import build_multilabel_apply_box, build_settings
from refocal.report.multilabel_record import MultilabelReport, fails
from refocal.report.multilabel_verdict import count_events, describe_way
from refocal.report.notebook import fill_notebook, make_identity
from refocal.report.page import fill_page
from refocal.report.record import Method, Report
from refocal.report.sections import Section, draw_overview, explain_dots

_DETAILED = 6  # classes with a diagram
_DETAILED_AT_LEAST = 3  # of them if none fails
_IN_NOTEBOOK = 5


def render_multilabel_page(report: MultilabelReport) -> str:
    """Render the page as text. The same report always gives the same page.

    Args:
        report: The report to show.

    Returns:
        A complete HTML document, which loads nothing. Text from users is escaped.
    """
    answer, *reasons = report.verdict.sentences
    reasons += [report.protocol] if report.protocol else []
    sections = (
        Section("classes", "Classes", "Class by class", _build_classes(report)),
        _build_details(report),
        Section("apply", "How to apply", "How to apply this", build_multilabel_apply_box(report)),
        Section("settings", "Settings", "The settings that made this page", build_settings(report)),
    )
    return fill_page(
        source=report.source,
        answer=answer,
        reasons=reasons,
        sections=sections,
        data={"classes": [], "thresholds": None, "live": None},
        versions=report.versions,
        legend=_build_legend(report),
        tiles=_build_tiles(report),
        meta=f"<span class='tag'>{markup.escape_text(report.verdict.regime)}</span> {markup.describe_data(report)}",
        overview=_build_overview(report),
    )


def render_multilabel_notebook(report: MultilabelReport) -> str:
    """Render the answer, the worst classes and the reliability diagram of the worst one. Text from users is escaped.

    Args:
        report: The report to show.

    Returns:
        HTML that styles only itself and loads nothing.
    """
    labels = ["Class", "Mean P(y = 1)", "Frequency", "Verdict", "ECE, debiased"]
    labels += ["ECE after"] if report.is_changed else []
    rows = []
    for index in report.ranking[:_IN_NOTEBOOK]:
        own = report.reports[index]
        values = [*map(words.format_percent, words.mean_confidence_and_accuracy(own.given)), describe_way(own)]
        values += [_format_ece(own.given), *([_format_ece(own.chosen)] if report.is_changed else [])]
        cells = "".join(f"<td>{markup.escape_text(value)}</td>" for value in values)
        rows.append(f"<tr><th scope='row'>{markup.isolate(report.class_names[index])}</th>{cells}</tr>")
    worst = report.ranking[0]
    cut = f" The {_IN_NOTEBOOK} worst classes are shown." if report.classes > _IN_NOTEBOOK else ""
    return fill_notebook(
        answer=report.verdict.sentences[0],
        labels=labels,
        rows=rows,
        meta=f"{markup.describe_data(report)}.{cut} The diagram is of {markup.isolate(report.class_names[worst])}.",
        chart=draw_overview(report.reports[worst], name=make_identity(report.to_json())),
    )


def _build_overview(report: MultilabelReport) -> str:
    """The diagram of the worst class, beside the verdict."""
    worst = report.ranking[0]
    own = report.reports[worst]
    name = markup.isolate(report.class_names[worst])
    what = f"the worst class, {name}" if fails(own.given) else f"{name}, the class with the largest ECE"
    caption = (
        f"Reliability of {what}{_name_colors(own)}. On the diagonal, the probability is right. {explain_dots(own)}"
    )
    return f"<figure><figcaption>{caption}</figcaption>{draw_overview(own)}</figure>"


def _name_colors(report: Report) -> str:
    return "" if report.chosen.given else ", <b class='before'>before</b> and <b class='after'>after</b>"


def _build_legend(report: MultilabelReport) -> str:
    if report.calibrator is None:
        return "Nothing was fitted. Shown: <b class='after'>the scores as given</b>"
    if not report.is_changed:
        return "Recommended for all classes: <b class='after'>the scores as given</b>"
    return "<b class='before'>As given</b> → <b class='after'>with the calibrator of each class</b>"


def _build_tiles(report: MultilabelReport) -> str:
    """The headline numbers over all classes, before and after."""
    sides = [[own.given for own in report.reports]]
    sides += [[own.chosen for own in report.reports]] if report.is_changed else []
    failing = [f"{sum(map(fails, methods)):,} of {report.classes:,}" for methods in sides]
    means = {
        name: [
            words.format_measure(name, float(np.mean([each.measures[name].value for each in side]))) for side in sides
        ]
        for name in ("debiased_ece", "nll")
    }
    unclear = sum(own.verdict is not None and own.verdict.regime == "unclear" for own in report.reports)
    tiles = [
        markup.build_tile("Classes that fail", *failing),
        markup.build_tile("Mean debiased ECE", *means["debiased_ece"]),
        markup.build_tile("Mean NLL", *means["nll"]),
        markup.build_tile("Too few data to tell", f"{unclear:,} of {report.classes:,}"),
    ]
    return "".join(tiles)


def _build_classes(report: MultilabelReport) -> str:
    """All classes, worst first."""
    after = report.is_changed
    head = [("Class", "words", "")]
    head.append(("Positives", "number", "number of samples with y = 1, or the sum of their weights"))
    head.append(("Mean P(y\u00a0=\u00a01)", "number", "mean predicted probability of the class"))
    head.append(("Frequency", "number", "fraction of samples with y = 1"))
    head.append(("ECE, debiased", "number", words.describe_measure("debiased_ece").meaning))
    head.append(("p-value", "number", "of tests of calibration, corrected for the number of classes"))
    head.append(("Verdict", "words", ""))
    if after:
        head.append(("Recommended", "words", "the method that turns the scores of the class into probabilities"))
        head.append(("ECE after", "number", "debiased ECE with the recommended method"))
    rows = [
        (" class='failing'" if fails(report.reports[index].given) else "", _build_cells(report, index, after=after))
        for index in report.ranking
    ]
    caption = (
        "All classes, those that fail first, then by debiased ECE. Small print: 95% confidence limits of the ECE of "
        "each class alone; they are never below 0, while noise can make the debiased value negative. The p-values are "
        f"corrected for the number of classes. {markup.SORTS}"
    )
    return markup.build_sortable(caption, head, rows, name="Classes")


def _build_cells(report: MultilabelReport, index: int, *, after: bool) -> list[str]:
    own = report.reports[index]
    given, chosen = own.given, own.chosen
    predicted, observed = words.mean_confidence_and_accuracy(given)
    assert own.thresholds is not None  # a binary report has them
    positives = own.thresholds.positives
    p_value = math.nan if given.p_value is None else given.p_value
    cells = [
        f"<th scope='row'>{markup.isolate(report.class_names[index])}</th>",
        markup.build_cell(words.format_count(round(positives, 6)), positives),
        markup.build_cell(words.format_percent(predicted), predicted),
        markup.build_cell(words.format_percent(observed), observed),
        _build_ece(given),
        markup.build_cell(markup.escape_text(words.format_p_value(given.p_value)), p_value),
        f"<td class='words'><span class='way'>{describe_way(own)}</span></td>",
    ]
    if after:
        parameters = words.keep_together(words.format_parameters(chosen.parameters))
        small = f"<small>{markup.escape_text(parameters)}</small>" if parameters else ""
        cells.append(f"<td class='words'>{markup.isolate(chosen.title)}{small}</td>")
        cells.append(markup.build_cell(words.MISSING, math.nan) if chosen.given else _build_ece(chosen))
    return cells


def _build_ece(method: Method) -> str:
    ece = method.measures["debiased_ece"]
    limits = words.format_interval("debiased_ece", ece)
    small = f"<small>{limits}</small>" if limits else ""
    return markup.build_cell(_format_ece(method) + small, ece.value)


def _format_ece(method: Method) -> str:
    return words.format_measure("debiased_ece", method.measures["debiased_ece"].value).replace("-", "−")


def _build_details(report: MultilabelReport) -> Section:
    """The worst classes, each with its diagram and its verdict."""
    failing = sum(fails(own.given) for own in report.reports)
    shown = report.ranking[: min(_DETAILED, max(failing, _DETAILED_AT_LEAST))]
    cards = []
    for index in shown:
        own = report.reports[index]
        assert own.verdict is not None  # a report on rows in memory has one
        sentences = [*own.verdict.sentences, *([own.rule] if own.rule else [])]
        text = "".join(f"<p>{markup.escape_text(words.keep_together(sentence))}</p>" for sentence in sentences)
        chart = draw_overview(own, name=f"class-{index}")
        head = f"<h3>{markup.isolate(report.class_names[index])} <span class='tag'>{describe_way(own)}</span></h3>"
        dots = "" if own.chosen.given else ". Dots: <b class='before'>before</b>, <b class='after'>after</b>"
        caption = f"<figcaption>{count_events(own)} in {own.samples:,} samples{dots}</figcaption>"
        cards.append(f"<article>{head}<figure>{caption}{chart}</figure><div class='card-words'>{text}</div></article>")
    if failing > len(shown):
        lead = f"The {len(shown)} worst of {failing:,} classes that fail."
    elif failing:
        rest = len(shown) - failing
        more = f" The other {'one has' if rest == 1 else f'{rest} have'} the largest ECE of the rest." if rest else ""
        lead = f"{'The class that fails' if failing == 1 else f'The {failing} classes that fail'}.{more}"
    else:
        lead = "No class fails. These have the largest debiased ECE."
    lead += (
        " If the probability of a class is 20%, does it occur 20% of the time? If so, the dot lies on the diagonal. "
        "The gray band shows where the dots of a calibrated model lie, given sampling noise."
    )
    heading = "The worst classes" if failing else "The largest errors"
    return Section("worst", heading, heading, f"<p>{lead}</p><div class='cards'>{''.join(cards)}</div>")
