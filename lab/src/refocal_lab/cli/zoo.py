"""The commands about a zoo of logits."""

from __future__ import annotations

from argparse import Namespace

import numpy as np

from refocal.cli.output import show, steps
from refocal_lab import zoo
from refocal_lab.train import data
from refocal_lab.zoo import tables


def zoo_add(options: Namespace) -> None:
    """Copy finished runs into a zoo."""
    added = [zoo.add(run, options.zoo) for run in options.runs]
    show(options, "\n".join(card.name for card in added), [card.content for card in added])


def zoo_list(options: Namespace) -> None:
    """Say what a zoo holds."""
    found = zoo.entries(options.zoo)
    show(options, tables.render_list(found), [entry.card.content for entry in found])


def zoo_table(options: Namespace) -> None:
    """Recompute every measure of every entry."""
    if options.json and options.markdown:
        msg = "--json and --markdown exclude each other"
        raise ValueError(msg)
    found = zoo.entries(options.zoo)
    human = _human(options.human)
    measured = []
    with steps() as progress:
        for entry, values in zip(found, zoo.measure_all(found, human), strict=True):
            measured.append(values)
            progress(f"measured {entry.card.name}, {len(measured)} of {len(found)}")
    groups = zoo.summarize(found, measured)
    if options.markdown:
        print(tables.render_markdown(groups))  # noqa: T201 the result itself
    else:
        show(options, tables.render_terminal(groups), tables.to_json(groups))


def _human(folder: str | None) -> np.ndarray | None:
    """Human label distributions; without them there is no KL to people, unless they were asked for."""
    try:
        return data.cifar10h(folder)
    except FileNotFoundError:
        if folder is not None:
            raise
        return None
