"""The command `reproduce`: the papers' figures and tables."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from refocal import _files
from refocal import reproduce as experiments
from refocal.cli.output import Output, show, steps
from refocal.report import words
from refocal.reproduce import store

DATA_VARIABLE = "REFOCAL_DATA"


def reproduce(options: Namespace) -> None:
    """Make figures, list them, or write the page that shows them."""
    folder = Path(options.experiments)
    specs = experiments.read_specs(folder)
    results = folder / "results" if options.results is None else Path(options.results)
    if options.list:
        show(options, *_listed(specs, results))
    elif options.gallery:
        found = experiments.read_results(results, specs)
        page = experiments.gallery(specs, found, figures=experiments.link(options.gallery, results))
        _files.write_text(options.gallery, page, overwrite=True)
        show(options, f"{len(found)} of {len(specs)} figures: {options.gallery}", {"gallery": options.gallery})
    else:
        _make(options, specs, results)


def _make(options: Namespace, specs: Mapping[str, experiments.Spec], results: Path) -> None:
    ids = list(specs) if options.all else options.ids
    if not ids:
        msg = "name figures or tables (--list shows them), or give --all, --list or --gallery"
        raise ValueError(msg)
    unknown = [name for name in ids if name not in specs]
    if unknown:
        msg = f"ID must be one of {', '.join(specs)}, got {', '.join(unknown)}"
        raise ValueError(msg)
    data = options.data or os.environ.get(DATA_VARIABLE)
    for name in ids:
        with steps() as progress:
            context = experiments.Context(None if data is None else Path(data), progress)
            outcome = experiments.reproduce(
                specs[name], scale=options.scale, results=results, force=options.force, context=context
            )
        if options.json:
            show(options, "", _record(outcome))
        else:
            Output().print(Text(words.printable(_said(outcome))), soft_wrap=True)


def _said(outcome: experiments.Outcome) -> str:
    result = outcome.result
    head = f"{result.id}, scale {result.scale}, {result.seconds:g} s ({outcome.why}): {outcome.folder}"
    lines = [*(item.line for item in result.published), *([outcome.finding] if outcome.finding else [])]
    return "\n".join([head, *(f"  {line}" for line in lines)])


def _record(outcome: experiments.Outcome) -> dict[str, Any]:
    result = outcome.result
    return {
        "id": result.id,
        "scale": result.scale,
        "seconds": result.seconds,
        "why": outcome.why,
        "folder": str(outcome.folder),
        "values": result.numbers.values,
        "published": [item.line for item in result.published],
        "finding": outcome.finding,
    }


def _listed(specs: Mapping[str, experiments.Spec], results: Path) -> tuple[Table, list[dict[str, Any]]]:
    """What exists, what has results, how many numbers agree, and how long it took."""
    table = Table("id", "what", *(f"{scale} (s)" for scale in experiments.SCALES), "within")
    content = []
    for spec in specs.values():
        found = {scale: store.load(results, spec, scale) for scale in experiments.SCALES}
        seconds = {scale: None if result is None else result.seconds for scale, result in found.items()}
        largest = next((result for result in reversed(found.values()) if result is not None), None)
        agree = None if largest is None else sum(item.within for item in largest.published)
        cells = ["–" if value is None else f"{value:g}" for value in seconds.values()]
        table.add_row(spec.id, spec.title, *cells, "–" if agree is None else f"{agree} of {len(spec.published)}")
        content.append(
            {"id": spec.id, "title": spec.title, "seconds": seconds, "within": agree, "published": len(spec.published)}
        )
    return table, content
