"""The report as one self-contained HTML page: nothing is loaded, and text from users is escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

from refocal._files import write_text
from refocal.report import markup, svg, words
from refocal.report.record import Diagram, Report
from refocal.report.sections import Section, build_overview, build_sections
from refocal.stats.binning import BINS

_FRAME = {
    "left": svg.LEFT,
    "top": svg.TOP,
    "size": svg.SIZE,
    "stripTop": svg.STRIP_TOP,
    "stripBottom": svg.STRIP_BOTTOM,
}


def render_page(report: Report) -> str:
    """Render the page as text. The same report always gives the same page.

    The page holds its style, script and data. Its content security policy keeps it from loading anything else. The page
    of a report that was measured from sums has no diagrams.

    Args:
        report: The report to show.

    Returns:
        A complete HTML document.
    """
    answer, *reasons = words.FROM_SUMS if report.verdict is None else report.verdict.sentences
    reasons += [report.protocol] if report.protocol else []
    regime = f"<span class='tag'>{markup.escape_text(report.verdict.regime)}</span> " if report.verdict else ""
    return fill_page(
        source=report.source,
        answer=answer,
        reasons=reasons,
        sections=build_sections(report),
        data=_data(report),
        versions=report.versions,
        legend=markup.build_legend(report),
        tiles=markup.build_tiles(report.given, report.chosen, event=markup.name_event(report)),
        meta=f"{regime}{markup.describe_data(report)}",
        overview=build_overview(report),
    )


def fill_page(
    *,
    source: str,
    answer: str,
    reasons: Sequence[str],
    sections: Sequence[Section],
    data: dict[str, Any],
    versions: Mapping[str, str],
    **markup_by_name: str,
) -> str:
    """Fill the template of a page.

    Args:
        source: Where the predictions came from.
        answer: The headline.
        reasons: The sentences below it.
        sections: The sections of the page.
        data: The data of the script, besides the frame of its diagrams.
        versions: Versions of the packages that computed the report.
        markup_by_name: The other parts of the template, which are HTML: legend, tiles, meta and overview.
    """
    assets = resources.files("refocal.report").joinpath("assets")
    style = "\n".join(assets.joinpath(name).read_text("utf-8") for name in ("chart.css", "page.css"))
    script = "\n".join(assets.joinpath(name).read_text("utf-8") for name in ("psi.js", "page.js"))
    template = assets.joinpath("page.html").read_text("utf-8")
    return Template(template).substitute(
        title=f"{markup.escape_text(source)}: calibration report",
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        data=_inline_json({"frame": _FRAME, **data}),
        answer=markup.escape_text(words.keep_together(answer)),
        reasons="".join(f"<p>{markup.escape_text(words.keep_together(sentence))}</p>" for sentence in reasons),
        links="\n".join(f'<a href="#{section.name}">{section.link}</a>' for section in sections),
        sections="\n".join(section.render() for section in sections),
        versions=markup.escape_text(", ".join(f"{name} {version}" for name, version in versions.items())),
        **markup_by_name,
    )


def save_page(report: Report, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write the page to a file. An interrupted write leaves no file.

    Args:
        report: The report to show.
        path: The file to write. Its folder must exist.
        overwrite: Whether to replace an existing file.
    """
    write_text(path, render_page(report), overwrite=overwrite)


def _data(report: Report) -> dict[str, Any]:
    """The data of the script: numbers only, so that it never sees text that comes from users."""
    slider = report.slider
    drawn = (report.given,) if report.chosen.given else (report.given, report.chosen)
    diagrams = zip(*(method.class_diagrams for method in drawn), strict=True)
    return {
        "classes": [[_round(diagram) for diagram in of_class] for of_class in diagrams],
        "thresholds": report.thresholds and {**vars(report.thresholds), "compared": not report.chosen.given},
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
