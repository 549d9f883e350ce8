"""The report as one self-contained HTML page: nothing is loaded, and text from users is escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from importlib import resources
from string import Template
from typing import Any

from refocal._files import write_text
from refocal.report import markup, svg, words
from refocal.report.live import Live, measure_rows
from refocal.report.record import Diagram, Report, Slider
from refocal.stats.binning import BINS

_AXES = ("confidence (%)", "correct (%)")
_CLASS_AXES = ("predicted probability (%)", "observed frequency (%)")
# Ranges of the two sliders. A fitted value outside widens them.
_GAMMA_RANGE = (-0.9, 10.0)
_TEMPERATURE_RANGE = (0.1, 10.0)
# The sections of the template that show diagrams, and the links to them.
_ROW_SECTIONS = re.compile(
    r'<(?:section id="|a href="#)(?:reliability|by-class|confidence|play|changed)".*?</(?:section|a)>\n', re.DOTALL
)


def render_page(report: Report) -> str:
    """Render the page as text. The same report always gives the same page.

    The page holds its style, script and data. Its content security policy keeps it from loading anything else. The page
    of a report that was measured from sums has no diagrams.

    Args:
        report: The report to show.

    Returns:
        A complete HTML document.
    """
    assets = resources.files("refocal.report").joinpath("assets")
    style = assets.joinpath("page.css").read_text("utf-8")
    script = "\n".join(assets.joinpath(name).read_text("utf-8") for name in ("psi.js", "page.js"))
    template = assets.joinpath("page.html").read_text("utf-8")
    diagrams = _diagram_sections(report)
    if diagrams is None:
        template, diagrams = _ROW_SECTIONS.sub("", template), {}
    answer, *reasons = words.FROM_SUMS if report.verdict is None else report.verdict.sentences
    regime = f"<span class='tag'>{markup.escape_text(report.verdict.regime)}</span> " if report.verdict else ""
    return Template(template).substitute(
        title=f"{markup.escape_text(report.source)}: calibration report",
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        data=_inline_json(_data(report)),
        answer=markup.escape_text(answer),
        reasons="".join(f"<p>{markup.escape_text(sentence)}</p>" for sentence in reasons),
        legend=markup.build_legend(report),
        tiles=markup.build_tiles(report.given, report.chosen),
        meta=f"{regime}{markup.isolate(report.source)} · {report.samples:,} test samples · {report.classes:,} classes",
        limits="" if report.verdict is None else markup.escape_text(words.LIMITS),
        methods=markup.build_methods_table(report),
        glossary=markup.build_glossary(report),
        versions=markup.escape_text(", ".join(f"{name} {version}" for name, version in report.versions.items())),
        **diagrams,
    )


def save_page(report: Report, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write the page to a file. An interrupted write leaves no file.

    Args:
        report: The report to show.
        path: The file to write. Its folder must exist.
        overwrite: Whether to replace an existing file.
    """
    write_text(path, render_page(report), overwrite=overwrite)


def _diagram_sections(report: Report) -> dict[str, str] | None:
    """Everything below the table of methods; None if the report was measured from sums."""
    given, chosen, slider = report.given, report.chosen, report.slider
    if given.diagram is None or chosen.diagram is None or slider is None:
        return None
    fitted = measure_rows(slider, gamma=slider.gamma, temperature=slider.temperature)
    return {
        "given_title": markup.isolate(given.title),
        "chosen_title": markup.isolate(chosen.title),
        "before": _reliability(given.diagram, "before"),
        "after": _reliability(chosen.diagram, "after"),
        "before_numbers": markup.build_bins_table(given.diagram, name="before"),
        "after_numbers": markup.build_bins_table(chosen.diagram, name="after"),
        "by_class": _by_class(report),
        "histogram": svg.draw_histogram(given.histogram or (), chosen.histogram or ()),
        "confidence": markup.describe_confidence(given, chosen),
        "live": svg.draw_reliability(
            fitted.diagram,
            name="live",
            series="live",
            title="Reliability of these rows at the current setting",
            axes=_AXES,
        ),
        "map": svg.draw_map(gamma=slider.gamma, temperature=slider.temperature),
        **_controls(slider, fitted, samples=report.samples),
        "changes": markup.build_changes_table(report),
    }


def _reliability(diagram: Diagram, when: str) -> str:
    title = f"Reliability diagram of the top label, {when}"
    return svg.draw_reliability(diagram, name=when, series=when, title=title, axes=_AXES)


