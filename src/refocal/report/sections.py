"""The sections of the page below its header, each with its link. A section that has nothing to show is left out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import resources
from string import Template

from refocal.report import markup, svg, words
from refocal.report.apply_box import build_apply_box, build_settings
from refocal.report.decision_tables import build_costs, build_thresholds
from refocal.report.live import Live, measure_rows
from refocal.report.record import Method, Report, Slider
from refocal.report.set_tables import build_sets
from refocal.report.subgroup_tables import build_slices, build_worst_classes

_AXES = ("confidence (%)", "correct (%)")
_CLASS_AXES = ("predicted probability (%)", "observed frequency (%)")
# Ranges of the two sliders. A fitted value outside widens them.
_GAMMA_RANGE = (-0.9, 10.0)
_TEMPERATURE_RANGE = (0.1, 10.0)
_HOW_TO_READ = (
    "If so, the dot lies on the diagonal, up to sampling noise: each dot of a calibrated model lies in the gray band "
    "with a probability of 95%. A <span class='key-out'>filled</span> dot is outside it, a hollow one inside. The bars "
    "below count the samples."
)


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        name: Its id.
        link: Its words in the navigation.
        heading: Its heading.
        content: Its HTML below the heading.
    """

    name: str
    link: str
    heading: str
    content: str

    def render(self) -> str:
        """Write it as HTML."""
        return (
            f'<section id="{self.name}" aria-labelledby="{self.name}-heading">\n'
            f'<h2 id="{self.name}-heading">{self.heading}</h2>\n{self.content}\n</section>\n'
        )


def build_sections(report: Report) -> list[Section]:
    """Build all sections. The page of a report that was measured from sums has only the methods."""
    built = (
        _methods(report),
        Section("apply", "How to apply", "How to apply this", build_apply_box(report)),
        _reliability(report),
        _classes(report),
        _slices(report),
        _decisions(report),
        _sets(report),
        _confidence(report),
        _live(report),
        _changes(report),
        Section("settings", "Settings", "The settings that made this page", build_settings(report)),
    )
    return [section for section in built if section is not None]


def build_overview(report: Report) -> str:
    """The diagram beside the verdict; empty if the report was measured from sums."""
    chart = draw_overview(report)
    colors = "" if report.chosen.given else ", <b class='before'>before</b> and <b class='after'>after</b>"
    what = "probability" if report.task == "binary" else "confidence"
    caption = f"Reliability{colors}. On the diagonal, the {what} is right. {explain_dots(report)}"
    return f"<figure><figcaption>{caption}</figcaption>{chart}</figure>" if chart else ""


def explain_dots(report: Report) -> str:
    """Say what a filled dot and the gray band of the overview mean."""
    ranges = "these ranges" if report.chosen.given else "the ranges of <b class='after'>after</b>"
    return (
        "A dot is filled if it lies outside its 95% range, as about one dot in 20 does by chance alone. "
        f"The gray band joins {ranges}."
    )


def draw_overview(report: Report, *, name: str = "overview") -> str:
    """Draw the reliability before and after on the same axes; empty if the report was measured from sums."""
    pairs = [(series, method.diagram) for series, _, method in _series(report) if method.diagram is not None]
    if not pairs:
        return ""
    return svg.draw_overview(pairs, title="Reliability diagram at a glance", axes=_axes(report), name=name)


def _series(report: Report) -> list[tuple[str, str, Method]]:
    """What is drawn, with its color and its label: before and after, or only once if nothing changes."""
    if report.chosen.given:
        return [("after", words.GIVEN_TITLE, report.given)]
    return [("before", "Before", report.given), ("after", "After", report.chosen)]


def _axes(report: Report) -> tuple[str, str]:
    return _CLASS_AXES if report.task == "binary" else _AXES


def _caption(series: str, label: str, method: Method) -> str:
    title = "" if label == method.title else f" {markup.isolate(method.title)}"
    return f"<figcaption><b class='{series}'>{label}</b>{title}</figcaption>"


