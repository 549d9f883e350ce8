"""What a threshold or a matrix of costs means before and after: a section of the page."""

from __future__ import annotations

from refocal.report import markup, words
from refocal.report.answers import CostDecisions, ThresholdDecisions
from refocal.report.record import Report

_START = 0.5
_QUANTITIES = (
    ("flagged", "Flagged"),
    ("precision", "Positive among these"),
    ("recall", "Positives found"),
    ("alarms", "False alarms"),
    ("missed", "Missed"),
    ("cost", "Cost per 1,000 cases, in false alarms"),
)


def build_thresholds(report: Report, decisions: ThresholdDecisions) -> str:
    """A slider for the threshold, and the decisions at 50%, which the script changes."""
    index = decisions.thresholds.index(_START)
    sides = [("given", "Before", "before"), ("chosen", "After", "after")]
    sides = [("given", words.GIVEN_TITLE, "after")] if report.chosen.given else sides
    values = {side: describe_threshold(decisions, index, side) for side, _, _ in sides}
    head = "".join(f"<th scope='col'><b class='{series}'>{label}</b></th>" for _, label, series in sides)
    rows = "".join(
        f"<tr><th scope='row'>{label}</th>"
        + "".join(f"<td id='decision-{side}-{key}'>{values[side][key]}</td>" for side, _, _ in sides)
        + "</tr>"
        for key, label in _QUANTITIES
    )
    name = markup.isolate(report.class_names[1])
    changed = (
        ""
        if report.chosen.given
        else f"<p class='lead'><b id='decisions-changed'>{describe_changed(decisions, index)}</b></p>"
    )
    return (
        f"<p>A case is flagged if its probability of {name} is at least the threshold. A threshold t has the least "
        "cost if a missed positive costs (1 − t) / t times as much as a false alarm, and if the probabilities are "
        "right.</p>"
        "<div class='controls one'><div class='control'><label for='threshold'>Threshold</label>"
        "<input type='range' id='threshold' autocomplete='off' min='1' max='99' step='1' value='50' "
        "aria-valuetext='50%'><output id='threshold-now' for='threshold'>50%</output></div></div>"
        f"{changed}<div class='scroll decisions' tabindex='0' role='region' aria-label='Decisions'><table>"
        f"<caption>Decisions at a threshold of <span id='threshold-shown'>50%</span></caption>"
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def describe_threshold(decisions: ThresholdDecisions, index: int, side: str) -> dict[str, str]:
    """The counts at one threshold as text, as the script writes them."""
    flagged, hits = getattr(decisions, f"flagged_{side}")[index], getattr(decisions, f"hits_{side}")[index]
    threshold = decisions.thresholds[index]
    alarms, missed = flagged - hits, decisions.positives - hits
    cost = 1000 * (alarms + missed * (1 - threshold) / threshold) / decisions.total
    return {
        "flagged": words.format_count(flagged),
        "precision": words.format_percent(hits / flagged if flagged else float("nan")),
        "recall": words.format_percent(hits / decisions.positives if decisions.positives else float("nan")),
        "alarms": words.format_count(alarms),
        "missed": words.format_count(missed),
        "cost": f"{cost:.1f}",
    }


def describe_changed(decisions: ThresholdDecisions, index: int) -> str:
    """The number of changed decisions in words, as the script writes it."""
    changed = decisions.changed[index]
    if not changed:
        return "No decision changes."
    verb = "decision changes" if changed == 1 else "decisions change"
    return f"{words.format_count(changed)} {verb} ({words.format_percent(changed / decisions.total)})."


def build_costs(decisions: CostDecisions) -> str:
    """The costs of the cheapest decisions before and after."""
    sides = [("Before", "before", decisions.given), ("After", "after", decisions.chosen)]
    sides = [(words.GIVEN_TITLE, "after", decisions.given)] if decisions.chosen is None else sides
    rows = "".join(
        f"<tr><th scope='row'><b class='{series}'>{label}</b></th><td>{words.format_number(outcome.promised)}</td>"
        f"<td>{words.format_number(outcome.actual.value)}<small>{words.format_interval('cost', outcome.actual)}</small>"
        "</td></tr>"
        for label, series, outcome in sides
        if outcome is not None
    )
    share = words.format_percent(decisions.changed, 2)
    changed = "" if decisions.chosen is None else f" {share} of the decisions change."
    return (
        "<p>For each sample, the decision with the least expected cost is taken. If the probabilities are right, "
        f"the decisions cost what they promise.{changed}</p>"
        "<div class='scroll decisions' tabindex='0' role='region' aria-label='Costs'><table>"
        "<caption>Mean cost per sample with the given matrix of costs</caption><thead><tr><td></td>"
        "<th scope='col'>Promised</th><th scope='col'>Actual</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )
