"""The command `reproduce`: the papers' figures and tables."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from refocal import _files
from refocal.cli.output import Output, check_output, show, steps
from refocal.report import words
from refocal_lab import reproduce as experiments
from refocal_lab.reproduce import result_files

DATA_VARIABLE = "REFOCAL_DATA"


def reproduce(options: Namespace) -> None:
    """Make figures, list them, or write the page that shows them."""
    folder = Path(options.experiments)
    specs = experiments.read_specs(folder)
    results = folder / "results" if options.results is None else Path(options.results)
    if options.list:
        show(options, *_listed(specs, results, experiments.Context(zoo=Path(options.zoo))))
    elif options.gallery:
        check_output(options.gallery, "gallery", (".md",), force=True)
        found = experiments.read_results(results, specs)
        page = experiments.render_gallery(specs, found, figures=experiments.relative_link(options.gallery, results))
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
    failures = []
    for outcome in _outcomes(ids, options, specs, results):
        if isinstance(outcome, Exception):
            failures.append(outcome)
        elif options.json:
            show(options, "", _record(outcome))
        else:
            Output().print(Text(words.printable(_said(outcome))), soft_wrap=True)
    if failures:
        from refocal_lab.train.on_ray import raise_all

        raise_all(failures)


def _outcomes(
    ids: Sequence[str], options: Namespace, specs: Mapping[str, experiments.Spec], results: Path
) -> Iterator[experiments.Reproduction | Exception]:
    """Results as they come, here or from a cluster; one that fails does not stop the others."""
    given = options.data or os.environ.get(DATA_VARIABLE)
    data, zoo = None if given is None else Path(given), Path(options.zoo)
    settings: dict[str, Any] = {"scale": options.scale, "force": options.force}
    if options.engine == "ray":
        from refocal_lab.reproduce import on_ray as figures

        folder = Path(options.experiments)
        yield from figures.reproduce(ids, folder, results, data=data, zoo=zoo, address=options.address, **settings)
        return
    if options.address is not None:
        msg = "--address needs --engine ray"
        raise ValueError(msg)
    for name in ids:
        with steps() as progress:
            context = experiments.Context(data, progress, zoo)
            outcome: experiments.Reproduction | Exception
            try:
                outcome = experiments.reproduce(specs[name], results=results, context=context, **settings)
            except Exception as error:  # raised once the others are done
                outcome = error
        yield outcome


def _said(outcome: experiments.Reproduction) -> str:
    result = outcome.result
    head = f"{result.id}, scale {result.scale}, {result.seconds:g} s ({outcome.why}): {outcome.folder}"
    lines = [*(item.line for item in result.published), *([outcome.finding] if outcome.finding else [])]
    lines += [" | ".join(row) for row in result.numbers.table]
    return "\n".join([head, *(f"  {line}" for line in lines)])


def _record(outcome: experiments.Reproduction) -> dict[str, Any]:
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
        "table": result.numbers.table,
    }


def _listed(
    specs: Mapping[str, experiments.Spec], results: Path, context: experiments.Context
) -> tuple[Table, list[dict[str, Any]]]:
    """What exists, what was made and in how long, how many of the numbers that we have agree, and what is old."""
    table = Table()
    table.add_column("id", no_wrap=True)  # else it could not be copied
    for heading in ("what", "made", "within", "old"):
        table.add_column(heading)
    content = []
    for spec in specs.values():
        found = {scale: result_files.load(results, spec, scale) for scale in experiments.SCALES}
        seconds = {scale: None if result is None else result.seconds for scale, result in found.items()}
        largest = next((result for result in reversed(found.values()) if result is not None), None)
        compared = [] if largest is None else [item.within for item in largest.published if item.within is not None]
        old = [scale for scale, result in found.items() if result is not None and _is_old(spec, result, context)]
        made = ", ".join(f"{scale} {value:g} s" for scale, value in seconds.items() if value is not None)
        share = f"{sum(compared)} of {len(compared)}" if compared else "–"
        table.add_row(Text(words.printable(spec.id)), Text(words.printable(spec.title)), made, share, ", ".join(old))
        numbers = {"published": len(spec.published), "compared": len(compared), "within": sum(compared)}
        content.append({"id": spec.id, "title": spec.title, "seconds": seconds, **numbers, "out_of_date": old})
    return table, content


def _is_old(spec: experiments.Spec, result: experiments.StoredResult, context: experiments.Context) -> bool:
    """Whether `reproduce` would run it again; without a zoo, whether its spec has changed."""
    assert context.zoo is not None
    made_from = result.made_from
    if context.zoo.is_dir():
        made_from = experiments.KINDS[spec.kind].made_from(spec.parameters[result.scale], context)
    return bool(experiments.explain_outdated(spec, result, made_from))
