"""The command that checks the papers' claims."""

from __future__ import annotations

from argparse import Namespace

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from refocal import _files
from refocal.cli.output import check_output, show, terminal

_PLOTS = (".svg", ".png")


def claims(options: Namespace) -> None:
    """Check all claims, or those of a paper; show one."""
    try:
        import refocal_lab.claims  # noqa: F401 the extra may be missing
    except ModuleNotFoundError as error:
        if error.name not in {"flint", "mpmath"}:
            raise
        msg = "checking claims needs python-flint and mpmath: pip install 'refocal[claims]'"
        raise ImportError(msg) from error
    if options.action == "show":
        if options.paper is not None or options.markdown is not None:
            msg = "--paper and --markdown are about several claims, and do not go with show"
            raise ValueError(msg)
        _one(options)
    else:
        _all(options)


def _all(options: Namespace) -> None:
    from refocal_lab.claims import all_claims, check
    from refocal_lab.claims.rendering import render_markdown, render_table
    from refocal_lab.papers import PAPERS

    if options.paper is not None and options.paper not in PAPERS:
        msg = f"--paper must be one of {', '.join(PAPERS)}, got {options.paper!r}"
        raise ValueError(msg)
    if options.markdown:
        check_output(options.markdown, "markdown", (".md",), force=options.force)
    ids = [claim.id for claim in all_claims() if options.paper in {None, claim.paper}]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = terminal()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("checking claims", total=len(ids))
        records = check(ids, progress=lambda _: bar.advance(task))
    if options.markdown:
        _files.write_text(options.markdown, render_markdown(records), overwrite=options.force)
    show(options, render_table(records), [record._asdict() for record in records])


def _one(options: Namespace) -> None:
    from refocal_lab.claims import check, find
    from refocal_lab.claims.rendering import render_claim, save_plot

    claim = find(options.id)
    if options.plot:
        check_output(options.plot, "plot", _PLOTS, force=options.force)
        if claim.draw is None:
            msg = f"{claim.id} has no plot"
            raise ValueError(msg)
    (record,) = check([claim.id])
    if options.plot:
        save_plot(claim, options.plot, overwrite=options.force)
    show(options, render_claim(record), record._asdict())
