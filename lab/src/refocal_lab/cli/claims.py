"""`refocal-lab claims`: check what the papers claim."""

from __future__ import annotations

import argparse
from argparse import Namespace

from refocal.cli.options import Commands, add_command, add_force

_PLOTS = (".svg", ".png")
_EXAMPLES = """\
refocal-lab claims
refocal-lab claims --paper 003 --json
refocal-lab claims show 003-prop-5 --plot counterexample.svg"""


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "check what the papers claim, and say which statements hold"
    command = add_command(commands, "claims", summary, _EXAMPLES, run)
    command.add_argument(
        "--paper",
        help="check the claims of one paper: 001 (Charoenphakdee et al., 2021), 002 (Mukhoti et al., 2020), 003 "
        "(Komisarenko and Kull, 2024) or 004 (Kimura and Naganuma, 2024)",
    )
    command.add_argument("--markdown", metavar="FILE", help="write the page for the documentation: .md")
    add_force(command)
    one = command.add_subparsers(dest="action", metavar="[show]").add_parser(
        "show", help="show one claim in full", description="Show one claim in full, with its verdict and evidence."
    )
    one.add_argument("id", metavar="ID", help="such as 003-prop-5")
    one.add_argument("--plot", metavar="FILE", help="draw the claim, if it has a plot: .svg or .png")
    for option, meaning in (("--json", "print JSON instead of text"), ("--force", "overwrite existing files")):
        # either may stand before or after `show`
        one.add_argument(option, action="store_true", default=argparse.SUPPRESS, help=meaning)


def run(options: Namespace) -> None:
    """Check all claims, or those of one paper; or show one."""
    if options.action != "show":
        _check_all(options)
        return
    if options.paper is not None or options.markdown is not None:
        msg = "--paper and --markdown are for several claims: do not give them with show"
        raise ValueError(msg)
    _show_one(options)


def _check_all(options: Namespace) -> None:
    from refocal import _files
    from refocal.cli.output import check_output, show
    from refocal.cli.progress import track
    from refocal_lab.claims import all_claims, check
    from refocal_lab.claims.rendering import render_markdown, render_table
    from refocal_lab.papers import PAPERS

    if options.paper is not None and options.paper not in PAPERS:
        msg = f"--paper must be one of {', '.join(PAPERS)}, got {options.paper!r}"
        raise ValueError(msg)
    if options.markdown:
        check_output(options.markdown, "markdown", (".md",), force=options.force)
    ids = [claim.id for claim in all_claims() if options.paper in {None, claim.paper}]
    checked: list[str] = []
    with track() as progress:

        def advance(claim: str) -> None:
            checked.append(claim)
            progress.count("checking claims", len(checked), len(ids))

        progress.count("checking claims", 0, len(ids))
        records = check(ids, progress=advance)
    if options.markdown:
        _files.write_text(options.markdown, render_markdown(records), overwrite=options.force)
    show(options, render_table(records), [record._asdict() for record in records])


def _show_one(options: Namespace) -> None:
    from refocal.cli.output import check_output, show
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