def _by_class(report: Report) -> str:
    if not report.shown_classes:
        return "<p>This report has no diagrams of single classes.</p>"
    options = "".join(
        f"<option dir='auto'>{markup.escape_text(report.class_names[k])}</option>" for k in report.shown_classes
    )
    first = report.class_names[report.shown_classes[0]]
    diagrams = []
    for method, when, word in ((report.given, "before", "Before"), (report.chosen, "after", "After")):
        title = f"Reliability of the probability of {first}, {when}"
        chart = svg.draw_reliability(
            method.class_diagrams[0], name=f"class-{when}", series=when, title=title, axes=_CLASS_AXES
        )
        caption = f"<b class='{when}'>{word}</b> {markup.isolate(method.title)}"
        diagrams.append(f"<figure><figcaption>{caption}</figcaption>{chart}</figure>")
    part = (
        f"all {report.classes:,} classes"
        if len(report.shown_classes) == report.classes
        else f"the {len(report.shown_classes):,} most frequent of {report.classes:,} classes"
    )
    return (
        f"<p>If a class gets a probability of 30%, is it the true class 30% of the time? The list has {part}.</p>"
        f"<p class='picker'><label for='class'>Class</label>"
        f"<select id='class' autocomplete='off'>{options}</select></p>"
        f"<p class='shown'>Shown: <bdi id='class-now'>{markup.escape_text(first)}</bdi></p>"
        f"<div class='pair'>{''.join(diagrams)}</div>"
    )


def _controls(slider: Slider, fitted: Live, *, samples: int) -> dict[str, str]:
    """The text of the live section and the positions of its sliders."""
    gamma, temperature = slider.gamma, slider.temperature
    low_t, high_t = min(_TEMPERATURE_RANGE[0], temperature), max(_TEMPERATURE_RANGE[1], temperature)
    where = words.format_parameters({"gamma": gamma, "temperature": temperature})
    rows = len(slider.labels)
    part = f"all {rows:,} test rows" if rows == samples else f"{rows:,} of the {samples:,} test rows"
    softmax = measure_rows(slider, gamma=0.0, temperature=1.0)
    return {
        "fitted": where,
        "rows": part,
        "gamma": _exact(gamma),
        "gamma_short": f"{gamma:.4g}",
        "gamma_min": _exact(min(_GAMMA_RANGE[0], gamma)),
        "gamma_max": _exact(max(_GAMMA_RANGE[1], gamma)),
        "temperature": _exact(temperature),
        "temperature_short": f"{temperature:.4g}",
        "t_min": _exact(low_t),
        "t_max": _exact(high_t),
        "log_t": _exact(math.log10(temperature)),
        "log_t_min": _exact(math.log10(low_t)),
        "log_t_max": _exact(math.log10(high_t)),
        "live_table": markup.build_live_table(
            (("Softmax", "γ = 0, T = 1", softmax), ("Fitted", where, fitted), ("Now", where, fitted))
        ),
    }


def _exact(value: float) -> str:
    """Write a number that reads back as itself, a whole number without ".0"."""
    return repr(float(value)).removesuffix(".0")


def _data(report: Report) -> dict[str, Any]:
    """The data of the script: numbers only, so that it never sees text that comes from users."""
    slider = report.slider
    pairs = zip(report.given.class_diagrams, report.chosen.class_diagrams, strict=True)
    return {
        "frame": {
            "left": svg.LEFT,
            "top": svg.TOP,
            "size": svg.SIZE,
            "stripTop": svg.STRIP_TOP,
            "stripBottom": svg.STRIP_BOTTOM,
        },
        "classes": [[_round(diagram) for diagram in pair] for pair in pairs],
        "live": slider
        and {
            "bins": BINS,
            "logits": slider.logits,
            "labels": slider.labels,
            "fitted": {"gamma": slider.gamma, "temperature": slider.temperature},
        },
    }


def _round(diagram: Diagram) -> dict[str, list[float]]:
    """Round a diagram to six decimals, which is finer than any screen."""
    return {name: [round(value, 6) for value in values] for name, values in vars(diagram).items()}


def _inline_json(value: Any) -> str:
    """Write JSON that cannot end its script element or a line of it."""
    unsafe = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
    return json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False).translate(unsafe)


def _hash(content: str) -> str:
    """The hash by which a content security policy allows an inline element."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
