"""`refocal demo`: calibrate predictions that ship with the package."""

from __future__ import annotations

from argparse import Namespace

from refocal.cli.options import Commands, add_command, add_force


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "calibrate predictions that ship with the package"
    command = add_command(commands, "demo", summary, "refocal demo --report report.html", run)
    command.add_argument("--report", metavar="FILE", help="write a report: .html or .json")
    add_force(command)


def run(options: Namespace) -> None:
    """Fit, choose and report, as `refocal calibrate` does."""
    from refocal import demo
    from refocal.cli.output import check_outputs
    from refocal.cli.progress import track
    from refocal.cli.workflow import finish, fit_and_measure

    check_outputs(options, [])
    with track() as progress:
        data = demo.load()
        val, test = data.select("val"), data.select("test")
        outcome = fit_and_measure(val, test, {"gamma": demo.GAMMA}, demo.SOURCE, progress.step)
    finish(options, outcome)
