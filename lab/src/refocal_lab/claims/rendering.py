"""Records for people: a table in the terminal, one record in full, the page of the documentation, a figure."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from refocal import _files
from refocal_lab.claims.claim import Claim, ClaimRecord, ClaimVerdict

_STYLES = {
    ClaimVerdict.HOLDS: "green",
    ClaimVerdict.ONLY_WHERE: "yellow",
    ClaimVerdict.REFUTED: "bold red",
    ClaimVerdict.MISPRINT: "magenta",
    ClaimVerdict.NOT_CHECKABLE: "dim",
}
PAPERS = {
    "001": "Charoenphakdee, Vongkulbhisal, Chairatanakul, Sugiyama: On Focal Loss for Class-Posterior Probability "
    "Estimation: A Theoretical Perspective, CVPR 2021, and its talk",
    "002": "Mukhoti, Kulharia, Sanyal, Golodetz, Torr, Dokania: The Intriguing Effects of Focal Loss on the "
    "Calibration of Deep Neural Networks, version under review for ICLR 2020",
    "003": "Komisarenko, Kull: Improving Calibration by Relating Focal Loss, Temperature Scaling, and Properness, "
    "ECAI 2024",
    "004": "Kimura, Naganuma: Geometric Insights into Focal Loss: Reducing Curvature for Enhanced Model Calibration, "
    "2024",
}
_INTRODUCTION = """# The papers' claims, checked

`refocal-lab claims --markdown docs/claims.md --force` writes this page; `refocal-lab claims show ID` shows one claim,
some with a plot. Every verdict but "not checkable" comes out of a computation at run time, and a test holds this page
to it.

| verdict | meaning |
|---|---|
| holds | true as printed, on the domain |
| holds only where | true on a smaller domain, which is named; outside of it a violation is shown |
| refuted | false; the smallest counterexample found is given |
| misprint | false as printed, true with the correction given |
| not checkable | a definition, or a statement about all networks |

| method | what it means |
|---|---|
| ball arithmetic | a proof on the whole domain or at the points named: intervals surely hold the exact values |
| exact identity | both sides in 40 digits at the points named |
| search | random or exhaustive candidates, with budget and seed; violations are confirmed by balls |
| Monte Carlo | a test whose error probability is stated |
| printed table | the sentence against the paper's own table |

Notation: p is the probability of a class, q = 1 − p (with an index: a vector of scores), L = −log p, s = pL/(1−p),
ℓ = −(1−p)^γ log p, φ = −pℓ', h = p/φ, Ψ_i = h(q_i)/Σ h(q_l), η the true posterior, H entropy. A printed number is
right if the computed value rounds to it. The formulas were read from text copies of the papers, in which fraction bars
and signs can be lost; where that matters the evidence says so.
"""


def render_table(records: Sequence[ClaimRecord]) -> RenderableType:
    """Verdicts for a terminal."""
    grid = Table(show_lines=True)
    grid.add_column("claim", no_wrap=True)
    grid.add_column("statement")
    for record in records:
        name = Text.assemble(record.id, "\n", (record.verdict, _STYLES[ClaimVerdict(record.verdict)]))
        grid.add_row(name, Text(record.statement))
    return Group(grid, Text(f"{_count_verdicts(records)}. `refocal-lab claims show ID` gives the evidence."))


def render_claim(record: ClaimRecord) -> RenderableType:
    """One record with all it holds."""
    grid = Table.grid(padding=(0, 2))
    grid.add_row("claim", Text(f"{record.id}: {record.where} of {record.paper}"))
    grid.add_row("verdict", Text(record.verdict, style=_STYLES[ClaimVerdict(record.verdict)]))
    for name in ("statement", "method", "domain", "evidence"):
        grid.add_row(name, Text(getattr(record, name)))
    return grid


def render_markdown(records: Sequence[ClaimRecord]) -> str:
    """The page of the documentation."""
    parts = [_INTRODUCTION, f"{len(records)} claims: {_count_verdicts(records)}.\n"]
    for paper, title in PAPERS.items():
        rows = [record for record in records if record.paper == paper]
        if not rows:
            continue
        parts += [
            f"## {paper}: {title}\n",
            f"{_count_verdicts(rows)}.\n",
            "| claim | what it says | verdict | evidence | method, domain |",
            "|---|---|---|---|---|",
            *map(_render_row, rows),
            "",
        ]
    return "\n".join(parts)


def save_plot(claim: Claim, path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Draw a claim's figure into a file, .svg or .png.

    Args:
        claim: One with a figure.
        path: Where it goes.
        overwrite: Whether to replace a file that exists.

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
        msg = "plots need Matplotlib: pip install 'refocal[plot]'"
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
    return ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in ClaimVerdict if counts[verdict])


def _render_row(record: ClaimRecord) -> str:
    where, said, found, domain = map(_escape_cell, (record.where, record.statement, record.evidence, record.domain))
    return f"| `{record.id}`<br>{where} | {said} | **{record.verdict}** | {found} | {record.method}: {domain} |"


def _escape_cell(text: str) -> str:
    """Text for a cell of a Markdown table: what Markdown would read as its own is escaped."""
    for special in "\\|*_<>":
        text = text.replace(special, f"\\{special}")
    return text
