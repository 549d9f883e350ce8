"""Tables of the zoo for the terminal, as Markdown and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, zip_longest
from typing import Any, NamedTuple

from rich.console import Group as Several
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from refocal.report.words import MISSING, format_number, format_percent, printable
from refocal_lab.papers import PAPERS
from refocal_lab.zoo.cards import Card, Entry
from refocal_lab.zoo.measures import METHODS
from refocal_lab.zoo.summary import Group, Mean

_METHODS = {
    "raw": "as given",
    "psi": "Ψ",
    "ts-nll": "TS by NLL",
    "ts-ece": "TS by ECE",
    "ts-fl": "TS_FL",
    "ts-fl-psi": "TS_FL, Ψ",
    "fts": "focal TS",
}
_MEASURES = {
    "nll": "NLL",
    "ece_10": "ECE 10",
    "ece_15": "ECE 15",
    "adaptive_ece_10": "AdaECE 10",
    "adaptive_ece_15": "AdaECE 15",
    "kl_human": "KL to people",
}
_IN_NATS = ("nll", "kl_human")


class _Row(NamedTuple):
    """One method of one group; the description of the group fills the first column, line by line."""

    cells: list[str]
    first: bool


def render_list(found: Sequence[Entry]) -> RenderableType:
    """Make one table per data set and network, with one row per entry, from the cards."""
    tables = []
    for (data, model), members in groupby((entry.card for entry in found), key=lambda card: (card.data, card.model)):
        table, beginning = Table(), f"{data}-{model}-"
        table.add_column(Text(printable(beginning + "…")), overflow="fold")
        table.add_column("loss")
        for column in ("epochs", "error", "NLL", "ECE"):
            table.add_column(column, justify="right")
        for card in members:
            name = "…" + card.name.removeprefix(beginning) if card.name.startswith(beginning) else card.name
            figures = (format_percent(card.error, 2), format_number(card.nll), format_percent(card.ece, 2))
            table.add_row(
                *(Text(printable(word)) for word in (name, ", ".join(_describe_loss(card)), str(card.epochs), *figures))
            )
        tables.append(table)
    return Several(*tables, Text("1 entry" if len(found) == 1 else f"{len(found)} entries"))


def render_terminal(groups: Sequence[Group]) -> RenderableType:
    """Make one table per data set and network for the terminal."""
    tables: list[RenderableType] = []
    for title, members in _by_network(groups):
        measures = _list_measures(members)
        table = Table(title=Text(printable(title)))
        table.add_column("loss", overflow="fold")
        table.add_column("method")
        for name in measures:
            table.add_column(_MEASURES[name], justify="right")
        for row in _rows(members, measures):
            if row.first:
                table.add_section()
            table.add_row(*(Text(printable(cell)) for cell in row.cells))
        tables.append(table)
    return Several(*tables, *(Text(printable(line)) for line in _footnotes(groups)))


def render_markdown(groups: Sequence[Group]) -> str:
    """Make the same tables in Markdown."""
    lines = []
    for title, members in _by_network(groups):
        measures = _list_measures(members)
        names = ["loss", "method", *(_MEASURES[name] for name in measures)]
        lines += [f"## {_escape_cell(title)}", "", f"| {' | '.join(names)} |", "|---|---|" + "---:|" * len(measures)]
        lines += [f"| {' | '.join(map(_escape_cell, row.cells))} |" for row in _rows(members, measures)]
        lines.append("")
    return "\n".join([*lines, *(f"- {_escape_cell(line)}" for line in _footnotes(groups))])


def to_json(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Convert the groups to JSON; infinite values become null."""
    keys = ("data", "model", "loss", "gamma", "factor", "label_smoothing", "curvature_penalty", "epochs")
    return [
        {key: getattr(group.cards[0], key) for key in keys}
        | {
            "entries": [card.name for card in group.cards],
            "methods": {
                method: {name: _mean_json(value) for name, value in values.items()}
                for method, values in group.methods.items()
            },
            "notes": group.notes,
        }
        for group in groups
    ]


