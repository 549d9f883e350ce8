"""The page that shows every figure with our numbers beside the paper's, from the stored results."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from refocal_lab.reproduce import result_files
from refocal_lab.reproduce.result_files import Comparison, StoredResult
from refocal_lab.reproduce.spec import SCALES, Spec

PAPERS = {
    "001": "Charoenphakdee et al., CVPR 2021",
    "002": "Mukhoti et al., version under review for ICLR 2020",
    "003": "Komisarenko & Kull, ECAI 2024",
    "004": "Kimura & Naganuma, 2024",
}
_WITHIN = {True: "yes", False: "**no**", None: "–"}
_INTRODUCTION = """# The papers' figures

Each figure below is one command, `refocal-lab reproduce ID`, which computes it from a spec in
[`experiments/`](../experiments), draws it, and compares its numbers with the published ones. The scales are `smoke`
(seconds), `small` (the default) and `paper` (as published); `refocal-lab reproduce --list` shows what there is, and
`refocal-lab reproduce --gallery docs/gallery.md` writes this page from the stored results. "Within" says whether ours
is within the tolerance: half a unit of the last printed digit of a number, our reading where the paper has only words.
001-study-c reads data sets, `tabular/*.npz` with X, y and categorical, from the folder that `--data` names. What needs
trained networks is computed from the logits and histories in [`zoo/`](../zoo), and again when the zoo has changed; "no
entry" stands where the zoo has no such network, and in its tables the paper's number is in brackets.
"""


def read_results(results: Path, specs: Mapping[str, Spec]) -> dict[str, StoredResult]:
    """The stored result of the largest scale of each spec that has one; smoke runs do not count."""
    found = {}
    for spec in specs.values():
        for scale in reversed(SCALES[1:]):
            result = result_files.load(results, spec, scale)
            if result is not None:
                found[spec.id] = result
                break
    return found


def render_gallery(specs: Mapping[str, Spec], found: Mapping[str, StoredResult], *, figures: str) -> str:
    """The page as Markdown.

    Args:
        specs: What to show, in this order.
        found: Results by id.
        figures: The folder of results, as seen from the page.
    """
    parts = [_INTRODUCTION]
    paper = None
    for spec in specs.values():
        if spec.paper != paper:
            paper = spec.paper
            parts.append(f"## {paper}: {_escape(PAPERS.get(paper, 'other'))}\n")
        parts.append(_render_section(spec, found.get(spec.id), figures))
    return "\n".join(parts)


def relative_link(page: str | os.PathLike[str], results: Path) -> str:
    """The folder of results as seen from a page, as an address that Markdown takes: "my%20results" and the like."""
    return quote(Path(os.path.relpath(results.resolve(), Path(page).resolve().parent)).as_posix())


def _render_section(spec: Spec, result: StoredResult | None, figures: str) -> str:
    head = f"### {spec.id}: {_escape(spec.title)}\n"
    if result is None:
        return f"{head}\n{_escape(spec.caption)}\n\nNo result is stored.\n"
    lines = [
        head,
        f"![{_escape(spec.title)}]({figures}/{spec.id}/{result.scale}/figure.svg)\n",
        f"{_escape(spec.caption)} {_describe_scale(spec, result)}, {_format_duration(result.seconds)}.\n",
    ]
    if result.published:
        lines += ["| published | where | paper | ours | within |", "|---|---|---|---|---|"]
        lines += [
            f"| {_escape(item.says)} | {_escape(item.where)} | {_format_published(item)} | {item.ours_text} "
            f"| {_WITHIN[item.within]} |"
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


def _describe_scale(spec: Spec, result: StoredResult) -> str:
    same = spec.parameters[result.scale] == spec.parameters[SCALES[-1]]
    return f"Scale {result.scale}{', the same as paper' if same and result.scale != SCALES[-1] else ''}"


def _escape(text: str) -> str:
    """Text of a spec as Markdown that shows it, on one line."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def _format_duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"