def _methods(report: Report) -> Section:
    limits = "" if report.verdict is None else markup.escape_text(words.explain_limits(report.methods))
    sentences = filter(None, (report.rule, words.explain_refinement(report)))
    notes = "".join(f"<p>{markup.escape_text(sentence)}</p>\n" for sentence in sentences)
    content = (
        f"<p>Measured on the test data. {limits}</p>\n{markup.build_methods_table(report)}\n"
        f"{notes}{markup.build_glossary(report)}"
    )
    return Section("methods", "Methods", "Methods compared" if len(report.methods) > 1 else "Measures", content)


def _reliability(report: Report) -> Section | None:
    drawn = [(each, each[2].diagram) for each in _series(report) if each[2].diagram is not None]
    if not drawn:
        return None
    alone = len(drawn) == 1
    binary = report.task == "binary"
    what = "P(y = 1)" if binary else "the top label"
    figures = []
    for (series, label, method), diagram in drawn:
        when = "as given" if alone else series
        chart = svg.draw_reliability(
            diagram, name=series, series=series, title=f"Reliability diagram of {what}, {when}", axes=_axes(report)
        )
        numbers = markup.build_bins_table(diagram, name=when, predicted="P(y = 1)" if binary else "Confidence")
        below = "" if alone else f"<details><summary>Numbers, {when}</summary>{numbers}</details>"
        figures.append(f"<figure>{_caption(series, label, method)}{chart}{below}</figure>{numbers if alone else ''}")
    heading = "Reliability" if alone else "Reliability, before and after"
    question = f"If the probability of {markup.isolate(report.class_names[1])} is 20%, does it occur 20% of the time?"
    question = question if binary else "Of the predictions made with 80% confidence, are 80% correct?"
    content = f"<p>{question} {_HOW_TO_READ}</p><div class='pair'>{''.join(figures)}</div>"
    return Section("reliability", "Reliability", heading, content)


def _classes(report: Report) -> Section | None:
    worst = build_worst_classes(report) if report.worst_classes else ""
    if not report.shown_classes:
        return Section("by-class", "Classes", "Class by class", worst) if worst else None
    options = "".join(
        f"<option dir='auto'>{markup.escape_text(report.class_names[k])}</option>" for k in report.shown_classes
    )
    first = report.class_names[report.shown_classes[0]]
    figures = []
    for series, label, method in _series(report):
        title = f"Reliability of the probability of {first}, {label.lower()}"
        chart = svg.draw_reliability(
            method.class_diagrams[0], name=f"class-{series}", series=series, title=title, axes=_CLASS_AXES
        )
        figures.append(f"<figure>{_caption(series, label, method)}{chart}</figure>")
    part = (
        f"all {report.classes:,} classes"
        if len(report.shown_classes) == report.classes
        else f"the {len(report.shown_classes):,} most frequent of {report.classes:,} classes"
    )
    question = (
        f"<p>If the probability of a class is 30%, is it the true class 30% of the time? The list has {part}.</p>"
        f"<p class='picker'><label for='class'>Class</label>"
        f"<select id='class' autocomplete='off'>{options}</select></p>"
        f"<p class='shown'>Shown: <bdi id='class-now'>{markup.escape_text(first)}</bdi></p>"
    )
    if len(figures) == 1:
        content = f"<div class='pair'>{worst}<div>{question}{figures[0]}</div></div>"
    else:
        content = f"{worst}{question}<div class='pair'>{''.join(figures)}</div>"
    return Section("by-class", "Classes", "Class by class", content)


def _slices(report: Report) -> Section | None:
    return Section("slices", "Slices", "Slices", build_slices(report)) if report.slices else None


def _decisions(report: Report) -> Section | None:
    parts = [] if report.thresholds is None else [build_thresholds(report, report.thresholds)]
    parts += [] if report.costs is None else [build_costs(report.costs)]
    heading = "Decisions" if report.chosen.given else "Decisions, before and after"
    return Section("decisions", "Decisions", heading, "".join(parts)) if parts else None