def _mean_json(value: Mean) -> dict[str, Any]:
    mean = value.mean if math.isfinite(value.mean) else None
    return {"mean": mean, "std": value.deviation, "published": [found._asdict() for found in value.published]}


def _title(card: Card) -> str:
    return f"{card.data}, {card.model}"


def _by_network(groups: Sequence[Group]) -> Iterator[tuple[str, list[Group]]]:
    for title, members in groupby(groups, key=lambda group: _title(group.cards[0])):
        yield title, list(members)


def _list_measures(groups: Sequence[Group]) -> list[str]:
    """List the measures that any group has."""
    return [name for name in _MEASURES if any(name in group.methods["raw"] for group in groups)]


def _rows(groups: Sequence[Group], measures: Sequence[str]) -> Iterator[_Row]:
    for group in groups:
        seeds = f"{len(group.cards)} seed{'s' * (len(group.cards) > 1)}, {group.cards[0].epochs} epochs"
        error = f"error {_format_value('error', group.methods['raw']['error'])}"
        about = [*_describe_loss(group.cards[0]), seeds, *error.splitlines()]
        for method, line in zip_longest(METHODS, about[: len(METHODS)], fillvalue=""):
            values = group.methods.get(method, {})
            cells = [_format_value(name, values[name]) if name in values else MISSING for name in measures]
            yield _Row([line, _METHODS[method], *cells], first=method == METHODS[0])


def _format_value(name: str, value: Mean) -> str:
    """Write mean ± deviation and, below, the papers' numbers; all measures except NLL and KL are in percent."""
    ours, theirs = (format_number, _format_published) if name in _IN_NATS else (_format_percent, _format_percent)
    lines = [_format_deviation(value.mean, value.deviation, ours)]
    lines += [
        f"{_cite(found.paper)}: {_format_deviation(found.value, found.deviation, theirs)}" for found in value.published
    ]
    return "\n".join(lines)


def _cite(paper: str) -> str:
    return PAPERS[paper].short if paper in PAPERS else paper


def _format_deviation(value: float, deviation: float | None, render: Callable[[float], str]) -> str:
    return render(value) + ("" if deviation is None else f" ±\u00a0{render(deviation).removesuffix('%')}")


def _format_percent(value: float) -> str:
    return format_percent(value, 2)


def _format_published(value: float) -> str:
    """Write a number with no more digits than the papers have."""
    return f"{value:.4g}"


def _describe_loss(card: Card) -> list[str]:
    factor = [f"factor {card.factor:g}"] if card.factor else []
    smoothing = [f"label smoothing {card.label_smoothing:g}"] if card.label_smoothing else []
    penalty = [f"curvature penalty {card.curvature_penalty:g}"] if card.curvature_penalty else []
    return [card.loss if card.gamma is None else f"{card.loss}, γ = {card.gamma:g}", *factor, *smoothing, *penalty]


def _footnotes(groups: Sequence[Group]) -> Iterator[str]:
    means = [value for group in groups for values in group.methods.values() for value in values.values()]
    yield "± is the standard deviation over seeds. Calibrators are fitted to the validation part."
    tables: dict[str, set[int]] = {}
    for found in (found for value in means for found in value.published):
        tables.setdefault(found.paper, set()).add(found.table)
    for paper, numbers in sorted(tables.items()):
        places = f"Table{'s' * (len(numbers) > 1)} {', '.join(map(str, sorted(numbers)))}"
        yield f"{_cite(paper)}: published numbers, from {places}."
    if any(math.isinf(value.mean) for value in means):
        yield "∞: with label smoothing, Ψ gives some true classes probability 0."
    for group in groups:
        yield from group.notes


def _escape_cell(text: str) -> str:
    """Escape text so that it stays in its cell and does not become markup."""
    safe = printable(text).replace("&", "&amp;").replace("<", "&lt;")
    return safe.replace("|", "\\|").replace("\n", "<br>")
