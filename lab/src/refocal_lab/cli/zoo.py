"""`refocal-lab zoo`: logits of trained networks, and every measure of them."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from refocal.cli.options import Commands, add_command, add_group
from refocal_lab.cli.options import add_zoo
from refocal_lab.clone import require_folder

if TYPE_CHECKING:
    import numpy as np

_EXAMPLES = """\
refocal-lab zoo list
refocal-lab zoo table --markdown > lab/zoo/README.md"""


def add_parser(commands: Commands) -> None:
    """Add the command, which has three of its own."""
    actions = add_group(commands, "zoo", "show logits of trained networks, and every measure of them", _EXAMPLES)
    listing = add_command(actions, "list", "list the networks of a zoo", "refocal-lab zoo list", list_entries)
    table = add_command(
        actions,
        "table",
        "compute every measure, before and after calibration, next to the papers' numbers",
        "refocal-lab zoo table\nrefocal-lab zoo table --human data --markdown",
        show_table,
    )
    add = add_command(actions, "add", "copy finished runs into a zoo", "refocal-lab zoo add runs/*", add_runs)
    add.add_argument("runs", nargs="+", metavar="RUN", help="a folder written by refocal-lab train")
    for action in (listing, table, add):
        add_zoo(action)
    table.add_argument("--markdown", action="store_true", help="print Markdown")
    table.add_argument(
        "--human",
        metavar="FOLDER",
        help="folder of CIFAR-10H, the labels that people gave (default: $REFOCAL_DATA; left out if not there)",
    )


def add_runs(options: Namespace) -> None:
    """Copy finished runs into a zoo."""
    folder = require_folder("zoo", options.zoo, command="zoo")
    from refocal.cli.output import show
    from refocal_lab import zoo

    added = [zoo.add(run, folder) for run in options.runs]
    show(options, "\n".join(card.name for card in added), [card.content for card in added])


def list_entries(options: Namespace) -> None:
    """List the networks of a zoo."""
    folder = require_folder("zoo", options.zoo, command="zoo")
    from refocal.cli.output import show
    from refocal_lab import zoo
    from refocal_lab.zoo import tables

    found = zoo.entries(folder)
    show(options, tables.render_list(found), [entry.card.content for entry in found])


def show_table(options: Namespace) -> None:
    """Compute every measure of every entry."""
    if options.json and options.markdown:
        msg = "--json and --markdown exclude each other"
        raise ValueError(msg)
    folder = require_folder("zoo", options.zoo, command="zoo")
    from refocal.cli.output import show
    from refocal.cli.progress import track
    from refocal_lab import zoo
    from refocal_lab.zoo import tables

    found = zoo.entries(folder)
    human = _read_human(options.human)
    measured = []
    with track() as progress:
        for entry, values in zip(found, zoo.measure_all(found, human), strict=True):
            measured.append(values)
            progress.count("measuring", len(measured), len(found), entry.card.name)
    groups = zoo.summarize(found, measured)
    if options.markdown:
        print(tables.render_markdown(groups))  # noqa: T201 the result itself
    else:
        show(options, tables.render_terminal(groups), tables.to_json(groups))


def _read_human(folder: str | None) -> np.ndarray | None:
    """Read the label distributions of people; None if they are not there and were not asked for."""
    from refocal_lab.train import data

    try:
        return data.cifar10h(folder)
    except FileNotFoundError:
        if folder is not None:
            raise
        return None
