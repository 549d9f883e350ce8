"""`refocal-lab reproduce`: make the papers' figures and tables, and compare their numbers."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refocal.cli.options import Commands, add_command, add_engine
from refocal_lab.cli.options import add_zoo
from refocal_lab.clone import find_folder, require_folder

if TYPE_CHECKING:
    from rich.table import Table

    from refocal_lab.reproduce import Context, Reproduction, Spec, StoredResult

_EXAMPLES = """\
refocal-lab reproduce 003-fig-3                     # the figure, and each published number next to ours
refocal-lab reproduce --all --scale smoke           # everything, in a minute
refocal-lab reproduce --all --engine ray            # on a cluster, one task per figure
refocal-lab reproduce --all --redraw                # all figures again, from the stored numbers
refocal-lab reproduce --list                        # all figures, their results, and how long they took
refocal-lab reproduce --gallery lab/docs/gallery.md # the page of all stored results"""


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "make the papers' figures and tables, and compare their numbers"
    command = add_command(commands, "reproduce", summary, _EXAMPLES, run)
    command.add_argument("ids", nargs="*", metavar="ID", help="a figure or table, such as 003-fig-3")
    command.add_argument("--all", action="store_true", help="make every figure and table")
    command.add_argument("--list", action="store_true", help="list the figures and tables")
    command.add_argument("--gallery", metavar="FILE", help="write the page of all stored results: .md")
    command.add_argument(
        "--scale",
        choices=("smoke", "small", "paper"),
        default="small",
        help="smoke takes seconds, small takes minutes, paper is as published (default: %(default)s)",
    )
    command.add_argument("--force", action="store_true", help="make figures again that have a result")
    command.add_argument("--redraw", action="store_true", help="draw stored results again, without computing")
    command.add_argument("--experiments", metavar="FOLDER", help="folder of the specs (default: that of the clone)")
    command.add_argument(
        "--results", metavar="FOLDER", help="folder of the results (default: results in the folder of the specs)"
    )
    command.add_argument(
        "--data", metavar="FOLDER", help="folder of the data files, which some figures need (default: $REFOCAL_DATA)"
    )
    add_zoo(command)
    add_engine(command, meaning="compute here, or on a Ray cluster with one task per figure")


def run(options: Namespace) -> None:
    """Make figures, list them, or write the page that shows them."""
    folder = require_folder("experiments", options.experiments, command="reproduce")
    from refocal import _files
    from refocal.cli.output import check_output, show
    from refocal_lab import reproduce as experiments

    specs = experiments.read_specs(folder)
    results = folder / "results" if options.results is None else Path(options.results)
    if options.list:
        show(options, *_list(specs, results, experiments.Context(zoo=_find_zoo(options))))
    elif options.gallery:
        check_output(options.gallery, "gallery", (".md",), force=True)
        found = experiments.read_results(results, specs)
        page = experiments.render_gallery(specs, found, figures=experiments.relative_link(options.gallery, results))
        _files.write_text(options.gallery, page, overwrite=True)
        show(options, f"{len(found)} of {len(specs)} figures: {options.gallery}", {"gallery": options.gallery})
    else:
        _make(options, folder, specs, results)


def _make(options: Namespace, folder: Path, specs: Mapping[str, Spec], results: Path) -> None:
    from refocal.cli.output import show, show_line

    ids = list(specs) if options.all else options.ids
    if not ids:
        msg = "name figures or tables (--list shows them), or give --all, --list or --gallery"
        raise ValueError(msg)
    unknown = [name for name in ids if name not in specs]
    if unknown:
        msg = f"ID must be one of {', '.join(specs)}, got {', '.join(unknown)}"
        raise ValueError(msg)
    if options.redraw and options.engine == "ray":
        msg = "--redraw needs no cluster: leave out --engine ray"
        raise ValueError(msg)
    failures = []
    made = _make_on_cluster if options.engine == "ray" else _make_here
    for outcome in made(ids, options, folder, specs, results):
        if isinstance(outcome, Exception):
            failures.append(outcome)
        elif options.json:
            show(options, "", _to_json(outcome))
        else:
            show_line(_describe(outcome))
    if failures:
        from refocal_lab.train.on_ray import raise_all

        raise_all(failures)


