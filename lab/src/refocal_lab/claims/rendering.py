"""Show checked claims: a table in the terminal, one claim in full, a Markdown page, a figure."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from refocal import _files
from refocal_lab.claims.claim import Claim, ClaimRecord, ClaimVerdict
from refocal_lab.papers import PAPERS

_STYLES = {
    ClaimVerdict.HOLDS: "green",
    ClaimVerdict.IN_PART: "yellow",
    ClaimVerdict.REFUTED: "bold red",
    ClaimVerdict.MISPRINT: "magenta",
    ClaimVerdict.REPRODUCED: "green",
    ClaimVerdict.REPRODUCED_IN_PART: "yellow",
    ClaimVerdict.NOT_REPRODUCED: "bold red",
    ClaimVerdict.NOT_CHECKABLE: "dim",
}
_DISAGREEMENTS = {
    "Refuted; the evidence is in the tables below:": (ClaimVerdict.REFUTED,),
    "Not what we find, or only in part, with an experiment that explains it if we have one:": (
        ClaimVerdict.NOT_REPRODUCED,
        ClaimVerdict.REPRODUCED_IN_PART,
    ),
}
_INTRODUCTION = """# The papers' claims, checked

`refocal-lab claims --markdown docs/claims.md --force`, run in `lab/`, writes this page. `refocal-lab claims show ID`
shows one claim; some claims have a plot. Every verdict except "not checkable" is computed, and a test checks that this
page agrees with the computation.

| verdict | meaning |
|---|---|
| holds | true as printed, on the whole domain |
| holds in part | true on a smaller domain, which the evidence names; it also shows a violation outside of it |
| refuted | false; the evidence gives the smallest counterexample found |
| misprint | false as printed, true with the correction that the evidence gives; no conclusion rests on the error |
| reproduced, reproduced in part, not reproduced | whether our networks agree, or our computation if the paper leaves \
its setting open; the paper's own networks and settings may still have done what it says |
| not checkable | a definition, or a statement about all networks |

| method | meaning |
|---|---|
| ball arithmetic | a proof for the stated domain: intervals that are guaranteed to contain the exact values |
| exact identity | both sides are compared in 40 digits at the stated points |
| search | random or exhaustive candidates, with budget and seed; ball arithmetic confirms violations |
| Monte Carlo | a statistical test with a stated error probability |
| printed table | the sentence is compared with the paper's own table |
| trained networks | measured on the logits and training histories of [the zoo](../zoo/README.md) |

Notation: p is the probability of a class and q = 1 − p; q with an index is an entry of a vector of scores. L = −log p,
s = pL/(1−p), ℓ = −(1−p)^γ log p, φ = −pℓ', h = p/φ, Ψ_i = h(q_i)/Σ h(q_l). η is the true posterior, H is entropy. A
printed number is right if the computed value rounds to it. A number after ≈, "about" or "around" may be off by one unit
of its last digit. The formulas were read from text copies of the papers, which can lose fraction bars, absolute values
and signs. What such a loss explains is not held against a paper; the evidence says so.
"""


def render_table(records: Sequence[ClaimRecord]) -> RenderableType:
    """Make a table of verdicts for the terminal."""
    grid = Table(show_lines=True)
    grid.add_column("claim", no_wrap=True)
    grid.add_column("statement")
    for record in records:
        name = Text.assemble(record.id, "\n", (record.verdict, _STYLES[ClaimVerdict(record.verdict)]))
        grid.add_row(name, Text(record.statement))
    return Group(grid, Text(f"{_count_verdicts(records)}. `refocal-lab claims show ID` gives the evidence."))


def render_claim(record: ClaimRecord) -> RenderableType:
    """Show one checked claim in full."""
    grid = Table.grid(padding=(0, 2))
    grid.add_row("claim", Text(f"{record.id}: {PAPERS[record.paper].citation}, {record.where}"))
    grid.add_row("verdict", Text(record.verdict, style=_STYLES[ClaimVerdict(record.verdict)]))
    for name in ("statement", "method", "domain", "evidence"):
        grid.add_row(name, Text(getattr(record, name)))
    return grid


def render_markdown(records: Sequence[ClaimRecord]) -> str:
    """Write the Markdown page of all claims."""
    parts = [_INTRODUCTION, f"There are {len(records)} claims. Verdicts: {_count_verdicts(records)}.\n"]
    parts += _list_disagreements(records)
    for number, paper in PAPERS.items():
        rows = [record for record in records if record.paper == number]
        if not rows:
            continue
        parts += [
            f"## {paper.citation}\n",
            f"{paper.reference}. Ids begin with {number}. Verdicts: {_count_verdicts(rows)}.\n",
            "| claim | statement | verdict | evidence | method and domain |",
            "|---|---|---|---|---|",
            *map(_render_row, rows),
            "",
        ]
    return "\n".join(parts)


def save_plot(claim: Claim, path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Save the figure of a claim.

    Args:
        claim: A claim with a figure.
        path: Output file, .svg or .png.
        overwrite: Whether to replace an existing file.

    Raises:
        ValueError: If the claim has no figure.
        ImportError: If Matplotlib is missing.
    """
    if claim.draw is None:
        msg = f"{claim.id} has no plot"
        raise ValueError(msg)
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        msg = "plots need Matplotlib: pip install matplotlib"
        raise ImportError(msg) from error
    with mpl.rc_context({"svg.hashsalt": "refocal", "font.size": 10}):
        figure = Figure(figsize=(5.2, 3.6), layout="constrained")
        axes = figure.add_subplot()
        claim.draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        kind = os.path.splitext(path)[1].lstrip(".")
        with _files.replacing(path, overwrite=overwrite) as file:
            figure.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)


def _count_verdicts(records: Sequence[ClaimRecord]) -> str:
    counts = Counter(record.verdict for record in records)
    return ", ".join(f"{verdict.value}: {counts[verdict]}" for verdict in ClaimVerdict if counts[verdict])


def _list_disagreements(records: Sequence[ClaimRecord]) -> list[str]:
    """List the statements that are false, and those that our networks or computations do not bear out."""
    lines = []
    for heading, verdicts in _DISAGREEMENTS.items():
        found = [record for record in records if record.verdict in verdicts]
        lines += [f"{heading}\n"] if found else []
        lines += [
            f"- `{record.id}`, {PAPERS[record.paper].short}: {_escape_cell(record.statement)}"
            + (f" ({record.verdict})" if len(verdicts) > 1 else "")
            for record in found
        ]
        lines += [""] if found else []
    return lines


def _render_row(record: ClaimRecord) -> str:
    where, said, found, domain = map(_escape_cell, (record.where, record.statement, record.evidence, record.domain))
    return f"| `{record.id}`<br>{where} | {said} | **{record.verdict}** | {found} | {record.method}: {domain} |"


def _escape_cell(text: str) -> str:
    """Escape the characters that have a meaning in a Markdown table."""
    for special in "\\|*_<>":
        text = text.replace(special, f"\\{special}")
    return text
