"""The gallery: one Markdown page that shows every figure and compares our numbers with the published ones."""

from __future__ import annotations

import html
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from refocal_lab.papers import PAPERS
from refocal_lab.reproduce import result_files
from refocal_lab.reproduce.computation import NO_ENTRY
from refocal_lab.reproduce.result_files import Comparison, StoredResult
from refocal_lab.reproduce.spec import SCALES, Spec

_INTRODUCTION = """# The papers' figures

Each figure and table below is one command: `refocal-lab reproduce ID` reads a spec in
[`experiments/`](../experiments), computes the numbers, draws the figure, and compares the numbers with the published
ones. There are three scales: `smoke` (seconds), `small` (the default) and `paper` (as published).
`refocal-lab reproduce --list` lists all figures. `refocal-lab reproduce --gallery docs/gallery.md`, run in `lab/`,
writes this page from the stored results.

"Within" tells whether our number is within the tolerance. For a printed number the tolerance is half a unit of its last
digit, or one unit after ≈, "about" or "around"; if the paper has only words, the tolerance is our reading of them. A
bold **no** is a difference from the paper in its own setting. "Other network", "other data" and "other schedule" mean
that ours is not the paper's: such a "no" does not contradict the paper, and such a "yes" supports its conclusion for
our setting only. "Not stated" means that the paper leaves a part of its setting open, so ours may be another; such
numbers count as those of another setting.

Figures of trained networks are computed from the logits and training histories in [`zoo/`](../zoo), and are recomputed
when the zoo changes. "No entry" means that the zoo lacks the network, or a measurement that the number needs. In the
tables of these figures, the paper's number is in brackets. 001-study-c and 004-fig-4 read data sets from the folder
given by `--data`: `tabular/*.npz` with X, y and categorical, and the files of CIFAR-10.
"""


def read_results(results: Path, specs: Mapping[str, Spec]) -> dict[str, StoredResult]:
    """Read the stored result of each spec at its largest scale; smoke runs do not count."""
    found = {}
    for spec in specs.values():
        for scale in reversed(SCALES[1:]):
            result = result_files.load(results, spec, scale)
            if result is not None:
                found[spec.id] = result
                break
    return found


def render_gallery(specs: Mapping[str, Spec], found: Mapping[str, StoredResult], *, figures: str) -> str:
    """Write the gallery as Markdown.

    Args:
        specs: The figures to show, in this order.
        found: Results by id.
        figures: The folder of results, relative to the page.
    """
    parts = [_INTRODUCTION, _render_counts(specs, found)]
    paper = None
    for spec in specs.values():
        if spec.paper != paper:
            paper = spec.paper
            parts.append(_render_heading(paper))
        parts.append(_render_section(spec, found.get(spec.id), figures))
    return "\n".join(parts)


def relative_link(page: str | os.PathLike[str], results: Path) -> str:
    """Give the path from a page to the folder of results, quoted for Markdown, such as "my%20results"."""
    return quote(Path(os.path.relpath(results.resolve(), Path(page).resolve().parent)).as_posix())


def _render_counts(specs: Mapping[str, Spec], found: Mapping[str, StoredResult]) -> str:
    """Count the published numbers of each paper by agreement and by setting."""
    rows: list[tuple[str, ...]] = [
        ("paper", "published numbers", "yes", "**no**", "yes, other setting", "no, other setting", NO_ENTRY)
    ]
    for paper in dict.fromkeys(spec.paper for spec in specs.values()):
        items = [item for name, result in found.items() if specs[name].paper == paper for item in result.published]
        counts = Counter((item.within, item.within is not None and not item.own_setting) for item in items)
        keys = [(True, False), (False, False), (True, True), (False, True), (None, False)]
        rows.append((_citation(paper), str(len(items)), *(str(counts[key]) for key in keys)))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(rows[0]) - 1), *lines[1:]]) + "\n"


def _citation(paper: str) -> str:
    return PAPERS[paper].citation if paper in PAPERS else _escape(paper)


def _render_heading(paper: str) -> str:
    reference = f"\n{PAPERS[paper].reference}.\n" if paper in PAPERS else ""
    return f"## {_citation(paper)}\n{reference}"


def _render_section(spec: Spec, result: StoredResult | None, figures: str) -> str:
    head = f"### {spec.id}: {_escape(spec.title)}\n"
    if result is None:
        return f"{head}\n{_escape(spec.caption)}\n\nThere is no stored result.\n"
    lines = [
        head,
        f"![{_escape(spec.title)}]({figures}/{spec.id}/{result.scale}/figure.svg)\n",
        f"{_escape(spec.caption)}{_describe_setting(spec)} {_describe_scale(spec, result)}, "
        f"{_format_duration(result.seconds)}.\n",
    ]
    if result.published:
        lines += ["| published number | place | paper | ours | within |", "|---|---|---|---|---|"]
        lines += [
            f"| {_escape(item.says)} | {_escape(item.where)} | {_format_published(item)} | {item.ours_text} "
            f"| {_format_within(item)} |"
            for item in result.published
        ]
    notes = dict.fromkeys(item.note for item in result.published if item.note)
    texts = [_escape(text) for text in (*notes, result_files.fill_finding(spec.finding, result.numbers)) if text]
    tables = ["\n".join(_render_table(result.numbers.table))] if result.numbers.table else []
    return "\n\n".join(["\n".join(lines).rstrip(), *texts, *tables]) + "\n"


def _render_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for index, row in enumerate(rows):
        yield f"| {' | '.join(map(_escape, row))} |"
        if index == 0:
            yield "|" + "---|" * len(row)


def _format_published(item: Comparison) -> str:
    return f"{item.paper_text} ± {item.tolerance:g}" if item.relation == "about" and item.tolerance else item.paper_text


def _format_within(item: Comparison) -> str:
    """Whether the numbers agree; a difference from the paper in its own setting is bold."""
    return f"**{item.within_text}**" if item.within is False and item.own_setting else item.within_text


def _describe_setting(spec: Spec) -> str:
    return f" Not the paper's own: {result_files.join_words(spec.differs)}." if spec.differs else ""


def _describe_scale(spec: Spec, result: StoredResult) -> str:
    same = spec.parameters[result.scale] == spec.parameters[SCALES[-1]]
    return f"Scale {result.scale}{', identical to paper' if same and result.scale != SCALES[-1] else ''}"


def _escape(text: str) -> str:
    """Write text on one line and escape what Markdown would interpret."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def _format_duration(seconds: float | None) -> str:
    if seconds is None:
        return "time not recorded"
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"