def _sets(report: Report) -> Section | None:
    if report.sets is None:
        return None
    heading = "Prediction sets" if report.sets.chosen is None else "Prediction sets, before and after"
    return Section("sets", "Prediction sets", heading, build_sets(report, report.sets))


def _confidence(report: Report) -> Section | None:
    drawn = _series(report)
    counts = {series: method.histogram for series, _, method in drawn if method.histogram is not None}
    if not counts:
        return None
    binary = report.task == "binary"
    word = "Probability" if binary else "Confidence"
    chart = svg.draw_histogram(counts, what="predicted probability" if binary else "confidence")
    lines = [(label, series, method) for series, label, method in drawn]
    text = markup.describe_confidence(lines, event=markup.name_event(report))
    content = f"<div class='beside'><figure>{chart}</figure><div>{text}</div></div>"
    return Section("confidence", word, word + (", before and after" if len(drawn) > 1 else ""), content)


def _live(report: Report) -> Section | None:
    slider = report.slider
    if slider is None:
        return None
    event = markup.name_event(report)
    fitted = measure_rows(slider, gamma=slider.gamma, temperature=slider.temperature)
    title = "Reliability of these rows at the current setting"
    live = svg.draw_reliability(fitted.diagram, name="live", series="live", title=title, axes=_axes(report))
    template = resources.files("refocal.report").joinpath("assets", "live.html").read_text("utf-8")
    content = Template(template).substitute(
        live=live,
        map=svg.draw_map(gamma=slider.gamma, temperature=slider.temperature),
        **_controls(
            slider,
            fitted,
            samples=report.samples,
            tried=len(report.methods) > 1,
            recommended=_is_on_slider(report.chosen, slider),
            mean="Mean confidence" if event is None else f"Mean probability of {event}",
        ),
    )
    return Section("play", "The map, live", "The map, live", content)


def _changes(report: Report) -> Section | None:
    if not report.changes:
        return None
    return Section("changed", "Changed most", "Changed most", markup.build_changes_table(report))


def _controls(
    slider: Slider, fitted: Live, *, samples: int, tried: bool, recommended: bool, mean: str
) -> dict[str, str]:
    """The text of the live section and the positions of its sliders."""
    gamma, temperature = slider.gamma, slider.temperature
    low_t, high_t = min(_TEMPERATURE_RANGE[0], temperature), max(_TEMPERATURE_RANGE[1], temperature)
    where = words.format_parameters({"gamma": gamma, "temperature": temperature})
    fit = f"The fitted map of this form has {where}{'' if recommended else '; it is not the recommended method'}."
    rows = len(slider.labels)
    part = f"all {rows:,} test rows" if rows == samples else f"{rows:,} of the {samples:,} test rows"
    lines = [(words.GIVEN_TITLE, "γ = 0, T = 1", measure_rows(slider, gamma=0.0, temperature=1.0))]
    lines += [("Fitted", where, fitted)] if tried else []
    return {
        "fit": fit if tried else "Nothing was fitted.",
        "initial": "the fitted values" if tried else "the scores as given",
        "reset": "Reset to the fit" if tried else "Reset",
        "wide_line": "; the <span class='after'>wide line</span> is the fit" if tried else "",
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
        "live_table": markup.build_live_table([*lines, ("Now", where, fitted)], mean=mean),
    }


def _is_on_slider(method: Method, slider: Slider) -> bool:
    """Whether a method is the map that the sliders begin with."""
    found = {"gamma": 0.0, "temperature": 1.0, **method.parameters}
    return bool(method.parameters) and (found["gamma"], found["temperature"]) == (slider.gamma, slider.temperature)


def _exact(value: float) -> str:
    """Write a number that reads back as itself, a whole number without ".0"."""
    return repr(float(value)).removesuffix(".0")
