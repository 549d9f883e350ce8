"""A report as a notebook shows it: one self-contained piece of HTML without scripts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import resources

from refocal.report import markup, words
from refocal.report.record import Report
from refocal.report.sections import draw_overview

_SHOWN = ("nll", "ece", "error")


def render_notebook(report: Report) -> str:
    """Render the answer, a short table and the reliability diagram. Text from users is escaped.

    Args:
        report: The report to show.

    Returns:
        HTML that styles only itself and loads nothing.
    """
    answer = words.FROM_SUMS[0] if report.verdict is None else report.verdict.sentences[0]
    names = [name for name in words.list_measures(report) if name in _SHOWN]
    labels = ["Method", *(words.describe_measure(name).label for name in names), "p-value"]
    rows = []
    for method in report.methods:
        values = [method.measures.get(name) for name in names]
        cells = [
            words.MISSING if value is None else words.format_measure(name, value.value)
            for name, value in zip(names, values, strict=True)
        ]
        cells.append(words.format_p_value(method.p_value))
        row = " class='chosen'" if method.chosen and len(report.methods) > 1 else ""
        rows.append(
            f"<tr{row}><th scope='row'>{markup.isolate(method.title)}</th>"
            f"{''.join(f'<td>{markup.escape_text(cell)}</td>' for cell in cells)}</tr>"
        )
    bold = " The recommended method is bold." if len(report.methods) > 1 else ""
    return fill_notebook(
        answer=answer,
        labels=labels,
        rows=rows,
        meta=f"{markup.describe_data(report)}.{bold}",
        chart=draw_overview(report, name=make_identity(report.to_json())),
    )


def make_identity(content: str) -> str:
    """Make an id of a chart. Ids must differ between the outputs of a notebook, which are one document."""
    return f"refocal-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def fill_notebook(*, answer: str, labels: Sequence[str], rows: Sequence[str], meta: str, chart: str) -> str:
    """Put the parts of an output together; rows, meta and chart are HTML."""
    assets = resources.files("refocal.report").joinpath("assets")
    own, charts = (assets.joinpath(name).read_text("utf-8") for name in ("notebook.css", "chart.css"))
    head = "".join(f"<th scope='col'>{markup.escape_text(label)}</th>" for label in labels)
    return (
        f"<div class='refocal-report'><style>{own}{charts}}}</style><div class='words'>"
        f"<p class='answer'>{markup.escape_text(answer)}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f"<p class='meta'>{meta}</p></div>{chart}</div>"
    )