def _make_on_cluster(
    ids: Sequence[str], options: Namespace, folder: Path, _specs: Mapping[str, Spec], results: Path
) -> Iterator[Reproduction | Exception]:
    """Make figures on a cluster, and yield each when it is done."""
    from refocal_lab.reproduce.on_ray import reproduce

    yield from reproduce(
        ids,
        folder,
        results,
        scale=options.scale,
        force=options.force,
        data=_find_data(options),
        zoo=_find_zoo(options),
        address=options.address,
    )


def _make_here(
    ids: Sequence[str], options: Namespace, _folder: Path, specs: Mapping[str, Spec], results: Path
) -> Iterator[Reproduction | Exception]:
    """Make figures one after another; one that fails does not stop the others."""
    from refocal.cli.progress import track
    from refocal_lab.reproduce import Context, redraw, reproduce

    if options.address is not None:
        msg = "--address needs --engine ray"
        raise ValueError(msg)
    for name in ids:
        outcome: Reproduction | Exception
        with track() as progress:
            context = Context(_find_data(options), progress.step, _find_zoo(options))
            try:
                if options.redraw:
                    outcome = redraw(specs[name], results=results, scale=options.scale)
                else:
                    outcome = reproduce(
                        specs[name], results=results, context=context, scale=options.scale, force=options.force
                    )
            except Exception as error:  # raised when the others are done
                outcome = error
        yield outcome


def _find_data(options: Namespace) -> Path | None:
    given = options.data or os.environ.get("REFOCAL_DATA")
    return None if given is None else Path(given)


def _find_zoo(options: Namespace) -> Path:
    return find_folder("zoo", options.zoo) or Path("zoo")


def _describe(outcome: Reproduction) -> str:
    result = outcome.result
    time = "" if result.seconds is None else f", {result.seconds:g} s"
    head = f"{result.id}, scale {result.scale}{time} ({outcome.why}): {outcome.folder}"
    lines = [*(item.line for item in result.published), *([outcome.finding] if outcome.finding else [])]
    lines += [" | ".join(row) for row in result.numbers.table]
    return "\n".join([head, *(f"  {line}" for line in lines)])


def _to_json(outcome: Reproduction) -> dict[str, Any]:
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


def _list(specs: Mapping[str, Spec], results: Path, context: Context) -> tuple[Table, list[dict[str, Any]]]:
    """List all figures: the scales that have results and their seconds, how many numbers agree, what is outdated."""
    from rich.table import Table
    from rich.text import Text

    from refocal.report.words import printable
    from refocal_lab.reproduce import SCALES, result_files

    table = Table()
    table.add_column("id", no_wrap=True)  # so that it can be copied
    for heading in ("what", "made", "within", "old"):
        table.add_column(heading)
    content = []
    for spec in specs.values():
        found = {scale: result_files.load(results, spec, scale) for scale in SCALES}
        seconds = {scale: None if result is None else result.seconds for scale, result in found.items()}
        largest = next((result for result in reversed(found.values()) if result is not None), None)
        compared = [] if largest is None else [item.within for item in largest.published if item.within is not None]
        old = [scale for scale, result in found.items() if result is not None and _is_outdated(spec, result, context)]
        made = ", ".join(
            scale if seconds[scale] is None else f"{scale} {seconds[scale]:g} s"
            for scale, result in found.items()
            if result is not None
        )
        share = f"{sum(compared)} of {len(compared)}" if compared else "–"
        table.add_row(Text(printable(spec.id)), Text(printable(spec.title)), made, share, ", ".join(old))
        numbers = {"published": len(spec.published), "compared": len(compared), "within": sum(compared)}
        content.append({"id": spec.id, "title": spec.title, "seconds": seconds, **numbers, "out_of_date": old})
    return table, content


def _is_outdated(spec: Spec, result: StoredResult, context: Context) -> bool:
    """Whether `reproduce` would make it again; without a zoo, whether its spec has changed."""
    from refocal_lab.reproduce import KINDS, explain_outdated

    assert context.zoo is not None
    made_from = result.made_from
    if context.zoo.is_dir():
        made_from = KINDS[spec.kind].made_from(spec.parameters[result.scale], context)
    return bool(explain_outdated(spec, result, made_from))
