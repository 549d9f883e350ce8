"""The report as one self-contained HTML page: no network, everything inline, what users named escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from importlib import resources
from string import Template
from typing import Any

from refocal._files import write_text
from refocal.report import markup, svg, words
from refocal.report.live import BINS, Live, measure_rows
from refocal.report.record import Diagram, Report

_AXES = ("confidence (%)", "correct (%)")
_CLASS_AXES = ("predicted probability (%)", "came true (%)")
# The ranges of the two sliders; a fitted value outside widens them.
_GAMMA_RANGE = (-0.9, 10.0)
_TEMPERATURE_RANGE = (0.1, 10.0)


def render_page(report: Report) -> str:
    """The page as text: the same report always gives the same page.

    It holds its style, script and data, and a content security policy that lets it ask for nothing else.

    Args:
        report: What was measured.

    Returns:
        A whole HTML document.
    """
    given, chosen, slider = report.given, report.chosen, report.slider
    fitted = measure_rows(slider, gamma=slider.gamma, temperature=slider.temperature)
    assets = resources.files("refocal.report").joinpath("assets")
    style = assets.joinpath("page.css").read_text("utf-8")
    script = "\n".join(assets.joinpath(name).read_text("utf-8") for name in ("psi.js", "page.js"))
    answer, *reasons = report.verdict.sentences
    meta = (
        f"<span class='tag'>{markup.text(report.verdict.regime)}</span> {markup.isolated(report.source)} · "
        f"{report.samples:,} test samples · {report.classes:,} classes"
    )
    return Template(assets.joinpath("page.html").read_text("utf-8")).substitute(
        title=f"{markup.text(report.source)}: calibration report",
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        data=_inline_json(_data(report)),
        answer=markup.text(answer),
        reasons="".join(f"<p>{markup.text(sentence)}</p>" for sentence in reasons),
        legend=markup.legend(report),
        tiles=markup.tiles(given, chosen),
        meta=meta,
        methods=markup.methods_table(report),
        glossary=markup.glossary(report),
        given_title=markup.isolated(given.title),
        chosen_title=markup.isolated(chosen.title),
        before=_reliability(given.diagram, "before"),
        after=_reliability(chosen.diagram, "after"),
        before_numbers=markup.bins_table(given.diagram, name="before"),
        after_numbers=markup.bins_table(chosen.diagram, name="after"),
        by_class=_by_class(report),
        histogram=svg.histogram(given.histogram, chosen.histogram),
        confidence=markup.confidence_words(given, chosen),
        live=svg.reliability(
            fitted.diagram, name="live", series="live", title="Reliability of these rows, as set now", axes=_AXES
        ),
        map=svg.fitted_map(gamma=slider.gamma, temperature=slider.temperature),
        **_controls(report, fitted),
        changes=markup.changes_table(report),
        versions=markup.text(", ".join(f"{name} {version}" for name, version in report.versions.items())),
    )


def save_page(report: Report, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write the page to a file, whole or not at all.

    Args:
        report: What was measured.
        path: Where to write; its folder must exist.
        overwrite: Whether a file that is there may be replaced.
    """
    write_text(path, render_page(report), overwrite=overwrite)


def _reliability(diagram: Diagram, when: str) -> str:
    title = f"Reliability diagram of the top label, {when}"
    return svg.reliability(diagram, name=when, series=when, title=title, axes=_AXES)


def _by_class(report: Report) -> str:
    if not report.shown_classes:
        return "<p>This report holds no diagrams of single classes.</p>"
    options = "".join(f"<option dir='auto'>{markup.text(report.class_names[k])}</option>" for k in report.shown_classes)
    first = report.class_names[report.shown_classes[0]]
    diagrams = []
    for method, when, word in ((report.given, "before", "Before"), (report.chosen, "after", "After")):
        title = f"Reliability of the probability of {first}, {when}"
        chart = svg.reliability(
            method.class_diagrams[0], name=f"class-{when}", series=when, title=title, axes=_CLASS_AXES
        )
        caption = f"<b class='{when}'>{word}</b> {markup.isolated(method.title)}"
        diagrams.append(f"<figure><figcaption>{caption}</figcaption>{chart}</figure>")
    part = (
        f"all {report.classes:,} classes"
        if len(report.shown_classes) == report.classes
        else f"the {len(report.shown_classes):,} most frequent of {report.classes:,} classes"
    )
    return (
        f"<p>When it gives a class some probability, does that class come true so often? The list has {part}.</p>"
        f"<p class='picker'><label for='class'>Class</label>"
        f"<select id='class' autocomplete='off'>{options}</select></p>"
        f"<p class='shown'>Shown: <bdi id='class-now'>{markup.text(first)}</bdi></p>"
        f"<div class='pair'>{''.join(diagrams)}</div>"
    )


def _controls(report: Report, fitted: Live) -> dict[str, str]:
    """What the live section says and where its sliders stand."""
    slider = report.slider
    gamma, temperature = slider.gamma, slider.temperature
    low_t, high_t = min(_TEMPERATURE_RANGE[0], temperature), max(_TEMPERATURE_RANGE[1], temperature)
    where = words.format_parameters({"gamma": gamma, "temperature": temperature})
    rows = len(slider.labels)
    part = f"all {rows:,} test rows" if rows == report.samples else f"{rows:,} of the {report.samples:,} test rows"
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
        "live_table": markup.live_table(
            (("Softmax", "γ = 0, T = 1", softmax), ("Fitted", where, fitted), ("Now", where, fitted))
        ),
    }


def _exact(value: float) -> str:
    """A number that reads back as itself, whole numbers without their ".0"."""
    return repr(float(value)).removesuffix(".0")


def _data(report: Report) -> dict[str, Any]:
    """What the script needs: numbers only, so that no name of a user comes near it."""
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
        "classes": [[_rounded(diagram) for diagram in pair] for pair in pairs],
        "live": {
            "bins": BINS,
            "logits": slider.logits,
            "labels": slider.labels,
            "fitted": {"gamma": slider.gamma, "temperature": slider.temperature},
        },
    }


def _rounded(diagram: Diagram) -> dict[str, list[float]]:
    """A diagram to six decimals, which is finer than any screen."""
    return {name: [round(value, 6) for value in values] for name, values in vars(diagram).items()}


def _inline_json(value: Any) -> str:
    """JSON that neither ends its script element nor breaks a line where a script would."""
    unsafe = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
    return json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False).translate(unsafe)


def _hash(content: str) -> str:
    """The name that a content security policy knows an inline element by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
